"""Pipelined group requests with large responses, without reading: memory stays bounded."""

import struct
from contextlib import ExitStack
from itertools import count

import pytest
from tests.badinput.broker import Broker
from tests.badinput.golden import TOPIC
from tests.support.raw import Connection
from tests.support.waiting import until

from levada.broker.coordinator.runtime import java_abs, java_hash
from levada.errors import ErrorCode

OTHERS = 8
TIMES = 300  # answers of eight megabytes, or of one
MIB = 1 << 20
END_OF_TOPIC = {
    "replica_id": -1,
    "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
}


class Chatter:
    """A leader and others, eight unless said otherwise, in a generation that waits for its leader's assignment."""

    def __init__(self, broker: Broker, group: str, stack: ExitStack, metadata_bytes: int, others: int = OTHERS) -> None:
        self._group = group
        self.leader = stack.enter_context(Connection(broker.bootstrap))
        self.leader.socket.settimeout(30.0)
        until(lambda: self.leader.call("find_coordinator", 0, {"key": group}).error_code == ErrorCode.NONE)
        self.join(self.leader, "", b"")
        self.leader_id = self.leader.receive()[1].member_id
        self.sync(self.leader, 1, self.leader_id, {})
        self.leader.receive()
        self.others = [stack.enter_context(Connection(broker.bootstrap)) for _ in range(others)]
        for other in self.others:
            self.join(other, "", bytes(metadata_bytes))
        self._await_others(broker)
        self.join(self.leader, self.leader_id, b"")
        joined = self.leader.receive()[1]
        assert (joined.error_code, len(joined.members)) == (ErrorCode.NONE, others + 1)
        self.generation = joined.generation_id

    def _await_others(self, broker: Broker) -> None:
        """All of them have joined when the group has so many members; meanwhile the leader stays in."""
        beat = {"group_id": self._group, "generation_id": 1, "member_id": self.leader_id}
        asked = {"groups": [self._group]}

        def have_joined() -> bool:
            self.leader.call("heartbeat", 0, beat)
            return len(one.call("describe_groups", 0, asked).groups[0].members) > len(self.others)

        with Connection(broker.bootstrap) as one:
            until(have_joined)

    def join(self, one: Connection, member_id: str, metadata: bytes) -> None:
        timeouts = {"session_timeout": 60_000, "rebalance_timeout": 60_000}
        protocols = [{"name": "range", "metadata": metadata}]
        fields = {"group_id": self._group, "member_id": member_id, "protocol_type": "consumer"}
        one.send("join_group", 3, {**fields, **timeouts, "protocols": protocols})

    def sync(self, one: Connection, generation: int, member_id: str, parts: dict[str, bytes]) -> None:
        assignments = [{"member_id": name, "assignment": part} for name, part in parts.items()]
        member = {"group_id": self._group, "generation_id": generation, "member_id": member_id}
        one.send("sync_group", 2, {**member, "assignments": assignments})

    def commit(self, one: Connection) -> None:
        """Offsets of another group of the same coordinator: what comes behind them waits until they are written."""
        beside = next(name for name in map("beside-{}".format, count()) if shard(name) == shard(self._group))
        topics = [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
        member = {"group_id": beside, "generation_id_or_member_epoch": -1, "member_id": ""}
        one.send("offset_commit", 2, {**member, "retention_time": -1, "topics": topics})


def shard(group: str) -> int:
    """Which of the fifty coordinators a group has."""
    return java_abs(java_hash(group)) % 50


def at_once(one: Connection, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What `one` sends from now on, framed, instead of on its way."""
    frames: list[bytes] = []
    monkeypatch.setattr(one, "send_frame", lambda frame: frames.append(struct.pack(">i", len(frame)) + frame))
    return frames


def peak(broker: Broker, one: Connection, answers: int) -> int:
    """Read so many answers, slowly enough to look at the broker's memory after each; the most that it had."""
    most = 0
    for _ in range(answers):
        most = max(most, broker.memory())
        one.receive_frame()
    return most


@pytest.mark.parametrize("behind_a_commit", [False, True], ids=["alone", "behind-a-commit"])
def test_a_leader_may_ask_many_times_what_its_members_say(
    broker: Broker, behind_a_commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        group = Chatter(broker, f"leader-{behind_a_commit}", stack, metadata_bytes=1_000_000)
        before, frames = broker.memory(), at_once(group.leader, monkeypatch)
        if behind_a_commit:
            group.commit(group.leader)
        for _ in range(TIMES // OTHERS):
            group.join(group.leader, group.leader_id, b"")
        group.leader.socket.sendall(b"".join(frames))
        broker.check_health()
        assert peak(broker, group.leader, len(frames)) - before < 100 * MIB


def test_a_member_may_ask_many_times_for_a_large_part(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        group = Chatter(broker, "follower", stack, metadata_bytes=10)
        follower = group.others[0]
        follower.socket.settimeout(30.0)
        member_id = follower.receive()[1].member_id
        group.sync(group.leader, group.generation, group.leader_id, {member_id: bytes(900_000)})
        assert group.leader.receive()[1].error_code == ErrorCode.NONE
        before, frames = broker.memory(), at_once(follower, monkeypatch)
        for _ in range(TIMES):
            group.sync(follower, group.generation, member_id, {})
        follower.socket.sendall(b"".join(frames))
        broker.check_health()
        assert peak(broker, follower, len(frames)) - before < 100 * MIB


BEHIND = 200  # generations, whose answers would take two hundred megabytes or more
GENERATION_BYTES = 1_000_000


def long_poll(one: Connection) -> None:
    """Nothing behind it leaves before it is answered, in ten minutes."""
    end = one.call("list_offsets", 1, END_OF_TOPIC).topics[0].partitions[0].offset
    part = {"partition": 0, "fetch_offset": end, "partition_max_bytes": MIB}
    waits = {"max_wait": 600_000, "min_bytes": MIB, "max_bytes": MIB}
    one.send("fetch", 4, {**waits, "topics": [{"topic": TOPIC, "partitions": [part]}]})


def test_parts_of_many_generations_behind_an_answer_that_waits(broker: Broker) -> None:
    """Each keeps what was assigned in a generation of its own: the connection is read no more when that is much."""
    with ExitStack() as stack:
        group = Chatter(broker, "parts", stack, metadata_bytes=10, others=0)
        blocked = stack.enter_context(Connection(broker.bootstrap))
        long_poll(blocked)
        before, most = broker.memory(), 0
        for generation in range(group.generation, group.generation + BEHIND):
            part = generation.to_bytes(4, "big") * (GENERATION_BYTES // 4)
            group.sync(group.leader, generation, group.leader_id, {group.leader_id: part})
            assert group.leader.receive()[1].error_code == ErrorCode.NONE
            group.sync(blocked, generation, group.leader_id, {})
            group.join(group.leader, group.leader_id, b"")
            assert group.leader.receive()[1].error_code == ErrorCode.NONE
            most = max(most, broker.memory())
        assert most - before < 130 * MIB


def test_what_members_sent_in_many_generations_behind_an_answer_that_waits(broker: Broker) -> None:
    """A leader that joins on such a connection gets all members; it is read from no more while that is much."""
    with ExitStack() as stack:
        group = Chatter(broker, "said", stack, metadata_bytes=10, others=2)
        talker, last = group.others
        talker_id, last_id = (one.receive()[1].member_id for one in group.others)
        blocked = stack.enter_context(Connection(broker.bootstrap))
        long_poll(blocked)
        last.socket.settimeout(3.0)
        before, most = broker.memory(), 0
        for generation in range(group.generation, group.generation + BEHIND):
            group.join(talker, talker_id, generation.to_bytes(4, "big") * (GENERATION_BYTES // 4))
            beat = {"group_id": "said", "generation_id": generation, "member_id": last_id}
            until(lambda: last.call("heartbeat", 0, beat).error_code == ErrorCode.REBALANCE_IN_PROGRESS)  # noqa: B023
            group.join(blocked, group.leader_id, b"")
            broker.check_health()  # by now the leader's was heard
            group.join(last, last_id, bytes(10))
            most = max(most, broker.memory())
            try:
                last.receive_frame()
            except TimeoutError:
                break  # the leader is not heard, so there is no generation
            talker.receive_frame()
        assert most - before < 130 * MIB
