"""Topics on the broker: earliest offsets, ids, retention and creation."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from levada.client.admin.admin import BROKER_DEFAULT
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.pipelines.errors import LakeError, PipelineError
from levada.spark.read.offset_reader import OffsetReader
from levada.spark.read.options import read_options

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.client.metadata import TopicInfo
    from levada.pipelines.lake.lake import Lake

TIMESTAMP_SETTINGS = (
    "cleanup.policy",
    "retention.ms",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
)
SETTINGS_HIDDEN = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
)


def logs_of(bootstrap: str, topics: Sequence[str], options: Mapping[str, str]) -> OffsetReader:
    """The logs of topics; of the `options` of `format("levada")` those of the connection count."""
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": ",".join(topics)}
    return OffsetReader(read_options(given | {name.lower(): value for name, value in connection(options).items()}))


def connection(options: Mapping[str, str]) -> dict[str, str]:
    """Of the options of `format("levada")` those of the connection."""
    return {name: value for name, value in options.items() if name.lower().startswith("kafka.")}


def earliest_offsets(bootstrap: str, topics: Sequence[str], options: Mapping[str, str]) -> dict[TopicPartition, int]:
    """The earliest offsets of topics; `options` are those of `format("levada")`."""
    logs = logs_of(bootstrap, topics, options)
    return logs.earliest(list(logs.partitions(missing_is_error=True)))


def topic_ids(bootstrap: str, topics: Sequence[str], options: Mapping[str, str]) -> dict[str, UUID]:
    """The ids of the existing topics; brokers before topic ids give none."""
    found = logs_of(bootstrap, topics, options).partitions(missing_is_error=False)
    return {partition.topic: topic_id for partition, topic_id in found.items() if topic_id is not None}


def check_topic_ids(lake: "Lake", ids: Mapping[str, UUID]) -> None:
    """Raise LakeError if the lake holds another topic of one of these names: its offsets belong to other records."""
    for topic, topic_id in ids.items():
        if lake.has_other_topic(topic, topic_id):
            raise LakeError(
                f"the lake {lake.files.root} has the records of another topic {topic}: that topic was deleted and "
                "created again, or this one is in another cluster. The lake is unchanged; archive this topic to "
                "another lake (--to another path), and read its history from there"
            )


def find_topic(bootstrap: str, topic: str, timeout_ms: int = 5_000) -> "TopicInfo | None":
    """The metadata of a topic; None if it does not exist. Brokers may learn of a new topic with a delay."""
    from levada.client.retry import UNKNOWN_TOPIC, RetryPolicy, retry
    from levada.spark import blocking

    client, policy = blocking.client(bootstrap), RetryPolicy(UNKNOWN_TOPIC, timeout_ms)
    try:
        return blocking.run(retry(client, lambda: client.topic(topic, refresh=True), policy))
    except KafkaError as error:
        if error.code in UNKNOWN_TOPIC:
            return None
        raise


class TimestampLimits(NamedTuple):
    """Which timestamps a topic takes and keeps, in milliseconds from now; None for any."""

    retention_ms: int | None = None  # older records are deleted
    before_max_ms: int | None = None  # older records are refused
    after_max_ms: int | None = None  # newer records are refused


def timestamp_limits(bootstrap: str, topic: str) -> TimestampLimits:
    """The limits of a topic; none if its settings cannot be read."""
    from levada.spark import blocking

    request = blocking.client(bootstrap).admin.describe_configs("topic", topic, TIMESTAMP_SETTINGS)
    try:
        settings = {entry.name: entry.value or "" for entry in blocking.run(request)}
    except KafkaError as error:
        if error.code in SETTINGS_HIDDEN:
            return TimestampLimits()
        raise
    if settings.get("message.timestamp.type") == "LogAppendTime":  # all records are new
        return TimestampLimits()
    retention = int(settings.get("retention.ms") or -1)
    deletes = "delete" in settings.get("cleanup.policy", "") and retention >= 0
    before, after = (int(settings.get(f"message.timestamp.{side}.max.ms") or -1) for side in ("before", "after"))
    return TimestampLimits(
        retention if deletes else None, before if before >= 0 else None, after if after >= 0 else None
    )


def create_topics(
    bootstrap: str,
    names: Iterable[str],
    partitions: int = BROKER_DEFAULT,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create those of the topics that do not exist."""
    from levada.spark import blocking

    blocking.run(_create(blocking.client(bootstrap), list(names), partitions, configs or {}))


async def _create(client: "Client", names: Sequence[str], partitions: int, configs: Mapping[str, str]) -> None:
    existing = (await client.metadata()).topics
    for name in names:
        if name in existing:
            continue
        try:
            await client.admin.create_topic(name, partitions=partitions, configs=configs)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # created by another process meanwhile
                raise PipelineError(f"topic {name} does not exist and cannot be created: {error.detail}") from None
