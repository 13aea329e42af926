"""A pipeline that runs out of memory says what to raise, and raising it helps. Each has a Spark process of its own."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from levada import testing
from levada.testing import EmbeddedBroker

COUNT, SIZE, LIMIT = 8, 12_000_000, 20_000_000
LEAST_HEAP = "480m"  # Spark does not start with less
RAISE_IT = "raise it: --driver-memory 4g, in Python session(**{'spark.driver.memory': '4g'})"


@pytest.fixture(scope="module")
def large() -> Iterator[EmbeddedBroker]:
    """A broker that takes large values, with 96 MB of them in `large`."""
    with testing.broker(**{"message.max.bytes": str(LIMIT)}) as own:
        own.topic("large", partitions=2)
        producer = Producer({"bootstrap.servers": own.bootstrap, "message.max.bytes": LIMIT})
        noise = random.Random(7).randbytes(SIZE + COUNT)  # does not compress
        for number in range(COUNT):
            producer.produce("large", noise[number : number + SIZE], partition=number % 2)
            assert producer.flush(60) == 0
        yield own


def pipeline(broker: EmbeddedBroker, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LEVADA_BOOTSTRAP": broker.bootstrap, "LEVADA_PIPELINES": str(home), "NO_COLOR": "1"}
    command = [str(Path(sys.executable).parent / "levada"), "pipeline", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_a_jvm_without_memory_is_reported_and_more_memory_helps(large: EmbeddedBroker, tmp_path: Path) -> None:
    words = ["run", "archive", "--topic", "large", "--to", str(tmp_path / "lake"), "--once", "--master", "local[2]"]
    failed = pipeline(large, tmp_path / "runs", *words, "--driver-memory", LEAST_HEAP)
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    reason = failed.stderr.strip().splitlines()[-1]
    assert reason.startswith("error: pipeline archive failed: Spark ran out of memory") and RAISE_IT in reason
    status = pipeline(large, tmp_path / "runs", "status", "archive", "-o", "json")
    assert reason.endswith(json.loads(status.stdout)["why"])
    done = pipeline(large, tmp_path / "runs", *words, "--driver-memory", "2g")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "lake" / "topic=large").rglob("*.parquet"))) == 2


def test_a_query_that_does_not_fit_into_the_heap_is_reported(large: EmbeddedBroker, tmp_path: Path) -> None:
    query = "SELECT count(DISTINCT repeat(string(_offset), 300000000)) AS n FROM large"
    words = ["sql", query, "--schema", "large=text", "--conf", f"spark.driver.memory={LEAST_HEAP}"]
    failed = pipeline(large, tmp_path / "runs", *words)
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    reason = failed.stderr.strip().splitlines()[-1]
    assert reason.startswith("error: Spark ran out of memory") and RAISE_IT in reason
