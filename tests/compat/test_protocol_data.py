"""Produce, Fetch and ListOffsets on the wire, where implementations differ from Kafka.

Every code and every field here is what Apache Kafka 4.3.1 answered to the same bytes.
"""

import uuid
from typing import Any

import pytest
from tests.compat.drivers.base import Create, Driver
from tests.support import raw
from tests.support.raw import Connection, batch, fetch, produce

from levada.errors import ErrorCode

THEN = 1_700_000_000_000


def topic_id(reference: Driver, topic: str) -> uuid.UUID:
    return uuid.UUID(reference.describe_topic(topic).topic_id)


def corrupted(records: bytes) -> bytes:
    return records[:-1] + bytes([records[-1] ^ 1])


def with_magic(records: bytes, magic: int) -> bytes:
    return records[:16] + bytes([magic]) + records[17:]


class TestProduce:
    @pytest.mark.parametrize(
        ("records", "code"),
        [
            pytest.param(corrupted(batch(b"a")), ErrorCode.CORRUPT_MESSAGE, id="wrong crc"),
            pytest.param(batch(b"a") * 2, ErrorCode.INVALID_RECORD, id="two batches"),
            pytest.param(b"", ErrorCode.INVALID_RECORD, id="no batch"),
            pytest.param(batch(b"a", b"b", record_count=3), ErrorCode.INVALID_RECORD, id="count too high"),
            pytest.param(batch(b"a", b"b", record_count=1), ErrorCode.INVALID_RECORD, id="count too low"),
            pytest.param(batch(b"a", attributes=0x20), ErrorCode.INVALID_RECORD, id="control batch"),
            pytest.param(with_magic(batch(b"a"), 1), ErrorCode.INVALID_RECORD, id="old magic"),
            pytest.param(batch(b"a")[:-3], ErrorCode.INVALID_RECORD, id="cut off"),
        ],
    )
    def test_refused(self, wire: Connection, topic: str, records: bytes, code: ErrorCode) -> None:
        refused = produce(wire, topic, records)
        assert (refused.error_code, refused.base_offset) == (code, -1)
        assert produce(wire, topic, batch(b"good")).base_offset == 0

    def test_unknown_topic_and_acks(self, wire: Connection, topic: str) -> None:
        unknown = produce(wire, f"{topic}-none", batch(b"a"))
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert produce(wire, topic, batch(b"a"), acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS

    def test_zstd_needs_version_7(self, wire: Connection, topic: str) -> None:
        refused = produce(wire, topic, batch(b"a", attributes=4), version=6)
        assert refused.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE

    def test_too_large(self, wire: Connection, name: str, create: Create) -> None:
        create(name, configs={"max.message.bytes": "100"})
        refused = produce(wire, name, batch(b"a" * 200))
        assert (refused.error_code, refused.base_offset) == (ErrorCode.MESSAGE_TOO_LARGE, -1)

    def test_records_without_key_on_a_compacted_topic(self, wire: Connection, name: str, create: Create) -> None:
        """The whole batch is refused, and the reply names each bad record."""
        create(name, configs={"cleanup.policy": "compact"})
        refused = produce(wire, name, batch(b"a", b"b", b"c", keys=[b"key", None, None]))
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert [error.batch_index for error in refused.record_errors] == [1, 2]
        assert refused.error_message
        assert produce(wire, name, batch(b"a")).base_offset == 0

    def test_timestamps_too_far_ahead(self, wire: Connection, topic: str) -> None:
        refused = produce(wire, topic, batch(b"a", b"b", timestamp=99_999_999_999_999))
        assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [error.batch_index for error in refused.record_errors] == [0, 1]

    def test_by_topic_id(self, wire: Connection, topic: str, reference: Driver) -> None:
        def send(asked: uuid.UUID) -> Any:
            place = {"topic_id": asked, "partition_data": [{"index": 0, "records": batch(b"a")}]}
            return wire.call("produce", 13, {"acks": -1, "timeout": 5000, "topic_data": [place]}).responses[0]

        found = send(topic_id(reference, topic))
        assert found.partition_responses[0].base_offset == 0
        unknown = send(uuid.uuid4())
        assert unknown.partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    def test_log_append_time(self, wire: Connection, name: str, create: Create) -> None:
        create(name, configs={"message.timestamp.type": "LogAppendTime"})
        done = produce(wire, name, batch(b"a", b"b"))
        (stored,) = raw.headers(fetch(wire, name, 0).records)
        assert stored.attributes & 8
        assert done.log_append_time.timestamp() * 1000 == pytest.approx(stored.max_timestamp, abs=1)
        assert stored.max_timestamp > THEN

    def test_no_reply_to_acks_0(self, wire: Connection, topic: str) -> None:
        place = {"name": topic, "partition_data": [{"index": 0, "records": batch(b"a")}]}
        wire.send("produce", 9, {"acks": 0, "timeout": 5000, "topic_data": [place]})
        assert produce(wire, topic, batch(b"b")).base_offset == 1


class TestIdempotence:
    @pytest.fixture
    def producer(self, wire: Connection) -> tuple[int, int]:
        given = wire.call("init_producer_id", 4)
        assert given.error_code == 0
        return given.producer_id, given.producer_epoch

    def test_ids_differ(self, wire: Connection, producer: tuple[int, int]) -> None:
        assert wire.call("init_producer_id", 4).producer_id != producer[0]

    def test_duplicates_get_their_first_offset(self, wire: Connection, topic: str, producer: tuple[int, int]) -> None:
        sent = [batch(b"a", b"b", producer=(*producer, sequence)) for sequence in (0, 2, 4)]
        assert [produce(wire, topic, one).base_offset for one in sent] == [0, 2, 4]
        again = [produce(wire, topic, one) for one in sent]
        assert [(one.error_code, one.base_offset) for one in again] == [(0, 0), (0, 2), (0, 4)]
        assert fetch(wire, topic, 0).high_watermark == 6

    def test_gaps_and_old_epochs(self, wire: Connection, topic: str, producer: tuple[int, int]) -> None:
        producer_id, epoch = producer

        def code(epoch: int, sequence: int) -> int:
            records = batch(b"a", b"b", producer=(producer_id, epoch, sequence))
            return int(produce(wire, topic, records).error_code)

        assert code(epoch, 0) == 0
        assert code(epoch, 9) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert code(epoch + 1, 5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert code(epoch + 1, 0) == 0
        assert code(epoch, 2) == ErrorCode.INVALID_PRODUCER_EPOCH

    def test_only_the_last_five_batches_are_known(
        self, wire: Connection, topic: str, producer: tuple[int, int]
    ) -> None:
        for sequence in range(6):
            assert produce(wire, topic, batch(b"a", producer=(*producer, sequence))).base_offset == sequence
        forgotten = produce(wire, topic, batch(b"a", producer=(*producer, 0)))
        assert forgotten.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert produce(wire, topic, batch(b"a", producer=(*producer, 1))).base_offset == 1

    def test_a_producer_that_the_partition_never_saw(self, wire: Connection, topic: str) -> None:
        """Its records may be gone by retention: any first sequence is taken."""
        assert produce(wire, topic, batch(b"a", producer=(987_654_321, 0, 7))).base_offset == 0


class TestFetch:
    def test_from_the_middle_gives_the_whole_batch(self, wire: Connection, topic: str) -> None:
        produce(wire, topic, batch(b"a", b"b", b"c"))
        part = fetch(wire, topic, 2)
        (found,) = raw.headers(part.records)
        assert (found.base_offset, found.record_count, part.high_watermark) == (0, 3, 3)

    def test_stored_as_sent(self, wire: Connection, topic: str) -> None:
        """Only base offset and leader epoch change; what the CRC covers stays."""
        produce(wire, topic, batch(b"a"))
        sent = batch(b"b", timestamp=THEN + 5)
        produce(wire, topic, sent)
        stored = fetch(wire, topic, 1).records
        (found,) = raw.headers(stored)
        assert (found.base_offset, found.leader_epoch >= 0) == (1, True)
        assert stored[16:] == sent[16:]

    def test_first_batch_may_pass_the_limit(self, wire: Connection, topic: str) -> None:
        """KIP-74: a small partition_max_bytes must not stop a consumer."""
        sent = batch(b"x" * 500)
        for _ in range(3):
            produce(wire, topic, sent)
        assert len(fetch(wire, topic, 0, max_bytes=1).records) == len(sent)
        assert len(list(raw.headers(fetch(wire, topic, 0, max_bytes=len(sent) * 2).records))) == 2

    @pytest.mark.parametrize(
        ("place", "code"),
        [
            ({"offset": 1000}, ErrorCode.OFFSET_OUT_OF_RANGE),
            ({"offset": -1}, ErrorCode.OFFSET_OUT_OF_RANGE),
            ({"offset": 0, "partition": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({"offset": 0, "current_leader_epoch": 100}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ],
    )
    def test_refused(self, wire: Connection, topic: str, place: dict[str, int], code: ErrorCode) -> None:
        part = fetch(wire, topic, **place)
        assert (part.error_code, part.high_watermark, part.log_start_offset) == (code, -1, -1)
        assert part.records in (b"", None)

    def test_unknown_topic(self, wire: Connection, name: str) -> None:
        assert fetch(wire, name, 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_by_topic_id(self, wire: Connection, topic: str, reference: Driver) -> None:
        produce(wire, topic, batch(b"a"))

        def ask(asked: uuid.UUID) -> Any:
            place = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
            fields = {"max_bytes": 1 << 20, "topics": [{"topic_id": asked, "partitions": [place]}]}
            return wire.call("fetch", 17, fields).responses[0]

        assert ask(topic_id(reference, topic)).partitions[0].high_watermark == 1
        assert ask(uuid.uuid4()).partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    def test_waits_for_data(self, broker: str, wire: Connection, topic: str) -> None:
        """A long poll is answered by the record that ends it, while others are served."""
        place = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        topics = [{"topic": topic, "partitions": [place]}]
        wire.send("fetch", 12, {"max_wait": 15_000, "min_bytes": 1, "max_bytes": 1 << 20, "topics": topics})
        with Connection(broker) as other:
            assert produce(other, topic, batch(b"a")).base_offset == 0
        _, response = wire.receive()
        assert len(list(raw.headers(response.responses[0].partitions[0].records))) == 1


class TestFetchSessions:
    """KIP-227: a consumer of many partitions sends and gets only what changed."""

    @staticmethod
    def ask(wire: Connection, session: int, epoch: int, places: list[tuple[str, int, int]], **more: Any) -> Any:
        topics = [
            {
                "topic": topic,
                "partitions": [{"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20}],
            }
            for topic, index, offset in places
        ]
        fields = {"session_id": session, "session_epoch": epoch, "max_bytes": 1 << 20, "topics": topics}
        return wire.call("fetch", 12, fields | more)

    def test_only_changes_are_sent(self, wire: Connection, name: str, create: Create) -> None:
        create(name, partitions=2)
        first = self.ask(wire, 0, 0, [(name, 0, 0), (name, 1, 0)])
        session = first.session_id
        assert session > 0
        assert sum(len(topic.partitions) for topic in first.responses) == 2
        assert self.ask(wire, session, 1, []).responses == ()
        produce(wire, name, batch(b"a"))
        changed = self.ask(wire, session, 2, [])
        assert [part.partition_index for part in changed.responses[0].partitions] == [0]
        assert self.ask(wire, session, 3, [(name, 0, 1)]).responses == ()
        produce(wire, name, batch(b"b"))
        forgotten = {"forgotten_topics_data": [{"topic": name, "partitions": [0]}]}
        assert self.ask(wire, session, 4, [], **forgotten).responses == ()

    def test_wrong_epoch_and_unknown_session(self, wire: Connection, topic: str) -> None:
        session = self.ask(wire, 0, 0, [(topic, 0, 0)]).session_id
        wrong = self.ask(wire, session, 5, [])
        assert (wrong.error_code, wrong.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, ())
        unknown = self.ask(wire, session + 12_345, 1, [])
        assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    def test_without_a_session(self, wire: Connection, topic: str) -> None:
        assert self.ask(wire, 0, -1, [(topic, 0, 0)]).session_id == 0


class TestListOffsets:
    @staticmethod
    def ask(wire: Connection, topic: str, timestamp: int, version: int = 11, **more: int) -> Any:
        place = {"partition_index": 0, "timestamp": timestamp, **more}
        fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": [place]}]}
        return wire.call("list_offsets", version, fields).topics[0].partitions[0]

    @pytest.mark.parametrize(
        ("timestamp", "expected"),
        [
            (-1, (-1, 5)),
            (-2, (-1, 0)),
            (-3, (THEN + 9, 3)),
            (-4, (-1, 0)),
            (-5, (-1, -1)),
            (0, (THEN, 0)),
            (THEN + 1, (THEN + 9, 3)),
            (THEN + 9, (THEN + 9, 3)),
            (THEN + 10, (-1, -1)),
        ],
    )
    def test_found(self, wire: Connection, topic: str, timestamp: int, expected: tuple[int, int]) -> None:
        produce(wire, topic, batch(b"a", b"b", b"c", timestamp=THEN))
        produce(wire, topic, batch(b"d", timestamp=THEN + 9))
        produce(wire, topic, batch(b"e", timestamp=THEN + 1))
        found = self.ask(wire, topic, timestamp)
        assert found.error_code == 0
        assert (found.timestamp, found.offset) == expected
        assert found.leader_epoch == (-1 if found.offset < 0 else 0)

    def test_refused(self, wire: Connection, topic: str) -> None:
        assert self.ask(wire, f"{topic}-none", -1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        fenced = self.ask(wire, topic, -1, current_leader_epoch=100)
        assert fenced.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert self.ask(wire, topic, -3, version=1).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert self.ask(wire, topic, -77).error_code == ErrorCode.UNSUPPORTED_VERSION

    def test_a_partition_named_twice(self, wire: Connection, topic: str) -> None:
        places = [{"partition_index": 0, "timestamp": when, "current_leader_epoch": -1} for when in (-1, -2)]
        fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": places}]}
        (part,) = wire.call("list_offsets", 7, fields).topics[0].partitions
        assert (part.error_code, part.offset) == (ErrorCode.INVALID_REQUEST, -1)

    def test_max_timestamp_of_nothing(self, wire: Connection, topic: str) -> None:
        found = self.ask(wire, topic, -3)
        assert (found.error_code, found.timestamp, found.offset) == (0, -1, -1)


def test_leader_epochs(wire: Connection, topic: str) -> None:
    produce(wire, topic, batch(b"a", b"b"))
    asked = [
        {"partition": 0, "leader_epoch": 0},
        {"partition": 5, "leader_epoch": 0},
        {"partition": 0, "leader_epoch": 9},
    ]
    fields = {"replica_id": -1, "topics": [{"topic": topic, "partitions": asked}]}
    found = wire.call("offset_for_leader_epoch", 4, fields).topics[0].partitions
    assert [(part.error_code, part.leader_epoch, part.end_offset) for part in found] == [
        (0, 0, 2),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
        (0, -1, -1),
    ]


def test_replies_keep_the_order_of_requests(wire: Connection, topic: str) -> None:
    """Clients pipeline: a slow answer (here the long poll) may not be overtaken."""
    place = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic": topic, "partitions": [place]}]
    sent = [wire.send("fetch", 12, {"max_wait": 300, "min_bytes": 1, "max_bytes": 1 << 20, "topics": topics})]
    for number in range(50):
        data = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"%d" % number)}]}]
        sent.append(wire.send("produce", 9, {"acks": 1, "timeout": 5000, "topic_data": data}))
        sent.append(wire.send("metadata", 12, {"topics": []}))
    replies = [wire.receive() for _ in sent]
    assert [correlation_id for correlation_id, _ in replies] == sent
    offsets = [reply.responses[0].partition_responses[0].base_offset for _, reply in replies[1::2]]
    assert offsets == list(range(50))


def test_bytes_after_a_request_mean_nothing(wire: Connection, topic: str) -> None:
    """A newer client may say more than a broker of its version knows."""
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"a")}]}]
    stored = wire.call("produce", 9, {"acks": 1, "timeout": 5000, "topic_data": data}, trailing=b"more")
    assert stored.responses[0].partition_responses[0].error_code == 0
    place = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    fields = {"max_bytes": 1 << 20, "topics": [{"topic": topic, "partitions": [place]}]}
    (part,) = wire.call("fetch", 12, fields, trailing=b"more").responses[0].partitions
    assert bytes(part.records)[61:] == batch(b"a")[61:]
    (found,) = wire.call("metadata", 12, {"topics": [{"name": topic}]}, trailing=b"more").topics
    assert (found.name, found.error_code) == (topic, 0)
