"""The public client against a real broker: records arrive once and in order, over faults."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker import BrokerThread
from tests.support.client import run

from levada import Client, ConnectionFailed, ErrorCode, KafkaError, RequestTimedOut, TopicPartition
from levada.client.consumer.consumer import Consumer
from levada.client.data import EARLIEST, LATEST, MAX_TIMESTAMP
from levada.client.producer.partitioner import partition_for_key
from levada.model import ConsumerRecord
from levada.testing import EmbeddedBroker

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


async def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    return [await anext(consumer) for _ in range(count)]


@asynccontextmanager
async def produced(client: Client, topic: str, count: int, **options: Any) -> AsyncIterator[None]:
    async with client.producer(**options) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, partition=0)
    yield


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_comes_back_as_it_was_sent(levada: EmbeddedBroker, codec: Any) -> None:
    """Key, value, headers and timestamp survive each codec, as do null and empty."""
    topic = levada.topic()
    headers = (("trace", b"1"), ("empty", b""), ("null", None))

    async def work(client: Client) -> None:
        async with client.producer(compression=codec) as producer:
            first = await producer.send_and_wait(
                topic, b"value", key=b"key", headers=headers, timestamp=1_700_000_000_000
            )
            second = await producer.send_and_wait(topic, None, key=b"")
            third = await producer.send_and_wait(topic, "é".encode() * 10_000)
        assert (first.topic, first.partition, first.offset, first.timestamp) == (
            topic,
            0,
            0,
            1_700_000_000_000,
        )
        assert (second.offset, third.offset) == (1, 2)
        async with client.consumer(topic) as consumer:
            records = await read(consumer, 3)
        assert records[0] == (topic, 0, 0, 1_700_000_000_000, b"key", b"value", headers)
        assert records[1][4:] == (b"", None, ())
        assert records[2].value == "é".encode() * 10_000

    run(levada, work)
    assert len(levada.records(topic)) == 3


@pytest.mark.skipif(
    sys.platform == "win32" or sys.implementation.name != "cpython", reason="uvloop is for CPython on Linux and macOS"
)
def test_the_client_runs_on_uvloop(levada: EmbeddedBroker) -> None:
    import uvloop

    topic = levada.topic()

    async def work(client: Client) -> None:
        async with produced(client, topic, 500), client.consumer(topic) as consumer:
            assert [record.offset for record in await read(consumer, 500)] == list(range(500))

    run(levada, work, uvloop.new_event_loop)


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_many_records_keep_their_order(levada: EmbeddedBroker, acks: Any) -> None:
    """Through batches of different sizes, with every level of acknowledgement."""
    topic = levada.topic()

    async def work(client: Client) -> None:
        async with client.producer(acks=acks, linger_ms=1, batch_bytes=2_000) as producer:
            answers = [await producer.send(topic, b"%d" % number) for number in range(3_000)]
            await producer.flush()
            assert all(answer.done() for answer in answers)
        assert [answer.result().offset for answer in answers] == ([-1] * 3_000 if acks == 0 else list(range(3_000)))
        async with client.consumer(topic) as consumer:
            assert [record.value for record in await read(consumer, 3_000)] == [b"%d" % n for n in range(3_000)]

    run(levada, work)


def test_keys_choose_partitions_and_records_without_keys_spread(levada: EmbeddedBroker) -> None:
    topic = levada.topic(partitions=4)

    async def work(client: Client) -> None:
        async with client.producer(linger_ms=0, batch_bytes=500) as producer:
            for number in range(20):
                key = b"key-%d" % number
                stored = await producer.send_and_wait(topic, b"", key=key)
                assert stored.partition == partition_for_key(key, 4)
            spread = [await producer.send(topic, b"x" * 100) for _ in range(400)]
            await producer.flush()
            assert {answer.result().partition for answer in spread} == {0, 1, 2, 3}
            assert (await producer.send_and_wait(topic, b"", key=b"k", partition=3)).partition == 3
            with pytest.raises(KafkaError, match="no partition 4"):
                await producer.send(topic, b"", partition=4)

    run(levada, work)


def test_linger_gathers_records_into_one_batch(levada: EmbeddedBroker) -> None:
    """100 sends within the linger are one request."""
    topic = levada.topic()

    async def work(client: Client) -> None:
        async with client.producer(linger_ms=60_000) as producer:
            answers = [await producer.send(topic, b"x") for _ in range(100)]
            await asyncio.sleep(0)
            assert not any(answer.done() for answer in answers)
            await producer.flush()
            assert [answer.result().offset for answer in answers] == list(range(100))

    run(levada, work)
    log = levada._server.broker.partitions[topic, 0].log
    assert len(list(levada._call(lambda: list(log.headers(0))))) == 1


def test_a_full_buffer_makes_the_sender_wait(levada: EmbeddedBroker) -> None:
    topic = levada.topic()

    async def work(client: Client) -> None:
        async with client.producer(linger_ms=0, buffer_bytes=10_000, batch_bytes=4_000) as producer:
            for _ in range(200):
                await producer.send(topic, b"x" * 1_000)
                assert producer.buffered_bytes <= 10_000
            await producer.send(topic, b"x" * 50_000)  # alone it may pass the limit
            await producer.flush()
            assert producer.buffered_bytes == 0

    run(levada, work)
    assert len(levada.records(topic)) == 201


@pytest.mark.parametrize(
    "error",
    ["NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_OR_PARTITION", "NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT"],
)
def test_what_may_heal_is_tried_again(levada: EmbeddedBroker, error: str) -> None:
    """With the same sequence numbers, so each record is stored once and in order."""
    topic = levada.topic(partitions=2)

    async def work(client: Client) -> None:
        async with client.producer(linger_ms=0, batch_bytes=100) as producer:
            await producer.send_and_wait(topic, b"0", partition=0)
            levada.fail_next("produce", error, times=2)
            for number in range(1, 50):
                await producer.send(topic, b"%d" % number, partition=number % 2)

    run(levada, work, retry_backoff_ms=5)
    values = [[int(record.value or b"") for record in levada.records(topic) if record.partition == p] for p in (0, 1)]
    assert values == [list(range(0, 50, 2)), list(range(1, 50, 2))]


@pytest.mark.parametrize("api", ["produce", "metadata", "init_producer_id"])
def test_a_lost_connection_loses_no_record(levada: EmbeddedBroker, api: str) -> None:
    topic = levada.topic()

    async def work(client: Client) -> None:
        async with client.producer(linger_ms=0, batch_bytes=100) as producer:
            if api != "init_producer_id":
                await producer.send_and_wait(topic, b"0")
            else:
                await client.topic(topic)
                await producer.send(topic, b"0")
            levada.drop(api)
            if api == "metadata":
                client.invalidate_metadata(topic)
            for number in range(1, 20):
                await producer.send(topic, b"%d" % number)

    run(levada, work, retry_backoff_ms=5)
    assert [record.value for record in levada.records(topic)] == [b"%d" % number for number in range(20)]


def test_a_batch_that_was_stored_although_the_answer_was_lost_is_stored_once(levada: EmbeddedBroker) -> None:
    """The request times out after the append; the second attempt carries the same sequence."""
    topic = levada.topic()

    async def work(client: Client) -> None:
        async with client.producer(linger_ms=0) as producer:
            await producer.send_and_wait(topic, b"0")
            levada.delay("produce", 0.5)
            answer = await producer.send(topic, b"1")
            assert (await answer).offset == 1
            assert (await producer.send_and_wait(topic, b"2")).offset == 2

    run(levada, work, request_timeout_ms=200, retry_backoff_ms=5)
    assert [record.value for record in levada.records(topic)] == [b"0", b"1", b"2"]


def test_a_failure_is_reported_and_the_next_record_goes_on(levada: EmbeddedBroker) -> None:
    topic = levada.topic(max_message_bytes=2_000)

    async def work(client: Client) -> None:
        async with client.producer() as producer:
            assert (await producer.send_and_wait(topic, b"small")).offset == 0
            with pytest.raises(KafkaError) as caught:
                await producer.send_and_wait(topic, bytes(3_000))
            assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
            assert (await producer.send_and_wait(topic, b"small again")).offset == 1

    run(levada, work)


def test_a_batch_that_is_too_large_goes_in_halves(levada: EmbeddedBroker) -> None:
    topic = levada.topic(max_message_bytes=2_000)

    async def work(client: Client) -> None:
        async with client.producer(linger_ms=1_000) as producer:
            answers = [await producer.send(topic, b"%03d" % number + bytes(100)) for number in range(100)]
            await producer.flush()
            assert [answer.result().offset for answer in answers] == list(range(100))

    run(levada, work)
    assert [record.value[:3] for record in levada.records(topic) if record.value] == [b"%03d" % n for n in range(100)]


def test_a_record_is_given_up_at_its_deadline(levada: EmbeddedBroker) -> None:
    topic = levada.topic()

    async def work(client: Client) -> None:
        async with client.producer(linger_ms=0, delivery_timeout_ms=50) as producer:
            await producer.send_and_wait(topic, b"0")
            levada.fail_next("produce", "NOT_ENOUGH_REPLICAS", times=100)
            with pytest.raises(KafkaError) as caught:
                await producer.send_and_wait(topic, b"1")
            assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
            levada._call(levada.faults.clear)
            assert (await producer.send_and_wait(topic, b"2")).offset == 1

    run(levada, work, retry_backoff_ms=5)


def test_leaving_with_an_error_gives_up_what_waits(levada: EmbeddedBroker) -> None:
    topic = levada.topic()

    async def work(client: Client) -> None:
        producer = client.producer(linger_ms=60_000)
        answer = await producer.send(topic, b"never")
        await producer.__aexit__(ValueError, ValueError(), None)
        assert answer.cancelled()
        with pytest.raises(RuntimeError, match="closed"):
            await producer.send(topic, b"late")

    run(levada, work)
    assert levada.records(topic) == []


def test_a_topic_made_again_is_another_topic(levada: EmbeddedBroker) -> None:
    """The producer learns the new id and starts its sequence anew."""
    name = levada.topic()

    async def work(client: Client) -> None:
        async with client.producer(linger_ms=0) as producer:
            for number in range(3):
                await producer.send_and_wait(name, b"old %d" % number)
            await client.admin.delete_topic(name)
            await client.admin.create_topic(name)
            assert (await producer.send_and_wait(name, b"new")).offset == 0

    run(levada, work, retry_backoff_ms=5)


def test_a_bug_on_the_way_to_the_leader_fails_records_and_leaves_none_waiting(
    levada: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [levada.topic(), levada.topic()]
    bugs: list[str] = []

    async def broken(*_: Any, **__: Any) -> int:
        raise ZeroDivisionError

    async def work(client: Client) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context["message"]))
        monkeypatch.setattr(client, "leader", broken)
        async with client.producer() as producer:
            answers = [await producer.send(topic, b"x") for topic in topics]
            for topic in topics:
                client.invalidate_metadata(topic)
            await producer.flush()
            assert [type(answer.exception()) for answer in answers] == [ZeroDivisionError] * 2

    run(levada, work)
    assert bugs == ["a producer's task failed"]


def test_what_is_not_bytes_is_refused_at_once(levada: EmbeddedBroker) -> None:
    topic = levada.topic()

    async def work(client: Client) -> None:
        async with client.producer() as producer:
            with pytest.raises(TypeError, match="bytes, not str"):
                await producer.send(topic, "text")  # type: ignore[arg-type]
            for timestamp in (-2, 1 << 63):
                with pytest.raises(ValueError, match="milliseconds"):
                    await producer.send(topic, b"x", timestamp=timestamp)
            with pytest.raises(TypeError):
                await producer.send(topic, b"", timestamp="now")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="bytes, not int"):
                await producer.send(topic, b"", headers=[("n", 1)])  # type: ignore[list-item]
            broken = await producer.send(topic, b"", headers=[(b"n", b"")])  # type: ignore[list-item]
            with pytest.raises(AttributeError):
                await broken
            await producer.send_and_wait(topic, b"fine")

    def expected(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        assert context["message"] == "a producer's task failed"

    async def quiet(client: Client) -> None:
        asyncio.get_running_loop().set_exception_handler(expected)
        await work(client)

    run(levada, quiet)
    assert [record.value for record in levada.records(topic)] == [b"fine"]


def test_closing_a_consumer_ends_a_wait(levada: EmbeddedBroker) -> None:
    topic = levada.topic()

    async def work(client: Client) -> None:
        consumer = client.consumer(topic)
        await consumer.start()
        waiting = asyncio.create_task(consumer.poll())
        await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(RuntimeError, match="the consumer is closed"):
            await waiting

    run(levada, work)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acks": 2}, "acks"),
        ({"acks": 1, "idempotent": True}, "idempotent"),
        ({"compression": "brotli"}, "compression"),
    ],
)
def test_a_producer_cannot_be_made_of_nonsense(levada: EmbeddedBroker, options: Any, message: str) -> None:
    async def work(client: Client) -> None:
        with pytest.raises(ValueError, match=message):
            client.producer(**options)

    run(levada, work)


def test_where_a_consumer_may_start(levada: EmbeddedBroker) -> None:
    """Earliest, latest, an offset, the last few, a time, an offset for each partition."""
    topic = levada.topic()

    async def offset(client: Client, start: Any) -> int:
        async with client.consumer(topic, start=start) as consumer:
            return consumer.position((topic, 0))

    async def work(client: Client) -> None:
        async with client.producer(linger_ms=0) as producer:
            for number in range(10):
                await producer.send_and_wait(topic, b"%d" % number, timestamp=1_700_000_000_000 + number * 1_000)
        assert await offset(client, "earliest") == 0
        assert await offset(client, "latest") == 10
        assert await offset(client, 4) == 4
        assert await offset(client, -3) == 7
        assert await offset(client, -30) == 0
        assert await offset(client, datetime.fromtimestamp(1_700_000_003, UTC)) == 3
        assert await offset(client, datetime.fromtimestamp(1_800_000_000, UTC)) == 10
        assert await offset(client, {TopicPartition(topic, 0): 6}) == 6
        with pytest.raises(ValueError, match="cannot start"):
            client.consumer(topic, start="somewhere")  # type: ignore[call-overload]

    run(levada, work)


def test_seek_and_positions(levada: EmbeddedBroker) -> None:
    """A consumer may go back, into the middle of a batch too."""
    topic = levada.topic()

    async def work(client: Client) -> None:
        async with produced(client, topic, 100), client.consumer(topic) as consumer:
            place = TopicPartition(topic, 0)
            assert consumer.assignment == (place,)
            assert [record.offset for record in await read(consumer, 10)] == list(range(10))
            assert consumer.position(place) == 10
            consumer.seek(place, 42)
            assert (await anext(consumer)).value == b"42"
            consumer.seek(place, 3)
            assert [record.offset for record in await consumer.poll()] == list(range(3, 100))
            assert (consumer.position(place), consumer.high_watermark(place)) == (100, 100)
            assert await consumer.poll(timeout_ms=50) == []
            await consumer.seek_to(-2)
            assert [record.offset for record in await consumer.poll()] == [98, 99]
            assert await consumer.beginning_offsets() == {place: 0}
            assert await consumer.end_offsets() == {place: 100}
            with pytest.raises(KafkaError, match="not assigned"):
                consumer.seek((topic, 7), 0)
            with pytest.raises(ValueError, match="no offset"):
                consumer.seek(place, -1)

    run(levada, work)


def test_an_offset_that_the_log_does_not_hold(levada: EmbeddedBroker) -> None:
    topic = levada.topic()

    async def work(client: Client) -> None:
        async with produced(client, topic, 5), client.consumer(topic, start=1_000) as consumer:
            with pytest.raises(KafkaError) as caught:
                await consumer.poll()
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
            consumer.seek((topic, 0), 4)
            assert (await anext(consumer)).offset == 4
        async with client.consumer(topic, start=1_000, reset="earliest") as consumer:
            assert (await anext(consumer)).offset == 0

    run(levada, work)


def test_a_waiting_consumer_gets_what_comes(levada: EmbeddedBroker) -> None:
    """The long poll is open before the record is there."""
    topic = levada.topic(partitions=3)

    async def work(client: Client) -> None:
        async with (
            client.consumer(topic, start="latest") as consumer,
            client.producer(linger_ms=0) as producer,
        ):
            coming = asyncio.create_task(read(consumer, 30))
            for number in range(30):
                await producer.send_and_wait(topic, b"%d" % number, partition=number % 3)
            assert sorted(int(record.value or b"") for record in await coming) == list(range(30))

    run(levada, work)


def test_a_small_buffer_still_brings_everything(levada: EmbeddedBroker) -> None:
    topic = levada.topic()

    async def work(client: Client) -> None:
        async with (
            produced(client, topic, 2_000, batch_bytes=3_000),
            client.consumer(topic, fetch_bytes=1, buffer_bytes=1) as consumer,
        ):
            assert [record.offset for record in await read(consumer, 2_000)] == list(range(2_000))

    run(levada, work)


@pytest.mark.parametrize("fault", ["NOT_LEADER_OR_FOLLOWER", "drop"])
def test_a_consumer_rides_out_a_fault(levada: EmbeddedBroker, fault: str) -> None:
    topic = levada.topic()

    async def work(client: Client) -> None:
        async with produced(client, topic, 10), client.consumer(topic, fetch_wait_ms=20) as consumer:
            await read(consumer, 5)
            if fault == "drop":
                levada.drop("fetch", times=2)
            else:
                levada.fail_next("fetch", fault, times=2)
            async with produced(client, topic, 10):
                assert [record.offset for record in await read(consumer, 15)] == list(range(5, 20))

    run(levada, work, retry_backoff_ms=5)


def test_offsets_of_partitions_by_time(levada: EmbeddedBroker) -> None:
    topic = levada.topic()

    async def work(client: Client) -> None:
        place = TopicPartition(topic, 0)
        async with produced(client, topic, 7):
            levada.fail_next("list_offsets", "NOT_LEADER_OR_FOLLOWER")
            assert (await client.list_offsets({place: LATEST}))[place].offset == 7
            assert (await client.list_offsets({place: EARLIEST}))[place].offset == 0
            assert (await client.list_offsets({place: MAX_TIMESTAMP}))[place].offset in range(7)
        with pytest.raises(KafkaError, match="no partition 9"):
            await client.list_offsets({TopicPartition(topic, 9): LATEST})

    run(levada, work, retry_backoff_ms=5)


def test_partitions_that_were_added_are_found_in_time(levada: EmbeddedBroker) -> None:
    topic = levada.topic()

    async def work(client: Client) -> None:
        assert len((await client.topic(topic)).partitions) == 1
        async with Client(levada.bootstrap) as other:
            await other.admin.create_partitions(topic, 3)
        while len((await client.topic(topic)).partitions) == 1:
            await asyncio.sleep(0.005)

    run(levada, work, metadata_max_age_ms=20)


def test_administration(levada: EmbeddedBroker) -> None:
    async def work(client: Client) -> None:
        admin = client.admin
        topic_id = await admin.create_topic("admin-1", partitions=2, configs={"retention.ms": "1000"})
        assert (await client.topic("admin-1")).topic_id == topic_id
        with pytest.raises(KafkaError) as caught:
            await admin.create_topic("admin-1")
        assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        await admin.create_partitions("admin-1", 5)
        assert len((await client.topic("admin-1", refresh=True)).partitions) == 5
        await admin.alter_configs("topic", "admin-1", {"retention.ms": None, "segment.bytes": "100000"})
        settings = {entry.name: entry for entry in await admin.describe_configs("topic", "admin-1")}
        assert (settings["segment.bytes"].value, settings["segment.bytes"].source) == ("100000", "topic")
        assert settings["retention.ms"].source == "default"
        only = await admin.describe_configs("broker", "1", ["node.id"])
        assert [entry.name for entry in only] == ["node.id"]
        await admin.delete_topic("admin-1")
        with pytest.raises(KafkaError) as caught:
            await admin.delete_topic("admin-1")
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(levada, work)


def test_what_is_not_there(levada: EmbeddedBroker) -> None:
    async def work(client: Client) -> None:
        with pytest.raises(KafkaError) as caught:
            await client.topic("no-such-topic")
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(KafkaError, match="there is no broker 99"):
            await client.connection(99)
        with pytest.raises(ValueError, match="no API 'levitate'"):
            await client.request("levitate", object())

    run(levada, work)


def test_a_request_without_an_answer_times_out(levada: EmbeddedBroker) -> None:
    async def work(client: Client) -> None:
        levada.delay("metadata", 30)
        with pytest.raises(RequestTimedOut, match="within 1 s"):
            await client.metadata()
        await client.metadata()  # on a connection of its own

    run(levada, work, request_timeout_ms=1_000)


def test_a_closed_client_says_so(levada: EmbeddedBroker) -> None:
    async def work() -> None:
        async with Client(levada.bootstrap) as client:
            pass
        with pytest.raises(ConnectionFailed, match="closed"):
            await client.metadata()

    asyncio.run(work())


def test_the_first_address_that_answers_is_enough(levada: EmbeddedBroker) -> None:
    async def work() -> None:
        async with Client(f"127.0.0.1:1,{levada.bootstrap}") as client:
            assert (await client.metadata()).brokers
        with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1: Connection refused"):
            async with Client("127.0.0.1:1"):
                pass

    asyncio.run(work())


def test_a_leader_that_was_not_available_is_looked_up_again(tmp_path: Path) -> None:
    """A partition has no leader while its log is being opened; the client must not keep that until its metadata age."""

    with BrokerThread(tmp_path) as broker:

        async def work() -> None:
            async with Client(broker.bootstrap) as client, Client(broker.bootstrap) as other:
                await other.admin.create_topic("orders")
                first = broker.partition("orders")
                broker.call(lambda: broker.broker.log_dirs.fail_partition(first, "a batch is corrupt"))
                with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE"):
                    await client.leader(TopicPartition("orders", 0), refresh=True)
                await other.admin.delete_topic("orders")
                await other.admin.create_topic("orders")
                assert await client.leader(TopicPartition("orders", 0)) == broker.broker.node_id

        asyncio.run(asyncio.wait_for(work(), 60))
