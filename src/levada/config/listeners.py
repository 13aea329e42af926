"""Where a broker listens and what it tells clients: `NAME://host:port`, read and judged.

Loopback by default: a plaintext port open to the network lets anyone read and write, so it takes a setting of
its own.
"""

from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Final

from levada.errors import ErrorCode, KafkaError
from levada.model import Endpoint

PORT_MAX: Final = 65_535
EVERY_ADDRESS: Final = frozenset(("0.0.0.0", "::"))  # noqa: S104 (it is refused)
LOOPBACK_NAMES: Final = frozenset(("localhost",))


def parse(
    texts: Iterable[str], protocols: Iterable[str], left_out: Sequence[str] = ()
) -> tuple[Endpoint, ...]:
    """Endpoints from texts, `NAME:PROTOCOL` pairs, and the names of listeners that are not for clients."""
    protocol_of = dict(pair.strip().rpartition(":")[::2] for pair in protocols)
    found = []
    for text in texts:
        name, separator, address = text.partition("://")
        host, colon, port = address.rpartition(":")
        if not (separator and colon and port.isdecimal() and int(port) <= PORT_MAX):
            raise _rejected("listeners", f"{text!r} is not of the form NAME://host:port")
        if name not in left_out:
            listener = name.upper()
            found.append(Endpoint(listener, protocol_of.get(listener, listener), host.strip("[]"), int(port)))
    return tuple(found)


def check(endpoints: Sequence[Endpoint], advertised: Sequence[Endpoint], *, beyond_loopback: bool) -> None:
    """Refuse what cannot be opened, and what should not be opened by accident."""
    names = [endpoint.listener for endpoint in endpoints]
    if not endpoints:
        raise _rejected("listeners", "there is none")
    if len(set(names)) < len(names):
        raise _rejected("listeners", "each listener must have a different name")
    for endpoint in endpoints:
        if endpoint.security_protocol != "PLAINTEXT":
            wanted = endpoint.security_protocol
            raise _rejected("listeners", f"{endpoint} asks for {wanted}; only PLAINTEXT is available yet")
        if not beyond_loopback and not is_loopback(endpoint.host):
            raise _rejected(
                "listeners",
                f"{endpoint} is plaintext beyond loopback: anyone who can connect could read and write. "
                "Set levada.allow.plaintext.beyond.loopback=true if that is meant",
            )
    for endpoint in advertised:
        if endpoint.host in EVERY_ADDRESS:
            raise _rejected(
                "advertised.listeners", f"{endpoint.host} is no address that clients can connect to; name one"
            )
        if endpoint.listener not in names:
            raise _rejected("advertised.listeners", f"{endpoint.listener} is not among the listeners")


def address(text: str, setting: str) -> tuple[str, int]:
    """Host and port of `host:port`."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) <= PORT_MAX):
        raise _rejected(setting, f"{text!r} is not of the form host:port")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host; an empty one is every interface."""
    try:
        return host in LOOPBACK_NAMES or ip_address(host).is_loopback
    except ValueError:
        return False  # a name; whoever gives out names says where it leads


def _rejected(setting: str, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, f"{setting}: {why}")
