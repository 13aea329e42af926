"""The coordinator runtime on a real broker: responses wait for the journal, state is loaded, failures reported."""

import asyncio
import errno
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.broker import BrokerThread, crash_image
from tests.support.classic_groups import RANGE
from tests.support.faulty_disk import FaultyDisk
from tests.support.raw import Connection
from tests.support.waiting import until

from levada.broker.broker import Broker
from levada.broker.coordinator.groups import OFFSETS_TOPIC
from levada.broker.coordinator.journal import Journal, ReplayedRecord
from levada.broker.coordinator.runtime import java_hash
from levada.broker.coordinator.shard import CoordinatorShard
from levada.broker.partition.partition import Partition
from levada.config.broker import BrokerConfig
from levada.core.groups.classic.join import JoinRequest
from levada.core.groups.classic.requests import SyncRequest
from levada.core.groups.group import GroupLimits
from levada.core.groups.machine import GroupsMachine
from levada.errors import ErrorCode, KafkaError
from levada.wire.batches import HEADER_BYTES, encode_key_values, read_header
from levada.wire.internal.group_records import OffsetCommitValue, offset_record

QUICK: dict[str, Any] = {"offsets_topic_num_partitions": 3, "group_initial_rebalance_delay_ms": 0}
JOIN = {
    "session_timeout": 30_000,
    "rebalance_timeout": 30_000,
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
}


def find(wire: Connection, group: str = "g") -> Any:
    return wire.call("find_coordinator", 4, {"key_type": 0, "coordinator_keys": [group]}).coordinators[0]


def commit(wire: Connection, offset: int, group: str = "g", topic: str = "t", **more: Any) -> int:
    part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "note"}
    fields = {"generation_id_or_member_epoch": -1, "topics": [{"name": topic, "partitions": [part]}], **more}
    response = wire.call("offset_commit", 9, {"group_id": group, **fields})
    return int(response.topics[0].partitions[0].error_code)


def committed(wire: Connection, group: str = "g", topic: str = "t") -> Any:
    asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
    return wire.call("offset_fetch", 8, {"groups": [asked]}).groups[0]


