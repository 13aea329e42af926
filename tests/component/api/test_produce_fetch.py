"""Produce and Fetch over sockets: errors are per partition, and long polls end in time."""

import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from tests.support.broker import BrokerThread
from tests.support.logs import read_all
from tests.support.raw import Connection, batch, fetch, headers, produce
from tests.support.waiting import until

from levada.errors import ErrorCode
from levada.wire.batches import decode

TIMEOUT_S = 20.0


@pytest.fixture(scope="module", params=[True, False], ids=["fast", "general"])
def module_broker(request: pytest.FixtureRequest) -> Iterator[BrokerThread]:
    """A broker with fast paths and one without: clients see no difference."""
    with BrokerThread(auto_create_topics_enable="false", levada_fast_paths=request.param) as own:
        yield own


@pytest.fixture
def topic(broker: BrokerThread, request: pytest.FixtureRequest) -> str:
    name = request.node.name.translate({ord("["): "-", ord("]"): None})[:200]
    broker.create(name, partitions=3)
    return str(name)


def produce_parts(
    one: Connection, version: int, parts: dict[tuple[Any, int], bytes | None], acks: int = -1
) -> dict[tuple[Any, int], Any]:
    """One Produce to many partitions; what became of each."""
    named = "topic_id" if version >= 13 else "name"
    topics: dict[Any, list[dict[str, Any]]] = {}
    for (topic, index), records in parts.items():
        topics.setdefault(topic, []).append({"index": index, "records": records})
    data = [{named: topic, "partition_data": places} for topic, places in topics.items()]
    response = one.call("produce", version, {"acks": acks, "timeout": 10_000, "topic_data": data})
    return {
        (getattr(topic, named), part.index): part for topic in response.responses for part in topic.partition_responses
    }


