"""Declares and validates the listeners of a broker: `NAME://host:port`.

Listeners are on loopback by default. A plaintext port open to the network lets any peer read and write, so it
requires a setting of its own.
"""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from levada.config.settings import Strings, setting
from levada.errors import ErrorCode, KafkaError
from levada.model import Endpoint

PORT_MAX: Final = 65_535
EVERY_ADDRESS: Final = frozenset(("0.0.0.0", "::"))  # noqa: S104 (it is refused)
LOOPBACK_NAMES: Final = frozenset(("localhost",))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ListenerSettings:
    """Where the broker listens: the section `listeners` of `BrokerConfig`."""

    listeners: Strings = setting(
        ("PLAINTEXT://127.0.0.1:9092",), "Addresses to listen on: NAME://host:port, separated by commas."
    )
    advertised_listeners: Strings | None = setting(None, "Addresses for clients, if they differ from the listeners.")
    listener_security_protocol_map: Strings = setting(
        ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT"),
        "The security protocol of each listener: NAME:PROTOCOL, separated by commas.",
    )
    controller_listener_names: Strings = setting((), "Listeners of Kafka's controller; they are not opened.")
    levada_allow_plaintext_beyond_loopback: bool = setting(
        False, "Whether plaintext listeners may be open to the network, without authentication or encryption."
    )
    levada_metrics_listener: str = setting(
        "127.0.0.1:9404",
        "host:port of /metrics and /healthz; empty for none, port 0 for any (also if unset and 9404 is in use).",
    )

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Addresses to listen on. An empty host is every interface."""
        return self._parse(self.listeners)

    @property
    def advertised_endpoints(self) -> tuple[Endpoint, ...]:
        """Addresses for clients, by listener; a missing host is this machine's name."""
        found = self._parse(self.advertised_listeners or self.listeners)
        return tuple(item if item.host else item._replace(host=socket.gethostname()) for item in found)

    def _parse(self, texts: Strings) -> tuple[Endpoint, ...]:
        protocols = dict(pair.strip().rpartition(":")[::2] for pair in self.listener_security_protocol_map)
        found = []
        for text in texts:
            name, separator, address = text.partition("://")
            host, colon, port = address.rpartition(":")
            if not (separator and colon and port.isdecimal() and int(port) <= PORT_MAX):
                raise _invalid("listeners", f"{text!r} is not of the form NAME://host:port")
            if name not in self.controller_listener_names:
                listener = name.upper()
                protocol = protocols.get(listener, listener)
                found.append(Endpoint(listener, protocol, host.strip("[]"), int(port)))
        return tuple(found)

    def problems(self) -> Iterator[KafkaError]:
        """Yield INVALID_CONFIG for each listener that cannot be opened or would open plaintext to the network."""
        try:
            endpoints, advertised = self.endpoints, self.advertised_endpoints
            if self.levada_metrics_listener:
                address(self.levada_metrics_listener, "levada.metrics.listener")
        except KafkaError as error:
            yield error
            return
        names = [endpoint.listener for endpoint in endpoints]
        if not names:
            yield _invalid("listeners", "there is none")
        if len(set(names)) < len(names):
            yield _invalid("listeners", "each listener must have a different name")
        yield from filter(None, map(self._problem_of_protocol, endpoints))
        for endpoint in advertised:
            if endpoint.host in EVERY_ADDRESS:
                why = f"{endpoint.host} is no address that clients can connect to; name one"
                yield _invalid("advertised.listeners", why)
            if endpoint.listener not in names:
                yield _invalid("advertised.listeners", f"{endpoint.listener} is not among the listeners")

    def _problem_of_protocol(self, endpoint: Endpoint) -> KafkaError | None:
        protocol = endpoint.security_protocol
        if protocol != "PLAINTEXT":
            why = f"{endpoint} has security protocol {protocol}; only PLAINTEXT is available yet"
            return _invalid("listeners", why)
        if self.levada_allow_plaintext_beyond_loopback or is_loopback(endpoint.host):
            return None
        return _invalid(
            "listeners",
            f"{endpoint} is plaintext beyond loopback: any peer could read and write. For this machine only, use "
            f"127.0.0.1 as its host, or --port {endpoint.port}; "
            "set levada.allow.plaintext.beyond.loopback=true if the network is intended",
        )


def address(text: str, setting: str) -> tuple[str, int]:
    """Return host and port of `host:port`."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) <= PORT_MAX):
        raise _invalid(setting, f"{text!r} is not of the form host:port")
    return host.strip("[]"), int(port)


def address_text(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host. An empty host is every interface."""
    try:
        return host in LOOPBACK_NAMES or ip_address(host).is_loopback
    except ValueError:
        return False  # a name that may resolve to any address


def _invalid(setting: str, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, f"{setting}: {why}")
