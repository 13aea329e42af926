"""The public client in a group: members share partitions and resume from committed offsets."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import pytest
from tests.support.client import run

from levada import Client, ErrorCode, KafkaError, MemberFenced, TopicPartition
from levada.client.admin.groups import GroupAdmin
from levada.client.consumer.group_consumer import GroupConsumer
from levada.model import ConsumerRecord
from levada.testing import EmbeddedBroker

HEARTBEAT_MS = 50
NUMBERS = count(1)
# A member that is killed: it joins, says so, and never leaves.
MEMBER = """
import asyncio, sys
from levada import Client

async def main(bootstrap, topic, group):
    async with Client(bootstrap) as client, client.consumer(topic, group=group) as consumer:
        while True:
            await consumer.poll(20)
            print(len(consumer.assignment), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


# Frequent heartbeats, so that no test waits five seconds for a rebalance.
pytestmark = pytest.mark.broker(
    group_consumer_heartbeat_interval_ms=HEARTBEAT_MS, group_consumer_session_timeout_ms=3000
)


@pytest.fixture
def group() -> str:
    return f"group-{next(NUMBERS)}"


async def produce(client: Client, topic: str, numbers: Sequence[int], partitions: int = 1) -> None:
    async with client.producer() as producer:
        for number in numbers:
            await producer.send(topic, b"%d" % number, partition=number % partitions)


async def read(consumer: GroupConsumer, count: int) -> list[int]:
    return [int((await anext(consumer)).value or b"") for _ in range(count)]


async def fails(work: Callable[[GroupConsumer], Awaitable[None]], consumer: GroupConsumer) -> None:
    """Work with a consumer that ends in an error."""

    async def failing() -> None:
        async with consumer:
            await work(consumer)
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        await failing()


def numbers_of(records: Sequence[ConsumerRecord]) -> list[int]:
    return [int(record.value or b"") for record in records]


async def until_each_has(shares: Sequence[int], *consumers: GroupConsumer) -> None:
    """Let the members look after their partitions until each has its share; nothing must come."""
    while [len(consumer.assignment) for consumer in consumers] != list(shares):
        for consumer in consumers:
            assert await consumer.poll(10) == []


def test_a_group_goes_on_where_it_has_committed(broker: EmbeddedBroker, group: str) -> None:
    """What was committed is not read again, what was not is."""
    topic = broker.topic()

    async def work(client: Client) -> None:
        await produce(client, topic, range(20))
        async with client.consumer(topic, group=group) as consumer:
            assert await read(consumer, 5) == [0, 1, 2, 3, 4]
            await consumer.commit()
            assert await read(consumer, 5) == [5, 6, 7, 8, 9]
        async with client.consumer(topic, group=group) as consumer:
            assert await read(consumer, 3) == [5, 6, 7]
            assert consumer.positions() == {TopicPartition(topic, 0): 8}
            await consumer.commit({(topic, 0): 6})
            assert await consumer.committed() == {TopicPartition(topic, 0): 6}
            await consumer.seek_to_committed()
            assert await read(consumer, 1) == [6]
            with pytest.raises(KafkaError, match="not assigned to this consumer"):
                await consumer.commit({(topic, 9): 6})

    run(broker, work)


def test_a_group_reads_what_matches_a_pattern(broker: EmbeddedBroker, group: str) -> None:
    """KIP-848: also topics that are made later."""

    async def work(client: Client) -> None:
        named = broker.topic()
        await client.admin.create_topic(f"{group}.first")
        await client.admin.create_topic(f"not-{group}.other")
        async with client.consumer(named, group=group, pattern=f"{group}[.].*") as consumer:
            await until_each_has([2], consumer)
            await client.admin.create_topic(f"{group}.second", partitions=2)
            await until_each_has([4], consumer)
            topics = {partition.topic for partition in consumer.assignment}
            assert topics == {named, f"{group}.first", f"{group}.second"}
            await produce(client, f"{group}.second", range(2), 2)
            assert sorted(await read(consumer, 2)) == [0, 1]
            await consumer.commit()
        with pytest.raises(KafkaError, match="INVALID_REGULAR_EXPRESSION"):
            await client.consumer(group=group, pattern="(").start()
        with pytest.raises(ValueError, match="or a pattern"):
            client.consumer(group=group)

    run(broker, work)


def test_where_a_group_without_offsets_starts(broker: EmbeddedBroker) -> None:
    topic = broker.topic()

    async def work(client: Client) -> None:
        await produce(client, topic, range(10))
        async with client.consumer(topic, group="from-the-first") as consumer:
            assert await read(consumer, 1) == [0]
        async with client.consumer(topic, group="from-the-last", start="latest") as consumer:
            await until_each_has([1], consumer)
            await produce(client, topic, [10])
            assert await read(consumer, 1) == [10]
            await consumer.commit()
        async with client.consumer(topic, group="from-the-last", start="earliest") as consumer:
            assert await consumer.poll(200) == []
        async with client.consumer(topic, group="from-the-middle", start=5) as consumer:
            assert await read(consumer, 1) == [5]
            assert await consumer.committed() == {}
            await consumer.seek_to_committed()
            assert await read(consumer, 1) == [5]

    run(broker, work)


def test_members_share_partitions_and_take_over_from_one_that_leaves(broker: EmbeddedBroker, group: str) -> None:
    """Everything is read once, since those who lose a partition commit first."""
    topic = broker.topic(partitions=4)

    async def work(client: Client) -> None:
        revoked: list[TopicPartition] = []

        async def save(partitions: Sequence[TopicPartition]) -> None:
            await first.commit()
            revoked.extend(partitions)

        await produce(client, topic, range(40), partitions=4)
        async with client.consumer(topic, group=group, on_revoke=save) as first:
            assert sorted(await read(first, 40)) == list(range(40))
            async with client.consumer(topic, group=group) as second:
                await until_each_has([2, 2], first, second)
                assert sorted(revoked) == sorted(second.assignment)
                assert set(first.assignment).isdisjoint(second.assignment)
                await produce(client, topic, range(40, 80), partitions=4)
                shares = await read(first, 20), await read(second, 20)
                assert sorted(shares[0] + shares[1]) == list(range(40, 80))
                await second.commit()
            await until_each_has([4], first)
            assert (await GroupAdmin(client).describe(group)).members[1:] == ()

    run(broker, work)


def test_a_member_that_is_killed_is_replaced(broker: EmbeddedBroker, group: str) -> None:
    """Its session runs out, and the other one has everything."""
    topic = broker.topic(partitions=2)

    async def work(client: Client) -> None:
        async with client.consumer(topic, group=group) as consumer:
            await until_each_has([2], consumer)
            command = [sys.executable, "-c", MEMBER, broker.bootstrap, topic, group]
            other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            try:
                assert other.stdout is not None
                while await asyncio.to_thread(other.stdout.readline) != "1\n":
                    assert other.poll() is None
                    await consumer.poll(10)
                assert len(consumer.assignment) == 1
            finally:
                other.kill()
                other.communicate()
            await until_each_has([2], consumer)

    run(broker, work)


def test_one_that_does_not_come_back_loses_its_partitions_and_learns_it(broker: EmbeddedBroker, group: str) -> None:
    """Its commit is refused; when it asks for more, it joins again and reads what the group has committed."""
    topic = broker.topic()
    lost: list[TopicPartition] = []

    async def note(partitions: Sequence[TopicPartition]) -> None:
        lost.extend(partitions)

    async def work(client: Client) -> None:
        await produce(client, topic, range(10))
        slow = client.consumer(topic, group=group, max_poll_interval_ms=1_000, on_lost=note)
        async with slow:
            assert await read(slow, 3) == [0, 1, 2]
            await slow.commit()
            assert await read(slow, 3) == [3, 4, 5]
            async with client.consumer(topic, group=group) as quick:
                assert await read(quick, 2) == [3, 4]
                with pytest.raises(MemberFenced):
                    await slow.commit()
                await quick.commit()
            assert lost == []
            assert await read(slow, 2) == [5, 6]
            assert lost == [TopicPartition(topic, 0)]
            await slow.commit()

    run(broker, work)


def test_at_least_once_saves_what_was_dealt_with(broker: EmbeddedBroker, group: str) -> None:
    """Leaving in order saves everything, an error all but the record in hand."""
    topic = broker.topic()

    async def at_the_fifteenth(consumer: GroupConsumer) -> None:
        async for record in consumer:
            if record.offset == 14:
                return

    async def with_a_batch(consumer: GroupConsumer) -> None:
        assert numbers_of(await consumer.poll()) == list(range(14, 30))

    async def work(client: Client) -> None:
        await produce(client, topic, range(30))
        async with client.consumer(topic, group=group, delivery="at_least_once") as consumer:
            assert await read(consumer, 10) == list(range(10))
        await fails(at_the_fifteenth, client.consumer(topic, group=group, delivery="at_least_once"))
        await fails(with_a_batch, client.consumer(topic, group=group, delivery="at_least_once"))
        async with client.consumer(topic, group=group, delivery="at_least_once", commit_interval_ms=0) as consumer:
            assert await read(consumer, 3) == [14, 15, 16]
            assert await consumer.committed() == {TopicPartition(topic, 0): 16}

    run(broker, work)


def test_at_most_once_saves_before_it_hands_out(broker: EmbeddedBroker, group: str) -> None:
    """What was handed out is not seen again, whatever became of it."""
    topic = broker.topic()

    async def with_the_first(consumer: GroupConsumer) -> None:
        assert await read(consumer, 1) == [0]
        assert await consumer.committed() == {TopicPartition(topic, 0): 10}

    async def work(client: Client) -> None:
        await produce(client, topic, range(10))
        await fails(with_the_first, client.consumer(topic, group=group, delivery="at_most_once"))
        await produce(client, topic, [10])
        async with client.consumer(topic, group=group, delivery="at_most_once") as consumer:
            broker.fail_next("offset_commit", ErrorCode.OFFSET_METADATA_TOO_LARGE)
            with pytest.raises(KafkaError, match="OFFSET_METADATA_TOO_LARGE"):
                await anext(consumer)
            assert await read(consumer, 1) == [10]

    run(broker, work)


def test_partitions_are_saved_when_they_are_taken_away(broker: EmbeddedBroker, group: str) -> None:
    """At least once, and also without a crash nothing twice."""
    topic = broker.topic(partitions=2)

    async def work(client: Client) -> None:
        await produce(client, topic, range(20), partitions=2)
        async with client.consumer(topic, group=group, delivery="at_least_once") as first:
            assert sorted(await read(first, 20)) == list(range(20))
            async with client.consumer(topic, group=group) as second:
                await until_each_has([1, 1], first, second)
                assert await second.committed() == {second.assignment[0]: 10}

    run(broker, work)


def test_offsets_may_be_kept_elsewhere(broker: EmbeddedBroker, group: str) -> None:
    """`on_assign` goes to where the output says that it is."""
    topic = broker.topic(partitions=2)

    async def work(client: Client) -> None:
        async def seek(partitions: Sequence[TopicPartition]) -> None:
            for partition in partitions:
                consumer.seek(partition, 7)

        await produce(client, topic, range(20), partitions=2)
        async with client.consumer(topic, group=group, on_assign=seek) as consumer:
            assert sorted(await read(consumer, 6)) == list(range(14, 20))

    run(broker, work)


def test_a_hook_that_fails_is_reported_and_the_partitions_move(broker: EmbeddedBroker, group: str) -> None:
    topic = broker.topic(partitions=2)

    async def fail(_: Sequence[TopicPartition]) -> None:
        raise ValueError("no room")

    async def work(client: Client) -> None:
        first = client.consumer(topic, group=group, on_revoke=fail)
        await first.start()
        await until_each_has([2], first)
        async with client.consumer(topic, group=group) as second:
            with pytest.raises(ValueError, match="no room"):
                await anext(first)
            await until_each_has([1, 1], first, second)
            with pytest.raises(ValueError, match="no room"):
                await first.close()
            await until_each_has([2], second)

    run(broker, work)


def test_a_static_member_comes_back_to_what_it_had(broker: EmbeddedBroker, group: str) -> None:
    """Its place is kept for it, and no other member may have it meanwhile."""
    topic = broker.topic(partitions=4)

    async def work(client: Client) -> None:
        async with client.consumer(topic, group=group, instance_id="b") as other:
            async with client.consumer(topic, group=group, instance_id="a") as consumer:
                await until_each_has([2, 2], consumer, other)
                before = set(consumer.assignment)
                with pytest.raises(KafkaError) as refused:
                    await client.consumer(topic, group=group, instance_id="a").start()
                assert refused.value.code is ErrorCode.UNRELEASED_INSTANCE_ID
            async with client.consumer(topic, group=group, instance_id="a") as consumer:
                await until_each_has([2, 2], consumer, other)
                assert set(consumer.assignment) == before
            async with client.consumer(topic, group=group, instance_id="a") as consumer:
                await until_each_has([2, 2], consumer, other)

    run(broker, work)


def test_a_consumer_that_is_not_asked_for_records_leaves(broker: EmbeddedBroker, group: str) -> None:
    """A program that hangs does not keep its partitions, although its heartbeats go on."""
    topic = broker.topic()

    async def work(client: Client) -> None:
        await produce(client, topic, range(2))
        async with client.consumer(topic, group=group, max_poll_interval_ms=1_000) as consumer:
            assert await read(consumer, 1) == [0]
            while (await GroupAdmin(client).describe(group)).members:
                await asyncio.sleep(0.02)
            with pytest.raises(MemberFenced, match="no poll within max_poll_interval_ms=1000"):
                await consumer.commit()
            assert await read(consumer, 2) == [0, 1]

    run(broker, work)


@pytest.mark.parametrize("error", ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"])
@pytest.mark.parametrize("api", ["consumer_group_heartbeat", "offset_fetch", "offset_commit", "find_coordinator"])
def test_a_coordinator_that_is_not_ready_is_asked_again(
    broker: EmbeddedBroker, group: str, api: str, error: str
) -> None:
    topic = broker.topic()

    async def work(client: Client) -> None:
        await produce(client, topic, range(5))
        broker.fail_next(api, error, times=2)
        async with client.consumer(topic, group=group) as consumer:
            assert await read(consumer, 5) == list(range(5))
            await consumer.commit()
            assert await consumer.committed() == {TopicPartition(topic, 0): 5}

    run(broker, work, retry_backoff_ms=5)


@pytest.mark.parametrize("api", ["consumer_group_heartbeat", "offset_fetch", "offset_commit", "fetch"])
def test_a_lost_connection_is_made_again(broker: EmbeddedBroker, group: str, api: str) -> None:
    topic = broker.topic()

    async def work(client: Client) -> None:
        await produce(client, topic, range(5))
        broker.drop(api)
        async with client.consumer(topic, group=group) as consumer:
            assert await read(consumer, 5) == list(range(5))
            await consumer.commit()
            assert await consumer.committed() == {TopicPartition(topic, 0): 5}

    run(broker, work, retry_backoff_ms=5)


def test_a_commit_in_an_old_epoch_is_sent_again_in_the_new_one(broker: EmbeddedBroker, group: str) -> None:
    topic = broker.topic()

    async def work(client: Client) -> None:
        await produce(client, topic, range(5))
        async with client.consumer(topic, group=group) as consumer:
            assert await read(consumer, 5) == list(range(5))
            broker.fail_next("offset_commit", ErrorCode.STALE_MEMBER_EPOCH, times=2)
            await consumer.commit()
            assert await consumer.committed() == {TopicPartition(topic, 0): 5}
            consumer.seek((topic, 0), 0)
            broker.fail_next("offset_commit", ErrorCode.STALE_MEMBER_EPOCH, times=50)
            with pytest.raises(MemberFenced):
                await consumer.commit()

    run(broker, work)


def test_a_member_that_was_fenced_starts_over(broker: EmbeddedBroker, group: str) -> None:
    topic = broker.topic()

    async def work(client: Client) -> None:
        await produce(client, topic, range(5))
        async with client.consumer(topic, group=group) as consumer:
            assert await read(consumer, 2) == [0, 1]
            await consumer.commit()
            broker.fail_next("consumer_group_heartbeat", ErrorCode.FENCED_MEMBER_EPOCH)
            while consumer.membership.fenced is None:
                await asyncio.sleep(0.01)
            assert await read(consumer, 3) == [2, 3, 4]
            broker.fail_next("offset_commit", ErrorCode.UNKNOWN_MEMBER_ID)
            with pytest.raises(MemberFenced, match="UNKNOWN_MEMBER_ID"):
                await consumer.commit()
            await consumer.commit()

    run(broker, work)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ErrorCode.FENCED_INSTANCE_ID, MemberFenced),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, KafkaError),
        (ErrorCode.UNSUPPORTED_VERSION, KafkaError),
    ],
)
def test_what_ends_a_membership_is_reported_from_then_on(
    broker: EmbeddedBroker, group: str, error: ErrorCode, kind: type[KafkaError]
) -> None:
    topic = broker.topic()

    async def work(client: Client) -> None:
        broker.fail_next("consumer_group_heartbeat", error)
        with pytest.raises(KafkaError) as refused:
            await client.consumer(topic, group=group).start()
        assert refused.value.code is error
        async with client.consumer(topic, group=group) as consumer:
            await until_each_has([1], consumer)
            broker.fail_next("consumer_group_heartbeat", error)
            for _ in range(2):
                with pytest.raises(kind) as ended:
                    await anext(consumer)
                assert ended.value.code is error

    run(broker, work)


