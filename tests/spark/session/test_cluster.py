"""Executors in processes of their own: local-cluster, and a standalone master and worker."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from tests.spark.support import cluster_program
from tests.spark.support.feeds import TIMEOUT_S, Feeds
from tests.support.broker import free_port

from levada.spark.session.java import java_home
from levada.testing import EmbeddedBroker

ROWS = 200
DONE_S = 210  # for a program with a cluster of its own to start: a minute, and more on a busy machine
SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")


def run_on(master: str, broker: EmbeddedBroker, folder: Path) -> dict[str, int]:
    """What the program says of a topic with known records."""
    topic = broker.topic(partitions=2)
    for partition in range(2):
        Feeds(broker).produce(topic, range(partition * ROWS, (partition + 1) * ROWS), partition)
    command = [sys.executable, cluster_program.__file__, master, broker.bootstrap, topic, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DONE_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_two_executors_on_one_machine(broker: EmbeddedBroker, tmp_path: Path) -> None:
    found = run_on("local-cluster[2,1,1024]", broker, tmp_path)
    assert found == {"batch": 2 * ROWS, "stream": 2 * ROWS, "executors": 2}


@contextmanager
def daemon(name: str, folder: Path, is_ready: Callable[[str], bool], *arguments: str) -> Iterator[None]:
    """A process of Spark's own cluster, from when its log says that it is ready to the end of the block."""
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    home = java_home()
    if home is not None:
        environment["JAVA_HOME"] = home
    log = folder / f"{name}.log"
    command = [SPARK_CLASS, f"org.apache.spark.deploy.{name.lower()}.{name}", "--host", "127.0.0.1"]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*command, "--webui-port", "0", *arguments], env=environment, cwd=folder, stderr=output
        )
    try:
        deadline = time.monotonic() + 2 * TIMEOUT_S
        while not is_ready(log.read_text()):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """A master and a worker, each a process; the address of the master."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    worker = ["--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / "work"), address]
    with (
        daemon("Master", tmp_path, lambda log: "elected leader" in log, "--port", str(port)),
        daemon("Worker", tmp_path, lambda log: "Successfully registered with master" in log, *worker),
    ):
        yield address


def test_a_cluster_of_separate_processes(standalone: str, broker: EmbeddedBroker, tmp_path: Path) -> None:
    found = run_on(standalone, broker, tmp_path)
    assert found == {"batch": 2 * ROWS, "stream": 2 * ROWS, "executors": 1}
