"""What pipelines ask brokers themselves, beside what Spark reads and writes."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.pipelines.lake.lake import LakeError
from levada.spark.read.offset_reader import OffsetReader
from levada.spark.read.options import read_options

if TYPE_CHECKING:
    from levada.client.metadata import TopicInfo
    from levada.pipelines.lake.formats import AnyLake

LOOK_S = 0.1  # between two looks for a topic
SETTINGS_OF_AGE = ("cleanup.policy", "retention.ms", "message.timestamp.type")
UNTOLD = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
)


def beginnings(
    bootstrap: str, topics: Sequence[str], options: Mapping[str, str]
) -> dict[TopicPartition, int]:
    """Where the logs of topics begin; `options` are those of `format("levada")`."""
    logs = _logs(bootstrap, topics, options)
    return logs.earliest(list(logs.partitions(missing_is_error=True)))


def topic_ids(bootstrap: str, topics: Sequence[str], options: Mapping[str, str]) -> dict[str, UUID]:
    """The ids of those topics that are there, as far as brokers give them; one made again has another."""
    found = _logs(bootstrap, topics, options).partitions(missing_is_error=False)
    return {place.topic: topic_id for place, topic_id in found.items() if topic_id is not None}


def check_same(lake: "AnyLake", ids: Mapping[str, UUID]) -> None:
    """LakeError if the lake has records of another topic under one of these names: its offsets are others."""
    for topic, topic_id in ids.items():
        if lake.is_other(topic, topic_id):
            raise LakeError(
                f"the lake {lake.files.root} has the records of another topic {topic}: that one was deleted and this "
                "one made since, or this one is of another cluster, and its offsets mean other records. The lake stays "
                "as it is; archive this topic to another lake (--to another path), and ask that one for its history"
            )


def there(bootstrap: str, topic: str, patience_s: float = 5.0) -> "TopicInfo | None":
    """What a topic is now; None if there is none. One that was just made is not known to every broker at once."""
    from levada.spark import blocking

    until = time.monotonic() + patience_s
    while True:
        found = blocking.run(blocking.client(bootstrap).metadata([topic])).topics.get(topic)
        if found is not None and found.partitions:
            return found
        if time.monotonic() > until:
            return None
        time.sleep(LOOK_S)


def kept_ms(bootstrap: str, topic: str) -> int | None:
    """How old a record of this topic may become; None if any age, or where brokers do not tell their settings."""
    from levada.spark import blocking

    asked = blocking.client(bootstrap).admin.describe_configs("topic", topic, SETTINGS_OF_AGE)
    try:
        found = {entry.name: entry.value or "" for entry in blocking.run(asked)}
    except KafkaError as error:
        if error.code in UNTOLD:
            return None
        raise
    kept = int(found.get("retention.ms") or -1)
    deletes = "delete" in found.get("cleanup.policy", "")
    by_own_time = found.get("message.timestamp.type") != "LogAppendTime"  # otherwise all are new
    return kept if kept >= 0 and deletes and by_own_time else None


def _logs(bootstrap: str, topics: Sequence[str], options: Mapping[str, str]) -> OffsetReader:
    asked = {"kafka.bootstrap.servers": bootstrap, "subscribe": ",".join(topics)}
    asked |= {name.lower(): value for name, value in options.items() if name.lower().startswith("kafka.")}
    return OffsetReader(read_options(asked))
