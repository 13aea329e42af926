"""Reads settings from a .properties file, the environment and flags, and reports unknown names.

A server.properties written for Kafka works unchanged: a setting without effect in Levada is a warning with the
reason. Only a setting whose loss would silently weaken security is an error.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from levada.config.settings import did_you_mean
from levada.errors import ErrorCode, KafkaError

ENVIRONMENT_PREFIX: Final = "KAFKA_"
# Variables with that prefix that configure Kafka's scripts and its JVM.
ENVIRONMENT_OF_SCRIPTS: Final = frozenset(
    f"KAFKA_{name}" for name in ("HEAP_OPTS", "JVM_PERFORMANCE_OPTS", "OPTS", "HOME", "GC_LOG_OPTS", "DEBUG")
) | {"KAFKA_JMX_OPTS", "KAFKA_JMX_PORT", "KAFKA_JMX_HOSTNAME", "KAFKA_LOG4J_OPTS", "KAFKA_VERSION"}

# The settings of a broker that is started without a properties file: somebody tries it out, or tests with it, and the
# first consumer of a group does not wait three seconds for others.
WITHOUT_FILE: Final = {"group.initial.rebalance.delay.ms": "0"}

# Settings of Kafka without effect in Levada, by prefix, and the reason.
IGNORED: Final = {
    "ssl.": "TLS is not available yet, and no listener uses it",
    "sasl.": "SASL is not available yet, and no listener uses it",
    "security.": "only PLAINTEXT is available yet",
    "delegation.token.": "delegation tokens are not available",
    "zookeeper.": "it is not available",
    "process.roles": "every Levada node is broker and controller",
    "controller.": "one node needs no quorum",
    "controlled.shutdown.enable": "every shutdown is controlled",
    "metadata.": "there is no metadata quorum, but a file or ZooKeeper",
    "broker.": "one node needs no heartbeat",
    "inter.broker.listener.name": "there is one node",
    "num.network.threads": "one thread serves the network",
    "num.io.threads": "one thread serves requests",
    "background.threads": "Levada has no background thread pool",
    "queued.max.requests": "levada.connection.requests.in.flight.max limits requests",
    "socket.": "the kernel sizes socket buffers",
    "remote.": "tiered storage is not available",
    "log.local.": "tiered storage is not available",
    "log.cleaner.io.buffer.size": "the cleaner reads 1 MiB at a time",
    "log.cleaner.io.buffer.load.factor": "the load factor of the offset map is fixed",
    "log.dir.failure.timeout.ms": "a failed log dir is reported at once",
    "log.initial.task.delay.ms": "background tasks start after one interval",
    "log.flush.start.offset.checkpoint.interval.ms": "log start offsets are checkpointed with the recovery points",
    "group.consumer.assignment.": "assignments are computed at once",
    "group.consumer.assignor.": "assignments are computed at once",
    "group.consumer.max.assignment.": "assignments are computed at once",
    "group.consumer.min.assignment.": "assignments are computed at once",
    "group.consumer.regex.": "regular expressions are resolved when topics change",
    "group.share.": "share groups are not available yet",
    "group.streams.": "streams groups are not available",
    "group.coordinator.": "one thread coordinates all groups",
    "offsets.load.buffer.size": "internal topics are read 1 MiB at a time",
    "offsets.topic.compression.codec": "internal topics are not compressed",
    "share.": "share groups are not available yet",
    "transaction.state.log.load.buffer.size": "internal topics are read 1 MiB at a time",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "a transaction is aborted when its timeout expires",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "a transactional id is removed when it expires",
    "replica.": "there is one node",
    "replication.": "there is one node",
    "num.replica.": "there is one node",
    "alter.": "policies and replication throttling are not available",
    "create.topic.policy.class.name": "Java classes cannot be loaded",
    "principal.builder.class": "Java classes cannot be loaded",
    "client.quota.callback.class": "Java classes cannot be loaded",
    "config.providers": "Java classes cannot be loaded",
    "quota.": "quotas are not available yet",
    "max.connection.creation.rate": "quotas are not available yet",
    "max.connections.per.ip.overrides": "one limit applies to all addresses",
    "kafka.metrics.": "metrics are served on levada.metrics.listener",
    "metric": "metrics are served on levada.metrics.listener",
    "auto.include.jmx.reporter": "metrics are served on levada.metrics.listener",
    "telemetry.": "client telemetry is not available",
    "request.timeout.ms": "there is one node",
    "inter.broker.protocol.version": "there is one version",
    "log.message.format.version": "record batches are always version 2",
    "log.message.downconversion.enable": "record batches are always version 2",
    "fetch.purgatory.purge.interval.requests": "the purgatory removes completed requests at once",
    "producer.purgatory.purge.interval.requests": "the purgatory removes completed requests at once",
    "delete.records.purgatory.purge.interval.requests": "the purgatory removes completed requests at once",
    "unstable.": "it is for Kafka's own tests",
    "internal.": "it is for Kafka's own tests",
    "listener.name.": "TLS and SASL are not available yet",
    "early.start.listeners": "listeners open when the broker is ready",
    "connection": "authentication is not available yet",
    "cordoned.log.dirs": "partitions go to the emptiest log dir",
    "follower.": "there is one node",
    "leader.": "there is one node",
    "unclean.leader.election.interval.ms": "leaders are elected when the metadata changes",
    "initial.broker.registration.timeout.ms": "a start waits for the session of the former process",
    "max.request.partition.size.limit": "a DescribeTopicPartitions response has at most 2,000 partitions",
    "producer.id.expiration.check.interval.ms": "producer ids expire with the retention check",
    "server.max.startup.time.ms": "the start has no time limit",
    "confluent.": "it belongs to another product",
}


def unknown_setting(name: str, text: str, known: Mapping[str, object]) -> str:
    """Return the warning about a name that no setting has; raise INVALID_CONFIG where a warning is not enough."""
    hint = did_you_mean(name, known)
    if name.startswith("levada."):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}: there is no such setting{hint}")
    if name == "authorizer.class.name" and text.strip():
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}: access control is not available yet")
    if name == "zookeeper.ssl.client.enable" and text.strip().lower() == "true":
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}: TLS to ZooKeeper is not available yet")
    why = ignored_because(name)
    return f"{name} has no effect: {why}" if why else f"{name} is not a setting and has no effect{hint}"


def ignored_because(name: str) -> str:
    """Return why a setting of Kafka has no effect; empty if Kafka has no such setting."""
    return next((why for prefix, why in IGNORED.items() if name.startswith(prefix)), "")


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of KAFKA_ variables: `_` stands for `.`, `__` for `_`, `___` for `-`."""
    separators = {1: ".", 2: "_", 3: "-"}
    return {
        re.sub(
            "_{1,3}",
            lambda match: separators[len(match[0])],
            variable.removeprefix(ENVIRONMENT_PREFIX).lower(),
        ): value
        for variable, value in environment.items()
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in ENVIRONMENT_OF_SCRIPTS
    }


def merged(
    *, text: str | None = None, environment: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Merge all sources: flags override the environment, which overrides the text of the file.

    A broker without a file takes the place of the file from `WITHOUT_FILE`.
    """
    file = WITHOUT_FILE if text is None else parse(text)
    return {**file, **from_environment(environment or {}), **(flags or {})}


def parse(text: str) -> dict[str, str]:
    """Parse a .properties file as Java does; the last value of a repeated name wins."""
    return {name: value for name, value in map(_split, _logical_lines(text)) if name}


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines without comments and blanks; a line that ends in an odd backslash continues on the next."""
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
    """Split name and value at the first unescaped `=`, `:` or white space."""
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
