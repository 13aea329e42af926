"""Where a broker's settings come from: a .properties file, the environment, flags; and what of strangers.

A server.properties written for Kafka must work unchanged, so a name that Levada has no use for is a warning
with the reason, and only what would silently weaken security is an error.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from levada.config.settings import nearest
from levada.errors import ErrorCode, KafkaError

ENVIRONMENT_PREFIX: Final = "KAFKA_"
# Variables with that prefix that tune Kafka's scripts and its JVM, not its settings.
ENVIRONMENT_OF_SCRIPTS: Final = frozenset(
    f"KAFKA_{name}" for name in ("HEAP_OPTS", "JVM_PERFORMANCE_OPTS", "OPTS", "HOME", "GC_LOG_OPTS", "DEBUG")
) | {"KAFKA_JMX_OPTS", "KAFKA_JMX_PORT", "KAFKA_JMX_HOSTNAME", "KAFKA_LOG4J_OPTS", "KAFKA_VERSION"}

# Names that Kafka knows and Levada has no use for, by how they begin, and why.
WITHOUT_EFFECT: Final = {
    "ssl.": "TLS is not available yet, and no listener asks for it",
    "sasl.": "SASL is not available yet, and no listener asks for it",
    "security.": "only PLAINTEXT is available yet",
    "delegation.token.": "delegation tokens are not available",
    "zookeeper.": "this node keeps its metadata in a file of its own",
    "process.roles": "every Levada node is broker and controller",
    "controller.": "one node needs no quorum",
    "controlled.shutdown.enable": "a stop is always a clean one",
    "metadata.": "metadata is kept in a file of its own",
    "broker.": "one node needs no heartbeat",
    "inter.broker.listener.name": "there is one node",
    "num.network.threads": "one thread serves the network",
    "num.io.threads": "one thread serves requests",
    "num.recovery.threads.per.data.dir": "logs are opened one after the other",
    "background.threads": "Levada has no such pool",
    "queued.max.requests": "levada.connection.requests.in.flight.max limits requests",
    "socket.": "the kernel sizes the buffers of sockets",
    "remote.": "tiered storage is not available",
    "log.local.": "tiered storage is not available",
    "log.cleaner.io.buffer.size": "the cleaner reads a megabyte at a time",
    "log.cleaner.io.buffer.load.factor": "the cleaner's table is filled to nine tenths",
    "log.dir.failure.timeout.ms": "a failed log dir is reported at once",
    "log.initial.task.delay.ms": "background work begins after one interval",
    "log.flush.start.offset.checkpoint.interval.ms": "start offsets are written with the recovery points",
    "group.consumer.assignment.": "partitions are divided at once",
    "group.consumer.assignor.": "partitions are divided at once",
    "group.consumer.max.assignment.": "partitions are divided at once",
    "group.consumer.min.assignment.": "partitions are divided at once",
    "group.consumer.regex.": "patterns are matched when topics appear",
    "group.share.": "share groups are not available yet",
    "group.streams.": "streams groups are not available",
    "group.coordinator.": "one thread coordinates all groups",
    "offsets.load.buffer.size": "journals are read a megabyte at a time",
    "offsets.topic.compression.codec": "journals are not compressed",
    "share.": "share groups are not available yet",
    "transaction.state.log.load.buffer.size": "journals are read a megabyte at a time",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "a transaction is aborted when its time is over",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "an id is forgotten when its time is over",
    "replica.": "there is one node",
    "replication.": "there is one node",
    "num.replica.": "there is one node",
    "auto.leader.rebalance.enable": "there is one node",
    "alter.": "there is no policy or throttle",
    "create.topic.policy.class.name": "Java classes cannot be loaded",
    "principal.builder.class": "Java classes cannot be loaded",
    "client.quota.callback.class": "Java classes cannot be loaded",
    "config.providers": "Java classes cannot be loaded",
    "quota.": "quotas are not available yet",
    "max.connection.creation.rate": "quotas are not available yet",
    "max.connections.per.ip.overrides": "one limit holds for all addresses",
    "kafka.metrics.": "metrics are served on levada.metrics.listener",
    "metric": "metrics are served on levada.metrics.listener",
    "auto.include.jmx.reporter": "metrics are served on levada.metrics.listener",
    "telemetry.": "clients are told to send no telemetry",
    "request.timeout.ms": "there is one node",
    "inter.broker.protocol.version": "there is one version",
    "log.message.format.version": "record batches are always version 2",
    "log.message.downconversion.enable": "record batches are always version 2",
    "fetch.purgatory.purge.interval.requests": "waiters are removed when they end",
    "producer.purgatory.purge.interval.requests": "waiters are removed when they end",
    "delete.records.purgatory.purge.interval.requests": "waiters are removed when they end",
    "unstable.": "it is for Kafka's own tests",
    "internal.": "it is for Kafka's own tests",
    "listener.name.": "TLS and SASL are not available yet",
    "early.start.listeners": "listeners open when the broker is ready",
    "connection": "connections are not authenticated yet",
    "cordoned.log.dirs": "partitions go to the emptiest log dir",
    "follower.": "there is one node",
    "leader.": "there is one node",
    "unclean.leader.election.interval.ms": "there is one node",
    "initial.broker.registration.timeout.ms": "there is one node",
    "add.partitions.to.txn.": "transactions are not available yet",
    "max.request.partition.size.limit": "a page of DescribeTopicPartitions has up to 2,000",
    "producer.id.expiration.check.interval.ms": "producers are looked through with the log's retention",
    "server.max.startup.time.ms": "a start is not limited",
    "confluent.": "it belongs to another product",
}


def without_effect(name: str, text: str, known: Mapping[str, object]) -> str:
    """A warning about a name that no setting has; INVALID_CONFIG where a warning would not do."""
    hint = nearest(name, known)
    if name.startswith("levada."):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}: there is no such setting{hint}")
    if name == "authorizer.class.name" and text.strip():
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{name}: access control is not available yet",
        )
    for beginning, why in WITHOUT_EFFECT.items():
        if name.startswith(beginning):
            return f"{name} has no effect: {why}"
    return f"{name} is not a setting and has no effect{hint}"


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings from KAFKA_ variables: `_` stands for `.`, `__` for `_`, `___` for `-`."""
    marks = {1: ".", 2: "_", 3: "-"}
    return {
        re.sub(
            "_{1,3}", lambda match: marks[len(match[0])], variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        ): value
        for variable, value in environment.items()
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in ENVIRONMENT_OF_SCRIPTS
    }


def merged(
    *, text: str = "", environment: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None
) -> dict[str, str]:
    """All settings given: flags before environment before file."""
    return {**parse(text), **from_environment(environment or {}), **(flags or {})}


def parse(text: str) -> dict[str, str]:
    """A .properties file as Java reads it; a name given twice has its last value."""
    return {name: value for name, value in map(_split, _logical_lines(text)) if name}


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blanks, those ending in a lone backslash joined with the next."""
    pending = ""
    for physical in re.split(r"\r\n|\r|\n", text):
        line = physical.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
        else:
            yield pending + line
            pending = ""
    if pending:
        yield pending


def _split(line: str) -> tuple[str, str]:
    """Name and value: parted by the first unescaped `=`, `:` or white space."""
    name = re.match(r"(?:\\.|[^\\=: \t\f])*", line, re.DOTALL)
    assert name is not None
    value = re.sub(r"^[ \t\f]*[=:]?[ \t\f]*", "", line[name.end() :], count=1)
    return _unescape(name[0]), _unescape(value)


def _unescape(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(match[2], match[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.?))", character, text, flags=re.DOTALL)