def poll(one: Connection, topic: str, offset: int, max_wait: int, min_bytes: int, *indexes: int) -> None:
    """Send a Fetch that may wait."""
    places = [{"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20} for index in indexes or (0,)]
    fields = {"max_wait": max_wait, "min_bytes": min_bytes, "max_bytes": 1 << 20}
    one.send("fetch", 12, fields | {"topics": [{"topic": topic, "partitions": places}]})


def polled(one: Connection) -> dict[int, Any]:
    _, response = one.receive()
    assert response.error_code == 0
    return {part.partition_index: part for topic in response.responses for part in topic.partitions}


def waits(broker: BrokerThread, topic: str, index: int = 0) -> None:
    """Return when somebody waits at the partition."""
    until(lambda: broker.call(lambda: bool(broker.partition(topic, index).watchers)))


# Produce.


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_one_partition_that_fails_does_not_fail_the_others(
    broker: BrokerThread, wire: Connection, topic: str, version: int
) -> None:
    broken = bytearray(batch(b"broken"))
    broken[-1] ^= 1
    name: Any = broker.broker.image.topics[topic].id if version >= 13 else topic
    unknown: Any = UUID(int=99) if version >= 13 else "no-such-topic"
    results = produce_parts(
        wire,
        version,
        {
            (name, 0): batch(b"good"),
            (name, 1): bytes(broken),
            (name, 2): batch(b"also good"),
            (name, 7): batch(b"no such partition"),
            (unknown, 0): batch(b"no such topic"),
        },
    )
    gone = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {place: part.error_code for place, part in results.items()} == {
        (name, 0): 0,
        (name, 1): ErrorCode.CORRUPT_MESSAGE,
        (name, 2): 0,
        (name, 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (unknown, 0): gone,
    }
    assert [results[name, index].base_offset for index in (0, 1, 2)] == [0, -1, 0]
    assert [fetch(wire, topic, 0, index).high_watermark for index in (0, 1, 2)] == [1, 0, 1]


def test_a_topic_that_is_deleted_is_unknown(broker: BrokerThread, wire: Connection, topic: str) -> None:
    topic_id = broker.broker.image.topics[topic].id
    assert produce(wire, topic, batch(b"x")).error_code == 0
    broker.delete(topic)
    assert produce(wire, topic, batch(b"x")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (result,) = produce_parts(wire, 13, {(topic_id, 0): batch(b"x")}).values()
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    broker.create(topic)
    assert produce(wire, topic, batch(b"new")).base_offset == 0
    (result,) = produce_parts(wire, 13, {(topic_id, 0): batch(b"x")}).values()
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_ID, "the old id stays that of the old topic"


def test_record_errors_are_reported(broker: BrokerThread, wire: Connection) -> None:
    broker.create("compacted", cleanup_policy="compact")
    result = produce(wire, "compacted", batch(b"a", b"b", b"c", keys=(b"k", None, None)))
    assert result.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in result.record_errors] == [1, 2]
    assert result.error_message


def test_log_append_time_is_answered(broker: BrokerThread, wire: Connection) -> None:
    broker.create("stamped", message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    results = produce_parts(wire, 9, {("stamped", 0): batch(b"x", timestamp=1)})
    stamp = results["stamped", 0].log_append_time
    assert stamp is not None
    stamp_ms = int(stamp.timestamp() * 1000)
    assert before - 1 <= stamp_ms <= int(time.time() * 1000) + 1
    (header,) = headers(bytes(fetch(wire, "stamped", 0).records))
    assert abs(header.max_timestamp - stamp_ms) <= 1


def test_acks_0_is_not_answered_and_its_failure_ends_the_connection(broker: BrokerThread, topic: str) -> None:
    with broker.connect() as one:
        place = {"index": 0, "records": batch(b"x")}
        fields = {"acks": 0, "timeout": 1000, "topic_data": [{"name": topic, "partition_data": [place]}]}
        one.send("produce", 9, fields)
        part = fetch_next(one, topic)
        assert part.high_watermark == 1
        place["records"] = b"rubbish"
        one.send("produce", 9, fields)
        with pytest.raises(ConnectionResetError):
            one.receive_frame()


def fetch_next(one: Connection, topic: str) -> Any:
    """A Fetch behind a Produce that is not answered."""
    one._waiting.clear()
    return fetch(one, topic, 0)


@pytest.mark.parametrize("acks", [0, -1])
def test_requests_of_a_client_take_effect_in_their_order(broker: BrokerThread, topic: str, acks: int) -> None:
    """A Fetch or ListOffsets that was sent behind a Produce sees it, though all were received in one turn."""
    place = {"index": 0, "records": batch(b"x" * 100)}
    fields = {"acks": acks, "timeout": 1000, "topic_data": [{"name": topic, "partition_data": [place]}]}
    latest = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    wanted = [{"topic": topic, "partitions": [{"partition": 0, "partition_max_bytes": 1 << 20}]}]
    with broker.connect() as one:
        sends = [("produce", 9, fields), ("list_offsets", 7, {"replica_id": -1, "topics": latest})]
        sends += [("produce", 9, fields), ("fetch", 12, {"max_bytes": 1 << 20, "topics": wanted})]
        for api, version, request in sends:
            one.send(api, version, request)
        answers = [one.receive()[1] for _ in range(2 if acks == 0 else 4)]
    found, fetched = answers[-3 if acks else -2], answers[-1]
    assert found.topics[0].partitions[0].offset >= 1
    assert fetched.responses[0].partitions[0].high_watermark == 2


def test_strange_acks_are_refused(wire: Connection, topic: str) -> None:
    for acks in (-2, 2, 100):
        assert produce(wire, topic, batch(b"x"), acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_too_few_replicas_in_sync(broker: BrokerThread, wire: Connection) -> None:
    broker.create("strict", min_insync_replicas=2)
    assert produce(wire, "strict", batch(b"x")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert produce(wire, "strict", batch(b"x"), acks=1).error_code == 0


def test_a_pipeline_of_an_idempotent_producer(wire: Connection, topic: str) -> None:
    """In order, retries answered with their first offset, gaps refused, all in one stream of requests."""
    sequences = [0, 1, 2, 2, 1, 4, 3, 4]
    for sequence in sequences:
        place = {"index": 0, "records": batch(b"%d" % sequence, producer=(77, 0, sequence))}
        fields = {"acks": -1, "timeout": 1000, "topic_data": [{"name": topic, "partition_data": [place]}]}
        wire.send("produce", 9, fields)
    parts = [wire.receive()[1].responses[0].partition_responses[0] for _ in sequences]
    gap = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [part.error_code for part in parts] == [0, 0, 0, 0, 0, gap, 0, 0]
    assert [part.base_offset for part in parts] == [0, 1, 2, 2, 1, -1, 3, 4]


# Fetch.


def test_a_long_poll_waits_for_its_first_byte(broker: BrokerThread, wire: Connection, topic: str) -> None:
    poll(wire, topic, 0, 60_000, 1)
    waits(broker, topic)
    with broker.connect() as other:
        assert produce(other, topic, batch(b"at last")).error_code == 0
    assert polled(wire)[0].high_watermark == 1


def test_a_long_poll_waits_for_all_its_bytes(broker: BrokerThread, wire: Connection, topic: str) -> None:
    one = len(batch(b"x" * 100))
    poll(wire, topic, 0, 60_000, 3 * one)
    waits(broker, topic)
    with broker.connect() as other:
        for offset in range(3):
            assert broker.call(lambda: len(broker.partition(topic).watchers)) == 1
            assert produce(other, topic, batch(b"x" * 100)).base_offset == offset
    assert len(polled(wire)[0].records) == 3 * one


def test_a_long_poll_ends_with_what_there_is(wire: Connection, topic: str) -> None:
    assert produce(wire, topic, batch(b"little")).error_code == 0
    poll(wire, topic, 0, 30, 1 << 20)
    assert len(polled(wire)[0].records) > 0
    poll(wire, topic, 1, 30, 1)
    assert polled(wire)[0].high_watermark == 1


def test_one_answer_has_all_that_an_iteration_wrote(broker: BrokerThread, wire: Connection, topic: str) -> None:
    poll(wire, topic, 0, 60_000, 1, 0, 1, 2)
    waits(broker, topic)
    with broker.connect() as other:
        produce_parts(other, 9, {(topic, index): batch(b"x") for index in (0, 1, 2)})
    assert [len(part.records) > 0 for part in polled(wire).values()] == [True, True, True]


def test_a_deleted_topic_ends_a_long_poll(broker: BrokerThread, wire: Connection, topic: str) -> None:
    poll(wire, topic, 0, 60_000, 1)
    waits(broker, topic)
    broker.delete(topic)
    assert polled(wire)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_client_that_is_gone_is_not_waited_for(broker: BrokerThread, topic: str) -> None:
    with broker.connect() as one:
        poll(one, topic, 0, 60_000, 1)
        waits(broker, topic)
    until(lambda: broker.call(lambda: not broker.partition(topic).watchers))


def test_an_error_is_not_waited_with(wire: Connection, topic: str) -> None:
    poll(wire, topic, 100, 60_000, 1)
    assert polled(wire)[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    poll(wire, topic, 0, 60_000, 1, 0, 9)
    assert polled(wire)[9].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_answers_keep_their_order_behind_a_long_poll(broker: BrokerThread, wire: Connection, topic: str) -> None:
    """A Produce sent after a long poll is stored at once and answered after it."""
    poll(wire, topic, 0, 60_000, 1, 1)
    place = {"index": 0, "records": batch(b"behind")}
    fields = {"acks": -1, "timeout": 1000, "topic_data": [{"name": topic, "partition_data": [place]}]}
    wire.send("produce", 9, fields)
    waits(broker, topic, 1)
    with broker.connect() as other:
        until(lambda: fetch(other, topic, 0).high_watermark == 1)
        assert produce_parts(other, 9, {(topic, 1): batch(b"wakes")})[topic, 1].error_code == 0
    assert polled(wire)[1].high_watermark == 1
    assert wire.receive()[1].responses[0].partition_responses[0].base_offset == 0


def test_limits_of_bytes(wire: Connection, topic: str) -> None:
    """At least one batch comes, however small the limits; the others keep within them."""
    for index in (0, 1, 2):
        for _ in range(10):
            produce_parts(wire, 9, {(topic, index): batch(b"x" * 1000)})
    size = len(batch(b"x" * 1000))
    assert len(fetch(wire, topic, 0, max_bytes=1).records) == size
    assert len(fetch(wire, topic, 0, max_bytes=3 * size + 5).records) == 3 * size
    places = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for index in (0, 1, 2)]
    topics = [{"topic": topic, "partitions": places}]
    response = wire.call("fetch", 12, {"max_bytes": 12 * size + 5, "topics": topics})
    assert [len(part.records or b"") for part in response.responses[0].partitions] == [10 * size, 2 * size, 0]


class Session:
    """An incremental fetch session (KIP-227)."""

    def __init__(self, one: Connection, topic: str) -> None:
        self._wire, self._topic = one, topic
        self.id, self.epoch = 0, 0

    def fetch(self, *places: tuple[int, int], forget: tuple[int, ...] = (), error: int = 0) -> dict[int, Any]:
        """Ask for (partition, offset)s besides those known; the partitions of the answer."""
        wanted = [{"partition": i, "fetch_offset": o, "partition_max_bytes": 1 << 20} for i, o in places]
        fields = {
            "max_bytes": 1 << 20,
            "session_id": self.id,
            "session_epoch": self.epoch,
            "topics": [{"topic": self._topic, "partitions": wanted}] if wanted else [],
            "forgotten_topics_data": [{"topic": self._topic, "partitions": list(forget)}] if forget else [],
        }
        response = self._wire.call("fetch", 12, fields)
        assert response.error_code == error
        if not error:
            self.id, self.epoch = response.session_id, self.epoch + 1
        return {part.partition_index: part for topic in response.responses for part in topic.partitions}


def test_a_session_tells_what_has_changed(wire: Connection, topic: str) -> None:
    session = Session(wire, topic)
    assert sorted(session.fetch((0, 0), (1, 0), (2, 0))) == [0, 1, 2]
    assert session.id != 0
    assert session.fetch() == {}
    produce_parts(wire, 9, {(topic, 1): batch(b"x")})
    assert sorted(session.fetch()) == [1]
    assert sorted(session.fetch()) == [1], "it was not told that this has been read"
    assert session.fetch((1, 1)) == {}
    produce_parts(wire, 9, {(topic, index): batch(b"y") for index in (0, 1, 2)})
    assert sorted(session.fetch(forget=(0,))) == [1, 2]


def test_a_session_has_epochs_and_an_end(wire: Connection, topic: str) -> None:
    session = Session(wire, topic)
    session.fetch((0, 0))
    session.epoch += 1
    session.fetch(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    session.epoch -= 1
    session.fetch()
    stranger = Session(wire, topic)
    stranger.id, stranger.epoch = session.id ^ 1, 1
    stranger.fetch(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    session.epoch = -1
    assert sorted(session.fetch((0, 0))) == [0]
    assert session.id == 0, "a full Fetch without a session"


def test_a_session_reports_a_deleted_topic(broker: BrokerThread, wire: Connection, topic: str) -> None:
    session = Session(wire, topic)
    session.fetch((0, 0))
    broker.delete(topic)
    assert session.fetch()[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_counts_of_bytes_are_those_sent(broker: BrokerThread, wire: Connection, topic: str) -> None:
    """Also for a Fetch that was read twice, before and after its wait."""
    data = batch(b"x" * 100)
    assert produce(wire, topic, data).error_code == 0
    poll(wire, topic, 0, 60_000, 2 * len(data))
    waits(broker, topic)
    with broker.connect() as other:
        assert produce(other, topic, data).error_code == 0
    polled(wire)
    partition = broker.partition(topic)
    assert (partition.messages_in, partition.bytes_in, partition.bytes_out) == (
        2,
        2 * len(data),
        2 * len(data),
    )


# Many at once.


ERROR_AT = 4 + 4 + 2 + len("many") + 4 + 4  # in the answer to a Produce of version 7: correlation id, topics ...


class Writer(threading.Thread):
    """A client that pipelines batches of all sizes to its own partition; some hang up in the middle of a frame."""

    def __init__(self, broker: BrokerThread, index: int) -> None:
        super().__init__()
        self.random = Random(index)
        self.index = index
        self.sent: list[bytes] = []
        self.acknowledged = 0
        self._broker = broker

    def run(self) -> None:
        for _ in range(6):
            with self._broker.connect() as one:
                self._talk(one)

    def _talk(self, one: Connection) -> None:
        for _ in range(4):
            sizes = [int(2 ** self.random.uniform(4, self.random.choice((9, 15, 19)))) for _ in range(15)]
            frames = [self._frame(self.random.randbytes(size)) for size in sizes]
            if self.random.random() < 0.2:
                one.socket.sendall(b"".join(frames)[: self.random.randrange(1, sum(map(len, frames)))])
                return  # some of these are stored, none is acknowledged
            one.socket.sendall(b"".join(frames))
            for _ in frames:
                (error,) = struct.unpack_from(">h", one.receive_frame(), ERROR_AT)
                assert error == 0
                self.acknowledged += 1

    def _frame(self, value: bytes) -> bytes:
        records = batch(value)
        self.sent.append(value)
        body = struct.pack(">hhii", -1, -1, 30_000, 1) + struct.pack(">h", 4) + b"many"
        body += struct.pack(">iii", 1, self.index, len(records)) + records
        head = struct.pack(">hhih", 0, 7, 1, 2) + b"me"
        return struct.pack(">i", len(head) + len(body)) + head + body


def test_what_many_clients_send_at_once_is_stored_as_it_was_sent(broker: BrokerThread) -> None:
    """From the shared arena to the files: every batch whole and in order, although clients disconnect meanwhile."""
    broker.create("many", partitions=8)
    writers = [Writer(broker, index) for index in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(TIMEOUT_S)
    assert sum(writer.acknowledged for writer in writers) > 500
    for writer in writers:
        log = broker.partition("many", writer.index).log
        stored = broker.call(lambda: read_all(log))  # noqa: B023 (called at once); it checks the CRCs
        values = [record.value for data in stored for record in decode(memoryview(data))]
        remaining: Iterator[bytes | None] = iter(writer.sent)
        assert all(value in remaining for value in values), "in the order of sending"
        assert len(values) >= writer.acknowledged


# A restart.


def test_a_duplicate_after_a_restart_is_answered_with_its_first_offset(tmp_path: Path) -> None:
    batches = [batch(b"%d" % number, producer=(9, 0, number)) for number in range(8)]
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        broker.create("orders")
        assert [produce(one, "orders", data).base_offset for data in batches[:7]] == list(range(7))
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        assert [produce(one, "orders", data).base_offset for data in batches[2:]] == list(range(2, 8))
        assert fetch(one, "orders", 0).high_watermark == 8
