"""The public client in transactions: atomic, exactly once, with fencing."""

import asyncio
import random
import subprocess
import sys
from itertools import count
from typing import Any

import pytest
from tests.support.client import run

from levada import (
    Client,
    ErrorCode,
    KafkaError,
    MemberFenced,
    PreparedTransaction,
    ProducerFenced,
    RequestTimedOut,
    TopicPartition,
)
from levada.api.admin import versions
from levada.client.consumer.group_consumer import GroupConsumer
from levada.client.producer.transactions import TransactionalProducer
from levada.testing import EmbeddedBroker

NUMBERS = count(1)
# Frequent heartbeats, so that no test waits five seconds for a rebalance.
pytestmark = pytest.mark.broker(group_consumer_heartbeat_interval_ms=50, transaction_state_log_num_partitions=5)


class Mistake(Exception):
    """What a caller's code raises inside a transaction."""


@pytest.fixture
def name() -> str:
    """A transactional id, and a group, of one test."""
    return f"name-{next(NUMBERS)}"


async def send(producer: TransactionalProducer, topic: str, *values: bytes) -> None:
    """One transaction."""
    async with producer.transaction() as transaction:
        for value in values:
            await transaction.send(topic, value)


async def send_and_fail(producer: TransactionalProducer, topic: str, *values: bytes) -> None:
    """One transaction whose records are stored before it is aborted."""

    async def failing() -> None:
        async with producer.transaction() as transaction:
            for stored in [await transaction.send(topic, value) for value in values]:
                await stored
            raise Mistake

    with pytest.raises(Mistake):
        await failing()


async def values(client: Client, topic: str, isolation: Any = "read_committed") -> list[bytes | None]:
    """All that such a reader sees now."""
    found: list[bytes | None] = []
    async with client.consumer(topic, isolation=isolation) as consumer:
        ends = await consumer.end_offsets()
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found += [record.value for record in await consumer.poll(100)]
    return found


def test_what_is_aborted_is_seen_by_nobody_who_asks_for_committed_records(broker: EmbeddedBroker, name: str) -> None:
    topic = broker.topic()

    async def work(client: Client) -> None:
        async with client.producer(transactional_id=name) as producer:
            await send(producer, topic, b"1", b"2")
            await send_and_fail(producer, topic, b"aborted", b"aborted too")
            await send(producer, topic, b"3")
            await send_and_fail(producer, topic, b"aborted again")
        assert await values(client, topic) == [b"1", b"2", b"3"]
        assert await values(client, topic, "read_uncommitted") == [
            b"1", b"2", b"aborted", b"aborted too", b"3", b"aborted again",
        ]  # fmt: skip

    run(broker, work)


def test_a_transaction_counts_in_all_its_partitions_at_once(broker: EmbeddedBroker, name: str) -> None:
    """Until it ends, readers of committed records see none of it, nor what is behind it."""
    topic, other = broker.topic(partitions=3), broker.topic()

    async def work(client: Client) -> None:
        async with (
            client.producer(transactional_id=name) as producer,
            client.producer() as plain,
            client.consumer(topic, other, isolation="read_committed") as consumer,
        ):
            async with producer.transaction() as transaction:
                stored = [await transaction.send(topic, b"%d" % index, partition=index) for index in range(3)]
                stored.append(await transaction.send(other, b"3"))
                await asyncio.gather(*stored)
                await plain.send_and_wait(other, b"behind")
                assert await consumer.poll(100) == []
            records = [await anext(consumer) for _ in range(5)]
            assert sorted(record.value or b"" for record in records) == [b"0", b"1", b"2", b"3", b"behind"]

    run(broker, work)


async def copy(consumer: GroupConsumer, producer: TransactionalProducer, target: str, chance: random.Random) -> int:
    """Copy one batch in a transaction, or fail somewhere on the way and go back; how many were copied."""
    records = await consumer.poll(100)
    try:
        async with producer.transaction() as transaction:
            for record in records:
                await transaction.send(target, record.value, partition=record.partition)
            if chance.random() < 0.3:
                raise Mistake
            await transaction.commit_offsets(consumer)
            if chance.random() < 0.3:
                raise Mistake
    except Mistake:
        await consumer.seek_to_committed()
        return 0
    return len(records)


