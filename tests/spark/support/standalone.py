"""Spark's standalone cluster: a master and a worker, each a process."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from tests.spark.support.feeds import TIMEOUT_S
from tests.support.broker import free_port

from levada.spark.session.java import java_home

BIN = Path(pyspark.__file__).parent / "bin"


def with_java(environment: dict[str, str]) -> dict[str, str]:
    """These variables, and Java."""
    home = java_home()
    return environment | ({"JAVA_HOME": home} if home is not None else {}) | {"SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def daemon(name: str, folder: Path, is_ready: Callable[[str], bool], *arguments: str) -> Iterator[None]:
    """A process of Spark's own cluster, from when its log says that it is ready to the end of the block."""
    environment = with_java(dict(os.environ)) | {"SPARK_DAEMON_MEMORY": "256m"}
    log = folder / f"{name}.log"
    command = [str(BIN / "spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}", "--host", "127.0.0.1"]
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


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """A master and a worker; the address of the master."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    worker = ["--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work"), address]
    with (
        daemon("Master", folder, lambda log: "elected leader" in log, "--port", str(port)),
        daemon("Worker", folder, lambda log: "Successfully registered with master" in log, *worker),
    ):
        yield address
