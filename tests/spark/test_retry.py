"""Readers and writers wait for brokers that are away for a while, and fail if they stay away."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import StreamingQueryException
from tests.spark.support.connector import SOON, Levada
from tests.spark.support.feeds import TIMEOUT_S
from tests.spark.support.outages import RestartedServer
from tests.spark.support.plain import Plain, Stream
from tests.spark.support.queries import start, written
from tests.spark.support.sink_tasks import TEXT, Job, Query, rows, structs, visible
from tests.support.broker import free_port

from levada.spark.blocking import BrokersUnreachable
from levada.spark.source import LevadaDataSource
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEVER = 3_600_000
SUBSCRIBED: dict[str, Any] = {"subscribe": "events", "startingOffsets": "earliest"}
BIG = ["x" * 1000] * 3000  # more than is gathered before it is sent


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestartedServer]:
    with RestartedServer(tmp_path) as own:
        plain(own).create("events", 2)
        yield own


def plain(server: RestartedServer) -> Plain:
    return Plain(cast(EmbeddedBroker, server))


# Who reads.


def test_a_reader_waits_for_brokers_at_each_step(server: RestartedServer) -> None:
    topics = plain(server)
    topics.produce("events", ["a"])
    server.die()
    stream = Stream(topics.streaming(**SUBSCRIBED))
    assert server.was_missed()
    server.die()
    end = stream.reader.latestOffset(stream.at, stream.reader.getDefaultReadLimit())
    assert server.was_missed()
    server.die()
    assert stream.reader.partitions(stream.at, end)
    assert server.was_missed()
    server.die()
    assert stream.batch() == ["a"]
    assert server.was_missed()


def test_brokers_that_stay_away_are_reported(server: RestartedServer) -> None:
    topics = plain(server)
    stream = Stream(topics.streaming(**SUBSCRIBED | {"kafka.default.api.timeout.ms": 1000}))
    server.stop(signal.SIGTERM)
    message = rf"no response from the brokers at {server.bootstrap} \(option kafka.bootstrap.servers\) for [1-9]\d* s: "
    with pytest.raises(BrokersUnreachable, match=message):
        stream.batch()
    server.start()
    topics.produce("events", ["a"])
    assert stream.batch() == ["a"]


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_brokers_that_were_never_there_are_reported_soon(server: RestartedServer, host: str) -> None:
    address = f"{host}:{free_port()}"
    options = SUBSCRIBED | {
        "kafka.bootstrap.servers": address,
        "kafka.default.api.timeout.ms": NEVER,
        "kafka.socket.connection.setup.timeout.ms": 500,
    }
    reader = plain(server).streaming(**options)
    message = f"{address}.* s: (cannot connect to )?{address}"  # or the resolver times out
    with pytest.raises(BrokersUnreachable, match=message):
        reader.initialOffset()


def test_a_broker_that_stands_still_is_waited_for_by_those_that_never_reached_it(
    server: RestartedServer,
) -> None:
    """On a machine that does for a while it is no mistake in an option."""
    topics = plain(server)
    topics.produce("events", ["a"])
    reader = topics.streaming(**SUBSCRIBED | {"kafka.socket.connection.setup.timeout.ms": 300})
    server.stand_still()
    assert Stream(reader).batch() == ["a"]
    assert server.was_missed()


# Who writes.


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_job_waits_for_brokers(server: RestartedServer, delivery: str) -> None:
    """Before it begins, between two requests of a task, and before it is committed."""

    def batches() -> Iterator[Any]:
        yield from rows(*BIG)
        server.die()
        yield from rows(*BIG)

    job = Job(cast(EmbeddedBroker, server), topic="events", delivery=delivery)
    server.die()
    first = job.attempt(rows("a"), 0)
    assert server.was_missed()
    second = job.attempt(batches(), 1)
    assert server.was_missed()
    if delivery == "exactly_once":
        server.die()
    job.writer.commit([first, second])
    assert server.was_missed()
    assert visible(server.bootstrap, "events") == ["a", *BIG, *BIG]


def test_a_query_waits_for_brokers(server: RestartedServer) -> None:
    """At its first batch and at later ones: before a task begins, and before the driver commits."""
    query = Query(server.bootstrap, "patient", "events")
    for batch in range(2):
        server.die()
        message = query.attempt(batch, [batch])
        assert server.was_missed()
        server.die()
        query.commit(batch, message)
        assert server.was_missed()
    assert query.visible() == ["0", "1"]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_writer_tells_of_brokers_that_were_never_there(server: RestartedServer, delivery: str) -> None:
    given = {"kafka.bootstrap.servers": f"127.0.0.1:{free_port()}", "kafka.request.timeout.ms": 500}
    job = Job(cast(EmbeddedBroker, server), topic="events", delivery=delivery, **given)
    with pytest.raises(BrokersUnreachable, match=f"no response from the brokers at {given['kafka.bootstrap.servers']}"):
        job.attempt(rows("a"))


@pytest.mark.parametrize("topic", [{"topic": "events"}, {}])
def test_a_driver_tells_of_brokers_that_were_never_there_before_it_has_a_writer(
    topic: dict[str, str],
) -> None:
    given = {"kafka.bootstrap.servers": f"127.0.0.1:{free_port()}", "kafka.request.timeout.ms": "500"}
    source = LevadaDataSource(given | {"kafka.socket.connection.setup.timeout.ms": "500"} | topic)
    columns = structs(value=TEXT, topic=TEXT)
    for make in (source.writer, source.streamWriter):
        with pytest.raises(BrokersUnreachable, match="no response from the brokers"):
            make(columns, False)


def test_a_job_that_found_no_broker_has_nothing_to_abort_and_does_not_wait_for_one(
    server: RestartedServer,
) -> None:
    given = {"kafka.bootstrap.servers": f"127.0.0.1:{free_port()}", "kafka.delivery.timeout.ms": NEVER}
    short = {"kafka.request.timeout.ms": 500, "kafka.socket.connection.setup.timeout.ms": 500}
    for name in ({}, {"txnAppId": "app", "txnVersion": 1}):
        job = Job(cast(EmbeddedBroker, server), topic="events", **given, **short, **name)
        with pytest.raises(BrokersUnreachable, match="no response from the brokers"):
            job.writer.abort([None, None])


def test_a_writer_tells_of_brokers_that_stay_away(server: RestartedServer) -> None:
    def batches() -> Iterator[Any]:
        yield from rows(*BIG)
        server.stop(signal.SIGKILL)
        yield from rows(*BIG)

    short = {"kafka.delivery.timeout.ms": 1000, "kafka.request.timeout.ms": 500}
    job = Job(cast(EmbeddedBroker, server), topic="events", delivery="at_least_once", **short)
    with pytest.raises(BrokersUnreachable, match=f"no response from the brokers at {server.bootstrap} .* for 1 s"):
        job.attempt(batches())
    server.start()


# On Spark.


def test_a_query_outlives_a_broker_that_restarts(
    spark: "SparkSession", server: RestartedServer, tmp_path: Path
) -> None:
    """From topic to topic and to files."""
    topics = Levada(spark, cast(EmbeddedBroker, server), tmp_path)
    topics.create("copies")
    stream = topics.stream(**SUBSCRIBED)
    writer = stream.select("value").writeStream.format("levada").option("topic", "copies")
    writer = writer.option("kafka.bootstrap.servers", server.bootstrap)
    copies = writer.option("checkpointLocation", str(tmp_path / "copies")).start()
    files = start(stream, tmp_path, SOON)
    try:
        for round_ in ("a", "b"):
            topics.produce("events", [round_])
            copies.processAllAvailable()
            files.processAllAvailable()
            server.die()
            server.be_back()
        topics.produce("events", ["c"])
        copies.processAllAvailable()
        files.processAllAvailable()
    finally:
        copies.stop()
        files.stop()
    assert visible(server.bootstrap, "copies") == written(topics, tmp_path) == ["a", "b", "c"]


def test_a_query_whose_brokers_stay_away_goes_on_when_it_is_started_again(
    spark: "SparkSession", server: RestartedServer, tmp_path: Path
) -> None:
    topics = Levada(spark, cast(EmbeddedBroker, server), tmp_path)
    stream = topics.stream(**SUBSCRIBED, kafka__default_api_timeout_ms=1000)
    topics.produce("events", ["a"])
    query = start(stream, tmp_path, SOON)
    query.processAllAvailable()
    server.stop(signal.SIGTERM)
    with pytest.raises(StreamingQueryException, match=f"no response from the brokers at {server.bootstrap}"):
        query.awaitTermination(TIMEOUT_S)
    server.start()
    topics.produce("events", ["b"])
    query = start(stream, tmp_path, SOON)
    query.processAllAvailable()
    query.stop()
    assert written(topics, tmp_path) == ["a", "b"]