def wait_until_loaded(wire: Connection) -> None:
    until(lambda: committed(wire).error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def offset(wire: Connection, group: str = "g", topic: str = "t") -> int:
    group_answer = committed(wire, group, topic)
    assert group_answer.error_code == 0
    return int(group_answer.topics[0].partitions[0].committed_offset)


def test_the_first_question_for_a_coordinator_makes_the_topic(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        assert OFFSETS_TOPIC not in one.broker.image.topics
        assert wire.call("list_groups", 4, {}).groups == ()
        assert committed(wire).error_code == ErrorCode.NOT_COORDINATOR
        found = find(wire)
        assert (found.error_code, found.node_id) == (0, 1)
        topic = one.broker.image.topics[OFFSETS_TOPIC]
        assert len(topic.partitions) == 3
        assert topic.configs["cleanup.policy"] == "compact"
        one.create("t")
        assert offset(wire) == -1


def test_questions_at_the_same_time_make_one_topic(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        sent = [
            wire.send("find_coordinator", 4, {"key_type": 0, "coordinator_keys": [f"g{number}"]}) for number in range(5)
        ]
        answers = dict(wire.receive() for _ in sent)
        assert [answers[number].coordinators[0].error_code for number in sent] == [0] * 5


def test_a_coordinator_is_found_when_its_log_is_open(tmp_path: Path) -> None:
    """Otherwise the first JoinGroup fails, and librdkafka tries again after three seconds."""
    settings = QUICK | {"offsets_topic_num_partitions": 50}
    with BrokerThread(tmp_path, **settings) as one, one.connect() as first, one.connect() as second:
        first.send("find_coordinator", 4, {"key_type": 0, "coordinator_keys": ["g"]})
        until(lambda: OFFSETS_TOPIC in one.broker.image.topics)
        assert find(second).error_code == 0
        assert second.call("join_group", 3, {"group_id": "g", **JOIN}).error_code == 0


@pytest.mark.filterwarnings("ignore:offsets.topic.replication.factor=3 needs more brokers:UserWarning")
def test_a_topic_that_cannot_be_made_means_no_coordinator(tmp_path: Path) -> None:
    own = BrokerThread(tmp_path, **QUICK, offsets_topic_replication_factor=3)
    with pytest.warns(UserWarning, match="__consumer_offsets cannot be created"), own as one, one.connect() as wire:
        assert find(wire).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_offsets_and_members_survive_a_kill(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "a", **QUICK) as one, one.connect() as wire:
        one.create("t")
        find(wire)
        for number in range(20):
            assert commit(wire, number, f"g{number}") == 0
        joined = wire.call("join_group", 3, {"group_id": "g", **JOIN})
        assert joined.error_code == 0
        mine = {"group_id": "g", "member_id": joined.member_id, "generation_id": 1}
        shares = [{"member_id": joined.member_id, "assignment": b"all of it"}]
        assert wire.call("sync_group", 3, {**mine, "assignments": shares}).assignment == b"all of it"
        image = crash_image(tmp_path / "a", tmp_path / "b")
    with BrokerThread(image, **QUICK) as other, other.connect() as wire:
        find(wire)
        assert [offset(wire, f"g{number}") for number in range(20)] == list(range(20))
        assert wire.call("heartbeat", 3, mine).error_code == 0
        assert wire.call("sync_group", 3, mine).assignment == b"all of it"
        groups = wire.call("list_groups", 4, {}).groups
        assert {group.group_id: group.group_state for group in groups} == {
            "g": "Stable",
            **{f"g{number}": "Empty" for number in range(20)},
        }


def test_a_group_is_not_served_before_its_journal_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        one.create("t")
        find(wire)
        for number in range(300):
            commit(wire, number)
    begun, gate = read_slowly(monkeypatch)
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        assert begun.wait(10)
        assert find(wire).error_code == 0
        assert committed(wire).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert commit(wire, 1) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert wire.call("join_group", 3, {"group_id": "g", **JOIN}).error_code == (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        )
        assert wire.call("list_groups", 4, {}).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        mine = {"group_id": "g", "member_id": "m", "generation_id": 1}
        assert wire.call("heartbeat", 3, mine).error_code == 0, "older clients do not know the error"
        assert wire.call("sync_group", 3, mine).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        gate.set()
        wait_until_loaded(wire)
        assert offset(wire) == 299


def test_transactions_are_not_listed_before_all_their_journals_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that ends open transactions must not take a part of the list for the whole."""
    client = {"transactional_id": "x", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        wire.call("find_coordinator", 4, {"key_type": 1, "coordinator_keys": ["x"]})
        assert wire.call("init_producer_id", 5, client).error_code == 0
    begun, gate = read_slowly(monkeypatch)
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        assert begun.wait(10)
        listed = wire.call("list_transactions", 2, {"duration_filter": -1})
        assert (listed.error_code, listed.transaction_states) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ())
        gate.set()
        while listed.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            listed = wire.call("list_transactions", 2, {"duration_filter": -1})
        assert [found.transactional_id for found in listed.transaction_states] == ["x"]


def read_slowly(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Journals are not read to their end before a gate is opened: set when one is begun, and the gate."""
    begun, gate, reading = threading.Event(), threading.Event(), asyncio.sleep

    async def slowly(seconds: float) -> None:
        begun.set()
        while seconds == 0 and not gate.is_set():
            await reading(0.001)
        await reading(seconds)

    patched = SimpleNamespace(**vars(asyncio) | {"sleep": slowly})  # for this module only
    monkeypatch.setattr("levada.broker.coordinator.shard.asyncio", patched)
    monkeypatch.setattr("levada.broker.coordinator.shard.LOAD_SLICE_S", -1.0)
    return begun, gate


def test_a_journal_that_cannot_be_read_has_no_coordinator(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is served from a part of it, no client gets an error that it retries, and the other groups go on."""
    other = next(name for name in ("h", "i", "j") if java_hash(name) % 3 != java_hash("g") % 3)
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        one.create("t")
        find(wire)
        commit(wire, 1)
        commit(wire, 5, other)
        one.call(lambda: one.broker.groups.shard("g").partition.append_own(unreadable(), 0))
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        wait_until_loaded(wire)
        assert committed(wire).error_code == ErrorCode.NOT_COORDINATOR
        assert commit(wire, 2) == ErrorCode.NOT_COORDINATOR
        assert offset(wire, other) == 5
        listed = wire.call("list_groups", 4, {})
        assert (listed.error_code, [one.group_id for one in listed.groups]) == (ErrorCode.NONE, [other])
    assert "coordinator load failed" in caplog.text and "background task crashed" not in caplog.text


def test_a_bug_while_a_journal_is_read_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What another broker wrote may be what nobody thought of; its trace is in the log."""
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        one.create("t")
        find(wire)
        commit(wire, 1)

    def fail(*_: object) -> None:
        raise LookupError("nobody thought of it")

    monkeypatch.setattr(GroupsMachine, "replay", fail)
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        wait_until_loaded(wire)
        assert committed(wire).error_code == ErrorCode.NOT_COORDINATOR
        assert commit(wire, 2) == ErrorCode.NOT_COORDINATOR
    assert "coordinator load failed" in caplog.text and "LookupError" in caplog.text
    assert "background task crashed" not in caplog.text


@pytest.mark.parametrize(
    ("form", "at", "value"),
    [(">B", HEADER_BYTES + 20, 0xFF), (">q", 0, 0), (">q", 0, 1 << 40), (">i", 8, 1 << 29), (">i", 8, 1)],
    ids=[
        "another byte",
        "an offset again",
        "an offset beyond the end",
        "a batch too long",
        "a batch too short",
    ],
)
def test_a_damaged_batch_of_a_journal_is_noticed(form: str, at: int, value: int, tmp_path: Path) -> None:
    """After a clean stop nothing else looks at it: no wrong offset is served, and no load goes on for ever."""
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        one.create("t")
        find(wire)
        for number in range(4):
            commit(wire, number)
        partition = one.broker.groups.shard("g").partition
        with (tmp_path / f"{OFFSETS_TOPIC}-{partition.index}" / f"{0:020}.log").open("r+b") as file:
            second = read_header(file.read()).size
            file.seek(second + at)
            file.write(struct.pack(form, value))
        with pytest.raises(KafkaError) as caught:
            one.call(lambda: list(Journal(partition, lambda _: None, lambda _: None).replay()))
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_disk_that_does_not_give_a_journal_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        one.create("t")
        find(wire)
        commit(wire, 1)

    def fail(_: Journal) -> Iterator[ReplayedRecord]:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(Journal, "replay", fail)
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        wait_until_loaded(wire)
        assert committed(wire).error_code == ErrorCode.NOT_COORDINATOR
        assert one.call(lambda: one.broker.log_dirs.offline) == [str(tmp_path)]


def unreadable() -> bytearray:
    """A batch whose record has the key of an offset, and no offset in it."""
    (key, _) = offset_record("g", "t", 0, OffsetCommitValue(0, -1, "", 0))
    return encode_key_values([(key, b"\0")], 0)


def test_a_broken_disk_is_reported_to_waiters(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with BrokerThread(tmp_path, disk=disk, **QUICK) as one, one.connect() as wire, one.connect() as other:
        one.create("t")
        find(wire)
        assert commit(wire, 1) == 0
        assert wire.call("join_group", 3, {"group_id": "g", **JOIN}).generation_id == 1
        other.send("join_group", 3, {"group_id": "g", **JOIN})
        assert group_size(one) == 2
        disk.fail("pwritev", tmp_path / f"{OFFSETS_TOPIC}-")
        assert commit(wire, 2, "g0") == ErrorCode.NOT_COORDINATOR
        _, waiting = other.receive()
        assert waiting.error_code == ErrorCode.NOT_COORDINATOR
        assert commit(wire, 3) == ErrorCode.NOT_COORDINATOR
        assert committed(wire).error_code == ErrorCode.NOT_COORDINATOR


def group_size(one: BrokerThread) -> int:
    """How many members the group has, asked until it has more than one."""

    def size() -> int:
        machine = one.broker.groups.shard("g").ready
        group = machine.classic_group("g")
        return 0 if group is None else len(group.members)

    until(lambda: one.call(size) > 1)
    return one.call(size)


def test_no_commit_is_acknowledged_before_it_is_on_disk(tmp_path: Path) -> None:
    """With fsync before the answer: neither who commits nor who asks."""
    disk = FaultyDisk()
    with (
        BrokerThread(tmp_path, disk=disk, **QUICK, levada_acks_wait_for_fsync="true") as one,
        one.connect() as wire,
        one.connect() as other,
    ):
        one.create("t")
        find(wire)
        disk.gate.clear()
        fields = {"partition_index": 0, "committed_offset": 7}
        wire.send(
            "offset_commit",
            8,
            {
                "group_id": "g",
                "generation_id_or_member_epoch": -1,
                "topics": [{"name": "t", "partitions": [fields]}],
            },
        )
        assert disk.waiting.acquire(timeout=10)
        asked = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}
        other.send("offset_fetch", 8, {"groups": [asked]})
        with one.connect() as third:
            third.call("metadata", 12, {})
        for connection in (wire, other):
            connection.socket.settimeout(0.05)
            with pytest.raises(TimeoutError):
                connection.receive_frame()
            connection.socket.settimeout(20)
        disk.gate.set()
        assert wire.receive()[1].topics[0].partitions[0].error_code == 0
        assert other.receive()[1].groups[0].topics[0].partitions[0].committed_offset == 7


def test_a_journal_that_takes_too_long_is_reported(tmp_path: Path) -> None:
    disk = FaultyDisk()
    settings = {**QUICK, "levada_acks_wait_for_fsync": "true", "offsets_commit_timeout_ms": 200}
    with BrokerThread(tmp_path, disk=disk, **settings) as one, one.connect() as wire:
        one.create("t")
        find(wire)
        disk.gate.clear()
        assert commit(wire, 7) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert commit(wire, 8) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        disk.gate.set()
        until(lambda: committed(wire).error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert offset(wire) == 8, "it was written all the same, as in Kafka"
        until(lambda: commit(wire, 9) == ErrorCode.NONE)  # the disk itself may need longer


def test_a_deleted_topic_loses_its_offsets(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        one.create("t")
        one.create("u")
        find(wire)
        for topic in ("t", "u"):
            assert commit(wire, 5, topic=topic) == 0
        one.delete("t")
        one.create("t")
        assert offset(wire) == -1
        assert offset(wire, topic="u") == 5
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        find(wire)
        assert offset(wire) == -1


def test_the_deleted_internal_topic_takes_its_groups_along(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire, one.connect() as other:
        one.create("t")
        find(wire)
        assert commit(wire, 5) == 0
        wire.call("join_group", 3, {"group_id": "g", **JOIN})
        other.send("join_group", 3, {"group_id": "g", **JOIN})
        assert group_size(one) == 2
        one.delete(OFFSETS_TOPIC)
        assert other.receive()[1].error_code == ErrorCode.NOT_COORDINATOR
        assert commit(wire, 5) == ErrorCode.NOT_COORDINATOR
        assert find(wire).error_code == 0
        assert offset(wire) == -1


def test_a_write_that_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **QUICK, message_max_bytes=10_000) as one, one.connect() as wire:
        one.create("t", partitions=200)
        find(wire)
        parts = [
            {"partition_index": index, "committed_offset": 1, "committed_metadata": "x" * 100} for index in range(200)
        ]
        fields = {"generation_id_or_member_epoch": -1, "topics": [{"name": "t", "partitions": parts}]}
        response = wire.call("offset_commit", 8, {"group_id": "g", **fields})
        codes = {part.error_code for part in response.topics[0].partitions}
        assert codes == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        assert offset(wire) == -1
        assert commit(wire, 3) == 0


@pytest.mark.parametrize("how", ["topic", "group"])
def test_what_is_removed_need_not_fit_into_one_batch(tmp_path: Path, how: str) -> None:
    with BrokerThread(tmp_path, **QUICK, message_max_bytes=2_000) as one, one.connect() as wire:
        one.create("t", partitions=200)
        find(wire)
        for first in range(0, 200, 10):
            parts = [{"partition_index": index, "committed_offset": 1} for index in range(first, first + 10)]
            fields = {"generation_id_or_member_epoch": -1, "topics": [{"name": "t", "partitions": parts}]}
            wire.call("offset_commit", 8, {"group_id": "g", **fields})
        assert offset(wire) == 1
        if how == "topic":
            one.delete("t")
        else:
            (deleted,) = wire.call("delete_groups", 2, {"groups_names": ["g"]}).results
            assert deleted.error_code == 0
        assert wire.call("list_groups", 4, {}).groups == ()
    with BrokerThread(tmp_path, **QUICK) as one, one.connect() as wire:
        find(wire)
        assert wire.call("list_groups", 4, {}).groups == ()


def test_sessions_end_without_anybody_asking(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**QUICK, "group_min_session_timeout_ms": 10}
    with BrokerThread(tmp_path, **settings) as one, one.connect() as wire:
        find(wire)
        joined = wire.call("join_group", 3, {"group_id": "g", **JOIN, "session_timeout": 100})
        assert joined.error_code == 0
        states = {"Stable", "CompletingRebalance", "PreparingRebalance"}
        while (state := wire.call("describe_groups", 5, {"groups": ["g"]}).groups[0].group_state) != "Empty":
            assert state in states


class Standstill:
    """A broker whose time is the test's: the clock is set, and timers ring when the test says so."""

    def __init__(self) -> None:
        self.time_ms = 1_000_000
        self.timers: list[Callable[[], None]] = []
        self.written: list[bytes] = []
        self.clock = self
        self.config = BrokerConfig.load({})[0]

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic(self) -> float:
        return self.time_ms / 1000

    def call_later(self, delay_s: float, ring: Callable[[], None]) -> Any:
        self.timers.append(ring)
        return SimpleNamespace(cancel=lambda: self.timers.remove(ring) if ring in self.timers else None)

    def ring(self) -> None:
        timers, self.timers = self.timers, []
        for one in timers:
            one()

    def shard(self) -> CoordinatorShard[GroupsMachine]:
        config = SimpleNamespace(max_message_bytes=1 << 20, segment_bytes=1 << 30)
        empty = SimpleNamespace(log_start_offset=0, log_end_offset=0, config=config)
        self.partition = SimpleNamespace(
            log=empty,
            offline=False,
            topic=OFFSETS_TOPIC,
            index=0,
            watchers=set(),
            high_watermark=1,
            leader_epoch=0,
            append_own=self.append,
        )
        limits = GroupLimits(initial_rebalance_delay_ms=0)
        return CoordinatorShard(cast(Broker, self), cast(Partition, self.partition), lambda: GroupsMachine(limits))

    def append(self, batch: bytes, now_ms: int) -> int:
        self.written.append(batch)
        return 1

    def publish(self) -> None:
        for waiter in list(self.partition.watchers):
            waiter.try_complete(0)


def test_a_process_that_stood_still_reads_requests_of_members_before_it_removes_them() -> None:
    broker = Standstill()
    shard = broker.shard()
    received: list[Any] = []

    def ask(decide: Callable[[GroupsMachine, int, Any], Any]) -> None:
        shard.submit(decide, lambda _: "well").add_done_callback(received.append)
        broker.publish()

    request = JoinRequest("g", "", None, "c", "/h", 10_000, 60_000, "consumer", RANGE, "m", require_member_id=False)
    ask(lambda machine, now_ms, handle: machine.join(request, now_ms, handle))
    sync = SyncRequest("g", "m", None, 1, None, None, {"m": b""})
    ask(lambda machine, now_ms, handle: machine.sync(sync, now_ms, handle))
    assert len(broker.written) == 1, "the assignment"
    for _ in range(2):
        broker.time_ms += 3_600_000
        broker.ring()
        ask(lambda machine, now_ms, handle: machine.heartbeat("g", "m", None, 1, now_ms, handle))
        broker.ring()
    assert received == ["well"] * 4
    assert len(broker.written) == 1, "nobody was removed"
    broker.time_ms += 9_999
    broker.ring()
    broker.ring()
    assert len(broker.written) == 1, "a session never ends early"
    broker.time_ms += 1
    broker.ring()
    broker.ring()
    assert len(broker.written) == 2, "who is silent is"


# Small parts
