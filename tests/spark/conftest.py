"""What the tests of the connector share: one Spark and one broker for all of them, and topics of their own."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.spark.jars import stock_settings

from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Two cores, and three attempts of a task."""
    from levada.spark import session

    settings = {"spark.sql.shuffle.partitions": "2"} | stock_settings()
    own = session("levada tests", master="local[2,3]", **settings)
    yield own
    own.stop()


@pytest.fixture
def broker(levada: EmbeddedBroker) -> EmbeddedBroker:
    """The broker of these tests; the topics made with `broker.topic()` end with the test."""
    return levada


@pytest.fixture(scope="session", autouse=True)
def nothing_left_open() -> Iterator[None]:
    """Close what the tests opened through `levada.spark.blocking` before the broker stops."""
    yield
    from levada.spark import blocking

    blocking.close()
