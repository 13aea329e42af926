"""`levada.produce`, `levada.wait_for` and the cleanup after a test, with stock clients beside them."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.broker import BrokerThread
from tests.support.client import NoLog
from tests.support.waiting import until

from levada.core.groups.classic.group import ClassicGroup
from levada.errors import ErrorCode, KafkaError
from levada.testing import EmbeddedBroker

TIMEOUT_S = 30.0
KEYS = [b"order-%d" % number for number in range(20)]


@pytest.fixture(scope="module")
def own() -> Iterator[BrokerThread]:
    """A broker whose blocks of tests this module begins and ends itself."""
    with BrokerThread() as one:
        yield one


def consumer(bootstrap: str, group: str, **settings: object) -> Consumer:
    fixed = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    return Consumer(fixed | settings, logger=NoLog())


def groups(broker: BrokerThread) -> set[str]:
    """The groups with members or offsets."""
    return {group_id for shard in broker.broker.groups for group_id in shard.ready.groups}


def pending_joins(broker: BrokerThread) -> int:
    """The JoinGroups that wait for other members."""
    found = [group for shard in broker.broker.groups for group in shard.ready.groups.values()]
    return sum(len(group.pending_joins) for group in found if isinstance(group, ClassicGroup))


def values(broker: EmbeddedBroker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


# Produce.


def test_produced_records_have_what_was_given(levada: EmbeddedBroker) -> None:
    topic = levada.topic(partitions=2)
    stored = levada.produce(topic, "tea", None, b"\0", key="k", partition=1, headers=[("h", b"1")], timestamp=1_700)
    assert stored == [
        (topic, 1, 0, 1_700, b"k", b"tea", (("h", b"1"),)),
        (topic, 1, 1, 1_700, b"k", None, (("h", b"1"),)),
        (topic, 1, 2, 1_700, b"k", b"\0", (("h", b"1"),)),
    ]
    assert levada.records(topic) == stored
    (last,) = levada.produce(topic, "", headers={"h": None})
    assert last[1:3] == (0, 0) and last[5:] == (b"", (("h", None),))


def test_a_key_has_the_partition_that_clients_choose(levada: EmbeddedBroker) -> None:
    ours, theirs = levada.topic(partitions=5), levada.topic(partitions=5)
    producer = Producer({"bootstrap.servers": levada.bootstrap, "partitioner": "murmur2"})
    for key in KEYS:
        levada.produce(ours, b"", key=key)
        producer.produce(theirs, b"", key=key)
    assert producer.flush(TIMEOUT_S) == 0
    chosen = [{record.key: record.partition for record in levada.records(topic)} for topic in (ours, theirs)]
    assert chosen[0] == chosen[1] and len(set(chosen[0].values())) == 5


def test_records_without_a_key_are_in_the_first_partition_in_order(levada: EmbeddedBroker) -> None:
    topic = levada.topic(partitions=3)
    assert [record.partition for record in levada.produce(topic, "a", "b")] == [0, 0]
    assert [record.offset for record in levada.produce(topic, "c")] == [2]
    assert values(levada, topic) == [b"a", b"b", b"c"]


def test_a_stock_consumer_reads_what_was_produced(levada: EmbeddedBroker) -> None:
    levada.topic("orders")
    levada.produce("orders", "tea")
    one = consumer(levada.bootstrap, "shop")
    one.subscribe(["orders"])
    message = one.poll(TIMEOUT_S)
    assert message is not None and message.value() == b"tea"
    one.close()
    assert levada.committed("shop") == {("orders", 0): 1}


def test_produce_returns_when_the_records_are_committed() -> None:
    with BrokerThread(levada_acks_wait_for_fsync="true") as one:
        topic = one.topic()
        for number in range(5):
            one.produce(topic, str(number))
            assert len(one.records(topic)) == number + 1


def test_produce_bypasses_faults(levada: EmbeddedBroker) -> None:
    topic = levada.topic()
    levada.fail_next("produce", "CORRUPT_MESSAGE")
    levada.produce(topic, "tea")
    assert levada.faults


def test_produce_raises_what_the_broker_refuses(levada: EmbeddedBroker) -> None:
    topic = levada.topic(max_message_bytes=100)
    with pytest.raises(KafkaError) as caught:
        levada.produce(topic, "x" * 200)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(ValueError, match="no such topic: ordrs"):
        levada.produce("ordrs", "tea")
    with pytest.raises(ValueError, match="has 1 partitions, none with number -1"):
        levada.produce(topic, "tea", partition=-1)


# Records.


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (([b"a", b"b"],), {}, r"value is bytes, text or None, not list; .* levada.produce\(topic, b'a', b'b'\)"),
        ((b"a", 5), {}, "value is bytes, text or None, not int"),
        ((b"a",), {"key": 5}, "key is bytes, text or None, not int"),
        ((b"a",), {"headers": {"h": 5}}, "header h is bytes, text or None, not int"),
    ],
)
def test_produce_refuses_other_types(
    levada: EmbeddedBroker, values: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    topic = levada.topic()
    with pytest.raises(TypeError, match=message):
        levada.produce(topic, *values, **options)
    assert levada.records(topic) == []


def test_records_of_open_and_aborted_transactions_are_left_out(levada: EmbeddedBroker) -> None:
    topic = levada.topic()
    producer = Producer({"bootstrap.servers": levada.bootstrap, "transactional.id": "t"})
    producer.init_transactions(TIMEOUT_S)
    for value, end in (("aborted", producer.abort_transaction), ("committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(TIMEOUT_S)
        assert b"aborted" not in values(levada, topic) and b"committed" not in values(levada, topic)
        end(TIMEOUT_S)
    assert [record.value for record in levada.wait_for(topic, 1)] == [b"committed"]


# Waiting.


def test_wait_for_returns_what_another_thread_produces_later(levada: EmbeddedBroker) -> None:
    """The topic does not exist either when the wait begins."""

    def work() -> None:
        producer = Producer({"bootstrap.servers": levada.bootstrap})
        for number in range(3):
            producer.produce("orders", str(number))
            producer.flush(TIMEOUT_S)

    worker = threading.Thread(target=work)
    worker.start()
    assert [record.value for record in levada.wait_for("orders", 3, timeout_s=TIMEOUT_S)] == [b"0", b"1", b"2"]
    worker.join()


def test_wait_for_returns_all_records(levada: EmbeddedBroker) -> None:
    topic = levada.topic()
    levada.produce(topic, "a", "b", "c")
    assert levada.wait_for(topic, 2) == levada.records(topic)
    assert levada.wait_for(levada.topic(), 0) == []


def test_a_timeout_shows_what_is_there(levada: EmbeddedBroker) -> None:
    topic = levada.topic("orders", partitions=2)
    levada.produce(topic, "tea", key="k", partition=1)
    levada.produce(topic, "x" * 1000)
    with pytest.raises(TimeoutError) as caught:
        levada.wait_for(topic, 3, timeout_s=0)
    assert str(caught.value).splitlines() == [
        "topic 'orders' has 2 of 3 committed records after 0 s:",
        f"  orders-0 offset 0: key=None value=b'{'x' * 100}'... (1000 bytes)",
        "  orders-1 offset 0: key=b'k' value=b'tea'",
    ]
    levada.produce(topic, *map(str, range(30)))
    with pytest.raises(TimeoutError, match=r"has 32 of 99 (.*\n){21}  and 12 more$"):
        levada.wait_for(topic, 99, timeout_s=0)


def test_a_timeout_tells_a_missing_topic_and_an_open_transaction(levada: EmbeddedBroker) -> None:
    topic = levada.topic("orders")
    with pytest.raises(TimeoutError, match=r"topic 'ordres' does not exist after 0 s; topics: .*orders"):
        levada.wait_for("ordres", 1, timeout_s=0)
    producer = Producer({"bootstrap.servers": levada.bootstrap, "transactional.id": "t"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, "undecided")
    producer.flush(TIMEOUT_S)
    with pytest.raises(TimeoutError, match=r"has 0 of 1 .*; 1 offsets are behind the start of an open transaction$"):
        levada.wait_for(topic, 1, timeout_s=0)
    producer.abort_transaction(TIMEOUT_S)


def test_wait_for_in_an_async_test_runs_in_a_thread(levada: EmbeddedBroker) -> None:
    topic = levada.topic()

    async def produce_later() -> None:
        await asyncio.sleep(0)
        levada.produce(topic, "tea")

    async def test() -> None:
        with pytest.raises(RuntimeError, match=r"await asyncio\.to_thread\(levada\.wait_for, topic, count\)"):
            levada.wait_for(topic, 1)
        task = asyncio.create_task(produce_later())
        assert len(await asyncio.to_thread(levada.wait_for, topic, 1)) == 1
        await task

    asyncio.run(test())


# Cleanup.


def test_a_fixed_name_gives_an_empty_topic_each_time(own: BrokerThread) -> None:
    for number in range(2):
        with own.cleanup():
            assert own.topic("orders", partitions=number + 1) == "orders"
            assert values(own, "orders") == []
            own.produce("orders", "tea")
    with pytest.raises(ValueError, match="no such topic: orders"):
        own.records("orders")


def test_a_unique_name_is_not_one_that_a_test_chose(own: BrokerThread) -> None:
    with own.cleanup():
        last = int(own.topic().removeprefix("topic-"))
        own.topic(f"topic-{last + 1}")
        assert own.topic() == f"topic-{last + 2}"


def test_topics_of_clients_end_too_and_those_from_before_stay(own: BrokerThread) -> None:
    before = own.topic("before")
    admin = AdminClient({"bootstrap.servers": own.bootstrap})
    with own.cleanup():
        admin.create_topics([NewTopic("created", 2)])["created"].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": own.bootstrap})
        producer.produce("auto-created", "tea")
        producer.produce(before, "tea")
        assert producer.flush(TIMEOUT_S) == 0
        assert {"created", "auto-created"} <= own.broker.image.topics.keys()
    assert not {"created", "auto-created"} & own.broker.image.topics.keys()
    assert values(own, before) == [b"tea"]


def test_a_topic_that_was_created_again_ends(own: BrokerThread) -> None:
    again = own.topic("again")
    with own.cleanup():
        own.delete(again)
        own.topic(again)
    assert again not in own.broker.image.topics


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("instance", [{}, {"group.instance.id": "i"}], ids=["dynamic", "static"])
def test_groups_end_with_the_members_in_them(own: BrokerThread, protocol: str, instance: dict[str, object]) -> None:
    """A member that has committed and not left neither keeps the group nor its partition."""
    for _ in range(2):
        with own.cleanup():
            own.topic("orders")
            own.produce("orders", "tea")
            one = consumer(own.bootstrap, "shop", **instance, **{"group.protocol": protocol})
            one.subscribe(["orders"])
            message = one.poll(TIMEOUT_S)
            assert message is not None and message.value() == b"tea"
            one.commit(asynchronous=False)
            assert own.committed("shop") == {("orders", 0): 1}
        assert own.committed("shop") == {}
        assert "shop" not in own.call(lambda: groups(own))
        with own.cleanup():  # until it is closed, the client joins again
            one.close()


def test_groups_of_offsets_alone_end_and_those_from_before_stay(own: BrokerThread) -> None:
    def commit(group: str) -> None:
        one = consumer(own.bootstrap, group)
        one.commit(offsets=[TopicPartition("kept", 0, 1)], asynchronous=False)
        one.close()

    own.topic("kept")
    own.produce("kept", "tea")
    commit("before")
    with own.cleanup():
        commit("added")
        assert own.committed("added") == {("kept", 0): 1}
    assert own.committed("added") == {}
    assert own.committed("before") == {("kept", 0): 1}


def test_faults_end(own: BrokerThread) -> None:
    with own.cleanup():
        own.drop("produce")
        assert own.faults
    assert not own.faults


def test_a_join_that_waits_for_other_members_is_answered(own: BrokerThread) -> None:
    """Otherwise its client would wait until the rebalance timeout of a test that is over."""
    joining = {
        "group_id": "shop",
        "session_timeout": 30_000,
        "rebalance_timeout": 300_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    with own.connect() as first, own.connect() as second:
        with own.cleanup():
            own.wait(own.broker.groups.create_topic())
            until(lambda: first.call("join_group", 3, joining).error_code == ErrorCode.NONE)
            sent = second.send("join_group", 3, joining)
            until(lambda: own.call(lambda: pending_joins(own)) == 1)
        assert second.receive()[0] == sent
    assert "shop" not in own.call(lambda: groups(own))


def test_a_transaction_left_open_does_not_reach_the_next_test(own: BrokerThread) -> None:
    """With the same names of topic, group and transactional id."""
    for number in range(2):
        with own.cleanup():
            own.topic("orders")
            producer = Producer({"bootstrap.servers": own.bootstrap, "transactional.id": "t"}, logger=NoLog())
            producer.init_transactions(TIMEOUT_S)
            producer.begin_transaction()
            producer.produce("orders", str(number))
            one = consumer(own.bootstrap, "shop")
            place = TopicPartition("orders", 0, 1)
            producer.send_offsets_to_transaction([place], one.consumer_group_metadata(), TIMEOUT_S)
            one.close()
            if number:
                producer.commit_transaction(TIMEOUT_S)
                assert [record.value for record in own.wait_for("orders", 1)] == [b"1"]
                until(lambda: own.committed("shop") == {("orders", 0): 1})
            else:
                producer.flush(TIMEOUT_S)
                assert own.records("orders") == []
