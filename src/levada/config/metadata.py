"""Declares where the metadata of the cluster is kept: in a file of this host, or in ZooKeeper.

The names and defaults of `zookeeper.*` are those of Kafka 3.9, the last version with ZooKeeper. Kafka takes credentials
from a JAAS file; here they are a setting.
"""

import re
from dataclasses import dataclass
from typing import Final

from levada.config.settings import Password, setting
from levada.errors import ErrorCode, KafkaError

ZOOKEEPER_PORT: Final = 2181
_SERVER: Final = r"(?:\[[0-9a-fA-F:.]+\]|[^\s,:/\[\]]+)(?::[0-9]{1,5})?"
_CONNECT: Final = re.compile(rf"{_SERVER}(?:,{_SERVER})*(?:(?:/(?!\.\.?(?:/|$))[!-.0-~]+)+|/)?")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MetadataSettings:
    """The metadata store: the section `metadata` of `BrokerConfig`."""

    zookeeper_connect: str | None = setting(
        None,
        "ZooKeeper's servers, and the path of the cluster in it: host:port,host:port/path. Unset, metadata is kept in "
        "levada.metadata.file.",
    )
    zookeeper_session_timeout_ms: int = setting(
        18_000,
        "The session timeout of ZooKeeper: a broker that stops without a shutdown is registered for so long.",
        minimum=1,
    )
    zookeeper_connection_timeout_ms: int | None = setting(
        None, "How long a start waits for ZooKeeper; unset, for zookeeper.session.timeout.ms.", minimum=1
    )
    zookeeper_set_acl: bool = setting(
        False, "Whether only the user of levada.zookeeper.credentials may change the nodes that are created."
    )
    levada_zookeeper_credentials: Password | None = setting(
        None, "user:password for ZooKeeper's digest authentication."
    )
    levada_metadata_file: str | None = setting(
        None,
        "The SQLite file of the metadata. Brokers of one host with the same file are one cluster. Unset, each broker "
        "has levada-metadata.db in its first log directory.",
    )
    levada_metadata_session_timeout_ms: int = setting(
        10_000,
        "The pause after which another broker with the same levada.metadata.file counts this one as dead; a process "
        "that has ended is noticed at once.",
        minimum=100,
    )

    @property
    def zookeeper_hosts(self) -> str:
        """The servers of ZooKeeper, each with its port."""
        servers = (self.zookeeper_connect or "").partition("/")[0].split(",")
        return ",".join(
            server if re.search(r":[0-9]+$", server) else f"{server}:{ZOOKEEPER_PORT}" for server in servers
        )

    @property
    def zookeeper_root(self) -> str:
        """The path of the cluster in ZooKeeper; empty for the root."""
        _, slash, path = (self.zookeeper_connect or "").partition("/")
        return (slash + path).rstrip("/")

    def check(self) -> None:
        """Raise INVALID_CONFIG if the store cannot be opened, or would be open to others by accident."""
        credentials = self.levada_zookeeper_credentials
        if self.zookeeper_connect and not _CONNECT.fullmatch(self.zookeeper_connect):
            raise _invalid(
                "zookeeper.connect", f"{self.zookeeper_connect!r} is not of the form host:port,host:port/path"
            )
        if self.zookeeper_connect and self.levada_metadata_file:
            raise _invalid("levada.metadata.file", "metadata is kept in ZooKeeper (zookeeper.connect)")
        if credentials and ":" not in credentials:
            raise _invalid("levada.zookeeper.credentials", "it is not of the form user:password")
        if self.zookeeper_set_acl and not credentials:
            raise _invalid(
                "zookeeper.set.acl", "it needs levada.zookeeper.credentials, the only user who may write then"
            )


def _invalid(name: str, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, f"{name}: {why}")
