"""One Spark and one broker for all tests of the connector, and topics of their own."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.support.jars import jar_settings, stock_connector
from tests.support.downloads import Unavailable, must_be_had

from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.spark.support.connector import Levada, Stock
    from tests.spark.support.plain import Plain

# For each Java that a test starts: it is over before the second compiler has paid for itself.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """Two cores, and three attempts of a task."""
    from levada.spark import session

    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    } | jar_settings()
    own = session("levada tests", master="local[2,3]", **settings)
    yield own
    own.stop()
    end_java()


def end_java() -> None:
    """The JVM outlives its session; it ends when its gateway and standard input are closed."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(120)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def broker(levada: EmbeddedBroker) -> EmbeddedBroker:
    """The broker of these tests; the topics made with `broker.topic()` end with the test."""
    return levada


@pytest.fixture
def stock(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> "Iterator[Stock]":
    """The stock connector on the same session and broker."""
    from tests.spark.support.connector import Stock

    try:
        stock_connector()
    except Unavailable as reason:
        must_be_had("the stock connector", reason)
    own = Stock(spark, broker, tmp_path)
    yield own
    own.stop()


@pytest.fixture
def topics(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> "Iterator[Levada]":
    """Our connector on the same session and broker."""
    from tests.spark.support.connector import Levada

    own = Levada(spark, broker, tmp_path)
    yield own
    own.stop()


@pytest.fixture
def plain(broker: EmbeddedBroker) -> "Plain":
    """Our connector without Spark."""
    from tests.spark.support.plain import Plain

    return Plain(broker)


@pytest.fixture(scope="session")
def registry(levada_broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a schema registry whose schemas are in topics of the same broker."""
    from tests.spark.support.schema_registry import schema_registry

    with ExitStack() as opened:
        try:
            url = opened.enter_context(schema_registry(levada_broker.bootstrap, tmp_path_factory.mktemp("registry")))
        except Unavailable as reason:
            must_be_had("Apicurio Registry", reason)
        yield url


@pytest.fixture(scope="session", autouse=True)
def nothing_left_open() -> Iterator[None]:
    """Close what the tests opened through `levada.spark.blocking` before the broker stops."""
    yield
    from levada.spark import blocking

    blocking.close()