def test_a_topic_that_comes_later_is_read(broker: EmbeddedBroker, group: str) -> None:
    async def work(client: Client) -> None:
        name = f"later-{group}"
        async with client.consumer(name, group=group) as consumer:
            assert await consumer.poll(100) == []
            assert consumer.assignment == ()
            await client.admin.create_topic(name, partitions=2)
            await produce(client, name, range(4), partitions=2)
            assert sorted(await read(consumer, 4)) == [0, 1, 2, 3]
            await client.admin.create_partitions(name, 3)
            await until_each_has([3], consumer)
            await client.admin.delete_topic(name)
            await until_each_has([0], consumer)

    run(broker, work)


def test_a_caller_that_gives_up_loses_nothing(broker: EmbeddedBroker, group: str) -> None:
    """A wait that is cut off at any moment leaves the consumer whole."""
    topic = broker.topic(partitions=4)

    async def work(client: Client) -> None:
        async with client.consumer(topic, group=group, delivery="at_most_once") as consumer:
            await produce(client, topic, range(200), partitions=4)
            found: list[int] = []
            timeout_s = 0.001
            while len(found) < 200:
                try:
                    async with asyncio.timeout(timeout_s):
                        found += numbers_of(await consumer.poll())
                except TimeoutError:
                    timeout_s *= 1.05  # a slow machine needs longer for the commit before the records
            assert sorted(found) == list(range(200))

    run(broker, work)


def test_closing_ends_a_wait_and_may_be_done_twice(broker: EmbeddedBroker, group: str) -> None:
    topic = broker.topic()

    async def work(client: Client) -> None:
        consumer = client.consumer(topic, group=group)
        await consumer.start()
        waiting = asyncio.create_task(anext(consumer))
        await until_each_has([1], consumer)
        await consumer.close()
        with pytest.raises(RuntimeError, match="closed"):
            await waiting
        await consumer.close()

    run(broker, work)


def test_a_group_cannot_be_made_of_nonsense(broker: EmbeddedBroker) -> None:
    async def work(client: Client) -> None:
        with pytest.raises(ValueError, match="at least one topic"):
            client.consumer(group="g")
        with pytest.raises(ValueError, match="not 'sometimes'"):
            client.consumer("t", group="g", delivery="sometimes")  # type: ignore[call-overload]
        with pytest.raises(KafkaError, match="can't be empty"):
            await client.consumer("t", group="").start()

    run(broker, work)
