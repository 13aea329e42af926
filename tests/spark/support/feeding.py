"""Sample streams written to a broker, and results read back."""

import json
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from levada.pipelines.flows.samples import Now, Sample
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def ticking(step_ms: int, start: datetime = NOON) -> Now:
    """A clock that is a step further whenever it is asked."""
    times = (start + timedelta(milliseconds=step_ms * number) for number in range(1_000_000_000))
    return lambda: next(times)


def made(generator: Callable[[random.Random, Now], Iterator[Sample]], count: int, step_ms: int) -> list[Sample]:
    """So many samples, the same each time."""
    return list(islice(generator(random.Random(5), ticking(step_ms)), count))


def feed(broker: EmbeddedBroker, samples: Iterable[Sample], topics: dict[str, str] | None = None) -> None:
    """Write samples, to other topics than they name if told so."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for sample in samples:
        producer.produce((topics or {}).get(sample.topic, sample.topic), sample.value, sample.key)
    assert producer.flush(30) == 0


def as_table(spark: "SparkSession", samples: Iterable[Sample]) -> "DataFrame":
    """Samples with the columns that `format("levada")` would give them."""
    rows = [
        (sample.key.encode(), sample.value.encode(), sample.topic, 0, number, NOON)
        for number, sample in enumerate(samples)
    ]
    schema = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
    return spark.createDataFrame(rows, schema)


def results(broker: EmbeddedBroker, topic: str) -> list[dict[str, Any]]:
    """What a pipeline wrote, in an order that does not depend on when it was written."""
    values = [record.value for record in broker.records(topic)]
    return sorted((json.loads(value) for value in values if value is not None), key=json.dumps)


def forget_the_last_commit(checkpoint: Path) -> None:
    """As a driver leaves it that dies after its sink has committed and before it has noted that."""
    *_, last = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def copy_of(checkpoint: Path, to: Path) -> Path:
    shutil.copytree(checkpoint, to)
    return to