def test_records_are_copied_exactly_once(broker: EmbeddedBroker, name: str) -> None:
    """Two copiers that fail again and again, of which one leaves; the copy equals the source."""
    source, target = broker.topic(partitions=2), broker.topic(partitions=2)
    total = 400

    copied = 0

    async def copier(client: Client, number: int, limit: int) -> None:
        nonlocal copied
        chance, stop_at = random.Random(number), copied + limit
        async with (
            client.consumer(source, group=name, isolation="read_committed", fetch_bytes=600) as consumer,
            client.producer(transactional_id=f"{name}-{number}") as producer,
        ):
            while copied < min(stop_at, total):
                done = await copy(consumer, producer, target, chance)
                copied += done

    async def work(client: Client) -> None:
        async with client.producer(batch_bytes=300, linger_ms=0) as producer:
            for number in range(total):
                await producer.send(source, b"%d" % number, partition=number % 2)
        await asyncio.gather(copier(client, 1, total // 2), copier(client, 2, total))
        assert await values(client, target) == await values(client, source)

    run(broker, work)


def test_offsets_count_only_with_their_transaction(broker: EmbeddedBroker, name: str) -> None:
    source, target = broker.topic(), broker.topic()
    place = TopicPartition(source, 0)

    async def work(client: Client) -> None:
        async with client.producer() as plain:
            await plain.send_and_wait(source, b"input")
        async with (
            client.consumer(source, group=name) as consumer,
            client.producer(transactional_id=name) as producer,
        ):
            await anext(consumer)
            async with producer.transaction() as transaction:
                await transaction.commit_offsets(consumer)
                await transaction.abort()
            assert await consumer.committed() == {}
            async with producer.transaction() as transaction:
                await transaction.commit_offsets(consumer, {place: 1})
                await transaction.send(target, b"output")
            assert await consumer.committed() == {place: 1}

    run(broker, work)


def test_the_last_one_to_start_has_the_transactional_id(broker: EmbeddedBroker, name: str) -> None:
    """What the one before had open is aborted, and it cannot write any more."""
    topic = broker.topic()

    async def work(client: Client) -> None:
        async with client.producer(transactional_id=name) as old, old.transaction() as transaction:
            await (await transaction.send(topic, b"old"))
            async with client.producer(transactional_id=name) as new:
                await send(new, topic, b"new")
                with pytest.raises(ProducerFenced):
                    await (await transaction.send(topic, b"zombie"))
                with pytest.raises(ProducerFenced):
                    await transaction.send(topic, b"zombie")
                with pytest.raises(ProducerFenced, match="another producer has taken"):
                    await transaction.commit()
                with pytest.raises(ProducerFenced):
                    await send(old, topic, b"zombie")
                await send(new, topic, b"still new")
        assert await values(client, topic) == [b"new", b"still new"]

    run(broker, work)


def test_a_transaction_that_stays_open_is_aborted(broker: EmbeddedBroker, name: str) -> None:
    """Readers do not wait for a producer that hangs."""
    topic = broker.topic()

    async def hang(producer: TransactionalProducer, consumer: Any) -> None:
        async with producer.transaction() as transaction:
            await (await transaction.send(topic, b"too slow"))
            while consumer.position((topic, 0)) == 0:  # nothing is passed before the transaction has ended
                await consumer.poll(20)

    async def work(client: Client) -> None:
        async with (
            client.producer(transactional_id=name, transaction_timeout_ms=100) as producer,
            client.consumer(topic, isolation="read_committed") as consumer,
        ):
            with pytest.raises(ProducerFenced):
                await hang(producer, consumer)
        async with client.producer(transactional_id=name) as producer:
            await send(producer, topic, b"in time")
        assert await values(client, topic) == [b"in time"]

    run(broker, work)


def test_a_member_that_was_fenced_cannot_commit_in_a_transaction(broker: EmbeddedBroker, name: str) -> None:
    """What it read belongs to others, so what it made of it does not count."""
    source, target = broker.topic(), broker.topic()

    async def copy_it(consumer: GroupConsumer, producer: TransactionalProducer) -> None:
        async with producer.transaction() as transaction:
            await transaction.send(target, b"copy")
            await transaction.commit_offsets(consumer)

    async def work(client: Client) -> None:
        async with client.producer() as plain:
            await plain.send_and_wait(source, b"input")
        async with (
            client.consumer(source, group=name) as consumer,
            client.producer(transactional_id=name) as producer,
        ):
            await anext(consumer)
            broker.fail_next("txn_offset_commit", ErrorCode.UNKNOWN_MEMBER_ID)
            with pytest.raises(MemberFenced):
                await copy_it(consumer, producer)
            broker.fail_next("txn_offset_commit", ErrorCode.PRODUCER_FENCED)
            with pytest.raises(ProducerFenced):
                await copy_it(consumer, producer)
            assert await values(client, target) == []
            broker.fail_next("txn_offset_commit", ErrorCode.ILLEGAL_GENERATION)
            await copy_it(consumer, producer)
            assert await values(client, target) == [b"copy"]

    run(broker, work)


@pytest.mark.parametrize("error", ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "CONCURRENT_TRANSACTIONS"])
@pytest.mark.parametrize("api", ["init_producer_id", "produce", "txn_offset_commit", "end_txn"])
def test_what_may_heal_is_tried_again(broker: EmbeddedBroker, name: str, api: str, error: str) -> None:
    source, target = broker.topic(), broker.topic()
    error = "NOT_LEADER_OR_FOLLOWER" if (api, error) == ("produce", "NOT_COORDINATOR") else error

    async def work(client: Client) -> None:
        async with client.producer() as plain:
            await plain.send_and_wait(source, b"input")
        async with client.consumer(source, group=name) as consumer:
            await anext(consumer)
            broker.fail_next(api, error, times=2)
            async with (
                client.producer(transactional_id=name) as producer,
                producer.transaction() as transaction,
            ):
                await transaction.send(target, b"output")
                await transaction.commit_offsets(consumer)
            assert await consumer.committed() == {TopicPartition(source, 0): 1}
        assert await values(client, target) == [b"output"]

    run(broker, work, retry_backoff_ms=5)


@pytest.mark.parametrize("api", ["init_producer_id", "produce", "txn_offset_commit", "end_txn"])
def test_a_lost_connection_doubles_nothing(broker: EmbeddedBroker, name: str, api: str) -> None:
    source, target = broker.topic(), broker.topic()

    async def work(client: Client) -> None:
        async with client.producer() as plain:
            await plain.send_and_wait(source, b"input")
        async with client.consumer(source, group=name) as consumer:
            await anext(consumer)
            broker.drop(api)
            async with client.producer(transactional_id=name) as producer:
                async with producer.transaction() as transaction:
                    await transaction.send(target, b"output")
                    await transaction.commit_offsets(consumer)
                await send(producer, target, b"more")
            assert await consumer.committed() == {TopicPartition(source, 0): 1}
        assert await values(client, target) == [b"output", b"more"]

    run(broker, work, retry_backoff_ms=5)


def test_an_end_whose_answer_was_lost_is_asked_for_again(broker: EmbeddedBroker, name: str) -> None:
    """The transaction is committed once, and the producer learns its new epoch."""
    topic = broker.topic()

    async def work(client: Client) -> None:
        async with client.producer(transactional_id=name) as producer:
            broker.delay("end_txn", 1.3)
            await send(producer, topic, b"1")
            await send(producer, topic, b"2")
        assert await values(client, topic) == [b"1", b"2"]

    run(broker, work, request_timeout_ms=1_000, retry_backoff_ms=20)


def test_a_transaction_with_a_record_that_fails_cannot_be_committed(broker: EmbeddedBroker, name: str) -> None:
    """Although nobody looked at the record's future; the next transaction is not harmed."""
    topic = broker.topic(max_message_bytes=1_000)

    async def work(client: Client) -> None:
        async with client.producer(transactional_id=name) as producer:
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await send(producer, topic, b"fits", b"x" * 2_000)
            broker.fail_next("produce", ErrorCode.TRANSACTION_ABORTABLE)
            with pytest.raises(KafkaError, match="TRANSACTION_ABORTABLE"):
                await send(producer, topic, b"abortable")
            await send(producer, topic, b"next")
        assert await values(client, topic) == [b"next"]

    run(broker, work)


def test_nobody_knows_how_it_ended(broker: EmbeddedBroker, name: str) -> None:
    """A producer that could not hear of the end of its transaction does not guess."""
    topic = broker.topic()

    async def work(client: Client) -> None:
        async with client.producer(transactional_id=name, delivery_timeout_ms=1_000) as producer:
            broker.delay("end_txn", 3)
            with pytest.raises(RequestTimedOut):
                await send(producer, topic, b"in doubt")
            with pytest.raises(RuntimeError, match="start another producer"):
                await send(producer, topic, b"never")
        async with client.producer(transactional_id=name) as producer:
            await send(producer, topic, b"next")
        assert (await values(client, topic))[-1] == b"next"

    run(broker, work, request_timeout_ms=2_000, retry_backoff_ms=20)


def test_an_error_is_not_hidden_by_an_abort_that_fails(broker: EmbeddedBroker, name: str) -> None:
    topic = broker.topic()

    async def work(client: Client) -> None:
        async with client.producer(transactional_id=name) as producer:
            broker.fail_next("end_txn", ErrorCode.PRODUCER_FENCED)
            await send_and_fail(producer, topic, b"aborted")
            with pytest.raises(ProducerFenced):
                await send(producer, topic, b"never")

    run(broker, work)


def test_how_transactions_are_not_used(broker: EmbeddedBroker, name: str) -> None:
    topic = broker.topic()

    async def work(client: Client) -> None:
        producer = client.producer(transactional_id=name)
        with pytest.raises(RuntimeError, match="not started"):
            await send(producer, topic, b"")
        async with producer:
            async with producer.transaction() as transaction:
                with pytest.raises(RuntimeError, match="is open already"):
                    await send(producer, topic, b"")
            with pytest.raises(RuntimeError, match="has ended"):
                await transaction.send(topic, b"")
            transaction = await producer.transaction().__aenter__()
            await transaction.send(topic, b"given up")
        with pytest.raises(RuntimeError, match="producer is closed"):
            await send(producer, topic, b"")
        assert await values(client, topic, "read_uncommitted") == []
        with pytest.raises(KafkaError, match="INVALID_TRANSACTION_TIMEOUT"):
            await client.producer(transactional_id=name, transaction_timeout_ms=2**31 - 1).start()
        with pytest.raises(TypeError, match="acks"):
            client.producer(transactional_id=name, acks=1)  # type: ignore[call-overload]

    run(broker, work)


async def prepare(client: Client, name: str, topic: str, value: bytes, **options: Any) -> PreparedTransaction:
    """A transaction that is left open by a producer that is gone."""
    async with (
        client.producer(transactional_id=name, **options) as producer,
        producer.transaction() as transaction,
    ):
        await transaction.send(topic, value)
        prepared = await transaction.prepare()
    assert prepared is not None
    return prepared


# One process stores records and says what it has prepared.
PREPARER = """
import asyncio, os, sys
from levada import Client

async def main(bootstrap, name, topic):
    async with Client(bootstrap) as client, client.producer(transactional_id=name, two_phase=True) as producer:
        async with producer.transaction() as transaction:
            for number in range(3):
                await transaction.send(topic, b"%d" % number)
            print(*(await transaction.prepare())[1:], flush=True)
            os._exit(9)

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_transaction_is_prepared_in_one_process_and_committed_from_another(broker: EmbeddedBroker, name: str) -> None:
    """A client that knows id and epoch ends it; the second time is no error, the other way is one."""
    topic = broker.topic()
    gone = subprocess.run(
        [sys.executable, "-c", PREPARER, broker.bootstrap, name, topic], stdout=subprocess.PIPE, timeout=60
    )
    producer_id, epoch = gone.stdout.split()
    prepared = PreparedTransaction(name, int(producer_id), int(epoch))

    async def work(client: Client) -> None:
        assert gone.returncode == 9
        assert await values(client, topic) == []
        await client.commit_prepared(prepared)
        await client.commit_prepared(prepared)
        with pytest.raises(ProducerFenced):
            await client.abort_prepared(prepared)
        assert await values(client, topic) == [b"0", b"1", b"2"]
        async with client.producer(transactional_id=name) as producer:
            await send(producer, topic, b"next")
        with pytest.raises(ProducerFenced):
            await client.commit_prepared(prepared)
        assert await values(client, topic) == [b"0", b"1", b"2", b"next"]

    run(broker, work)


def test_a_prepared_transaction_that_another_producer_finds_is_aborted(broker: EmbeddedBroker, name: str) -> None:
    """Unless it asks to keep it."""
    topic = broker.topic()

    async def work(client: Client) -> None:
        old = await prepare(client, name, topic, b"old", two_phase=True)
        new = await prepare(client, name, topic, b"new", two_phase=True)
        with pytest.raises(ProducerFenced):
            await client.commit_prepared(old)
        await client.commit_prepared(new)
        await client.abort_prepared(await prepare(client, name, topic, b"aborted", two_phase=True))
        without_2pc = await prepare(client, name, topic, b"with a timeout")
        await client.commit_prepared(without_2pc)
        assert await values(client, topic) == [b"new", b"with a timeout"]

    run(broker, work)


def test_what_was_prepared_is_completed_after_a_restart(broker: EmbeddedBroker, name: str) -> None:
    """KIP-939: committed if it is what was decided on, else aborted; then the producer goes on."""
    topic = broker.topic()
    options: dict[str, Any] = {"transactional_id": name, "two_phase": True, "keep_prepared": True}

    async def work(client: Client) -> None:
        decided = await prepare(client, name, topic, b"decided", two_phase=True)
        async with client.producer(**options) as producer:
            assert producer.prepared == decided
            with pytest.raises(RuntimeError, match="complete_transaction first"):
                await send(producer, topic, b"")
        async with client.producer(**options) as producer:  # the one before has not completed it
            assert producer.prepared == decided
            assert await producer.complete_transaction(decided)
            assert not await producer.complete_transaction(decided)
            await send(producer, topic, b"next")
        await prepare(client, name, topic, b"nobody knows of it", two_phase=True)
        async with client.producer(**options) as producer:
            assert not await producer.complete_transaction(decided)
            await send(producer, topic, b"last")
        async with client.producer(**options) as producer:
            assert producer.prepared is None
        assert await values(client, topic) == [b"decided", b"next", b"last"]

    run(broker, work)


def test_a_prepared_transaction_in_the_same_process(broker: EmbeddedBroker, name: str) -> None:
    topic = broker.topic(max_message_bytes=1_000)

    async def work(client: Client) -> None:
        async with client.producer(transactional_id=name, two_phase=True) as producer:
            async with producer.transaction() as transaction:
                await transaction.send(topic, b"1")
                await transaction.prepare()
                with pytest.raises(RuntimeError, match="has ended"):
                    await transaction.send(topic, b"late")
            with pytest.raises(RuntimeError, match="is open already"):
                await send(producer, topic, b"")
            await transaction.commit()
            async with producer.transaction() as transaction:
                assert await transaction.prepare() is None
            async with producer.transaction() as transaction:
                await transaction.send(topic, b"aborted")
                await transaction.prepare()
                await transaction.abort()
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await prepare_too_much(producer)
            await send(producer, topic, b"2")
        assert await values(client, topic) == [b"1", b"2"]

    async def prepare_too_much(producer: TransactionalProducer) -> None:
        async with producer.transaction() as transaction:
            await transaction.send(topic, b"x" * 2_000)
            await transaction.prepare()

    run(broker, work)


def test_two_phase_commit_of_a_broker_that_does_not_know_it(
    broker: EmbeddedBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be said must not be left out: the broker would abort what shall be kept."""
    topic = broker.topic()

    async def work(client: Client) -> None:
        prepared = await prepare(client, name, topic, b"kept")
        connection = await client.connection()
        monkeypatch.setitem(connection.api_versions.apis, 22, range(6))
        for two_phase in (True, False):
            with pytest.raises(KafkaError, match="UNSUPPORTED_VERSION"):
                await client.producer(transactional_id=name, two_phase=two_phase, keep_prepared=not two_phase).start()
        await client.commit_prepared(prepared)

    run(broker, work)


def test_a_cluster_without_transactions_of_version_2(
    broker: EmbeddedBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(client: Client) -> None:
        with pytest.raises(KafkaError, match=r"UNSUPPORTED_VERSION: the cluster has transaction\.version 1"):
            await client.producer(transactional_id=name).start()

    monkeypatch.setitem(versions.FEATURES, "transaction.version", (0, 2, 1))
    monkeypatch.setattr(versions, "_response", versions._response.__wrapped__)  # not cached
    run(broker, work)
