"""A Spark Declarative Pipelines project over topics, run as users run it, and Spark Connect behind it.

Both start a Connect server, for which Spark has one port: they are in one file, so that they never run at once.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.spark.support.feeding import results

from levada.pipelines.topics import create_topics
from levada.spark.session.java import java_home
from levada.testing import EmbeddedBroker

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 220
PROJECT = ROOT / "examples" / "declarative"
# Flows start at the same moment: what they put into the map they share must be there before.
PREPARED = """
from pyspark.sql.session import SparkSession
from levada.spark.session.session import STREAM_VARIABLES
sources = SparkSession._instantiatedSession._jsparkSession.sessionState().dataSourceManager()
assert STREAM_VARIABLES.keys() <= dict(sources.lookupDataSource("levada").dataSourceCls().envVars()).keys()
"""


def order(broker: EmbeddedBroker, minutes: range) -> None:
    """Two shops, an order of each a minute: of 10 and of as much as the minute, tenfold."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for minute in minutes:
        for shop, amount in (("tea", 10.0), ("coffee", minute * 10.0)):
            value = {"shop": shop, "amount": amount, "ts": f"2026-11-15T12:{minute:02d}:30Z"}
            producer.produce("orders", json.dumps(value), shop)
    assert producer.flush(30) == 0


def run(broker: EmbeddedBroker, project: Path) -> None:
    environment = {
        **os.environ,
        "LEVADA_BOOTSTRAP": broker.bootstrap,
        "PYSPARK_PYTHON": sys.executable,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",  # the project leaves it to the machine in which zone times are written
    }
    home = java_home()
    if home is not None:
        environment["JAVA_HOME"] = home
    with subprocess.Popen(
        ["spark-pipelines", "run"],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # it starts processes of its own
    ) as process:
        try:
            printed, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    print(printed)
    assert process.returncode == 0, re.findall("^.*(?:Exception|Error): .*$", printed, re.MULTILINE)[:5]


@pytest.mark.slow
def test_the_project_goes_on_where_it_ended(broker: EmbeddedBroker, tmp_path: Path) -> None:
    project = tmp_path / "declarative"
    shutil.copytree(PROJECT, project)
    with (project / "transformations" / "orders.py").open("a") as declared:
        declared.write(PREPARED)
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/levada-declarative", f"file://{tmp_path}/storage"))
    create_topics(broker.bootstrap, ["orders", "large-orders", "order-totals"])
    order(broker, range(12))
    run(broker, project)
    first = results(broker, "large-orders")
    assert [one["amount"] for one in first] == [100.0, 110.0]
    order(broker, range(12, 15))
    run(broker, project)
    assert sorted(one["amount"] for one in results(broker, "large-orders")) == [
        100.0,
        110.0,
        120.0,
        130.0,
        140.0,
    ]
    totals = results(broker, "order-totals")
    coffee = sorted((one["until"], one["total"]) for one in totals if one["shop"] == "coffee")
    assert coffee == [(f"2026-11-15T12:{minute + 1:02d}:00.000Z", minute * 10.0) for minute in range(13)]


CONNECT = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql.session import SparkSession as ServersOwn
from tests.spark.support.environment import shared_by_streams
from levada.spark import session
from levada.spark.session.session import STREAM_VARIABLES

spark = SparkSession.builder.remote("local[1]").getOrCreate()
assert session() is spark
names = shared_by_streams(ServersOwn._instantiatedSession).keys()
assert STREAM_VARIABLES.keys() <= names
bootstrap, topic = sys.argv[1:]
frame = spark.readStream.format("levada").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
query = frame.writeStream.format("noop").trigger(availableNow=True).start()
assert query.awaitTermination(60)
assert shared_by_streams(ServersOwn._instantiatedSession).keys() == names
print("all")
"""


def test_a_server_of_connect_in_this_process_is_ready_too(broker: EmbeddedBroker) -> None:
    command = [sys.executable, "-c", CONNECT, broker.bootstrap, broker.topic()]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert done.stdout.split() == ["all"], done.stderr
