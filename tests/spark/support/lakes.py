"""Topics with known records, and one run of archive."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from tests.support.raw import Connection, batch, produce

from levada.pipelines.lake.archive import archive
from levada.pipelines.lake.commits import CompactionPolicy
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 1_760_000_000_000  # a morning: lakes part files by days, and tests run over midnight too


def fill(broker: EmbeddedBroker, topic: str, first: int, count: int, first_ms: int = 0) -> None:
    """Records k1: v1, k2: v2 ... in their order; a second apart if a time is told, and of now otherwise."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for number in range(first, first + count):
        producer.produce(topic, key=f"k{number}", value=f"v{number}", timestamp=first_ms and first_ms + number * 1000)
    assert producer.flush(30) == 0


def fill_json(broker: EmbeddedBroker, topic: str, values: Iterable[dict[str, Any]], time_ms: int = DAY_MS) -> None:
    """These values as JSON, all of one time."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, json.dumps(value), timestamp=time_ms)
    assert producer.flush(30) == 0


def send_at(broker: EmbeddedBroker, topic: str, *times_ms: int) -> None:
    """A record at each of these times, as clients in Python and Java would not send some of them."""
    with Connection(broker.bootstrap) as connection:
        for time_ms in times_ms:
            assert produce(connection, topic, batch(b"odd", timestamp=time_ms)).error_code == 0


def typed(value_schema: str) -> dict[str, Any]:
    """The options for values that are JSON of this schema."""
    return {"valueFormat": "json", "valueSchema": value_schema}


def archive_once(
    spark: "SparkSession",
    broker: EmbeddedBroker,
    lake: Path | str,
    *topics: str,
    files_max: int = 16,
    retention_ms: int | None = None,
    lake_format: str | None = None,
    table: str | None = None,
    **options: str,
) -> None:
    """All that the topics have, into the lake."""
    running = archive(
        topics,
        str(lake),
        bootstrap=broker.bootstrap,
        once=True,
        lake_format=lake_format,
        table=table,
        spark=spark,
        compaction=CompactionPolicy(files_max=files_max, retention_ms=retention_ms),
        **options,
    )
    assert running.wait(300)
