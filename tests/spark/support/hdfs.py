"""HDFS on this machine: one name node and one data node in a JVM, from Hadoop's own minicluster in Maven Central."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.spark.support.jars import HADOOP_VERSION, fetched
from tests.support.downloads import executable, locked

_PARTS = (
    ("org.apache.hadoop", "hadoop-client-minicluster", HADOOP_VERSION),
    ("org.junit.jupiter", "junit-jupiter-api", "5.11.4"),
    ("org.junit.platform", "junit-platform-commons", "1.11.4"),
    ("org.opentest4j", "opentest4j", "1.3.0"),
)
START_SECONDS = 120


@contextmanager
def hdfs(folder: Path) -> Iterator[str]:
    """Its address, hdfs://127.0.0.1:PORT; raises `Unavailable` if its jars (40 MB) cannot be had."""
    with locked(f"hadoop-minicluster-{HADOOP_VERSION}") as cache:
        jars = [fetched(cache, *part) for part in _PARTS]
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    classpath = ":".join([*map(str, jars), str(Path(spec.origin).parent / "jars" / "*")])
    details = folder / "details.json"
    command = [executable("java"), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classpath]
    manager = ["org.apache.hadoop.mapreduce.MiniHadoopClusterManager", "-nomr", "-format", "-datanodes", "1"]
    with (folder / "hdfs.log").open("w") as log:
        process = subprocess.Popen(
            [*command, *manager, "-nnport", "0", "-writeDetails", str(details)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        until = time.monotonic() + START_SECONDS
        while not details.exists() or not details.read_text():
            assert process.poll() is None and time.monotonic() < until, (folder / "hdfs.log").read_text()[-2000:]
            time.sleep(0.1)
        yield f"hdfs://127.0.0.1:{json.loads(details.read_text())['namenode_port']}"
    finally:
        process.kill()
        process.communicate()
