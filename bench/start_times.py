"""How long small things take to start: `topic list` of the command line, and the pytest fixture."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bench.brokers import Broker, Levada

RUNS = 5
WITH_FIXTURE = "def test_with_fixture(levada):\n    assert levada.bootstrap\n"
WITHOUT = "def test_without():\n    pass\n"


def seconds(command: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    """Of a process from its start to its end; the median of some runs after one that is not counted."""
    times = []
    for _ in range(RUNS + 1):
        started = time.perf_counter()
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return median(times[1:])


def topic_list(broker: Broker) -> float:
    """Of `topic list` as a process."""
    return seconds(broker.topic_list_command(), broker.environment())


def fixture(broker: Levada) -> float:
    """Of a pytest run with one test that uses the fixture, without that of a run with an empty test."""
    with tempfile.TemporaryDirectory(prefix="levada-bench-") as folder:
        times = []
        for name, text in (("test_with_fixture.py", WITH_FIXTURE), ("test_without.py", WITHOUT)):
            path = Path(folder, name)
            path.write_text(text)
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder, str(path)]
            times.append(seconds(command, {**broker.environment(), "PYTEST_ADDOPTS": ""}))
    return times[0] - times[1]


def measure(broker: Broker) -> dict[str, float]:
    """By the names of the report."""
    found = {"topic_list_s": topic_list(broker)}
    return found | {"fixture_s": fixture(broker)} if isinstance(broker, Levada) else found
