"""OffsetCommit as consumers usually send it, straight from the frame to the coordinator.

Whatever is not usual is left to `levada.api.offset_commits`, and so is whatever would be refused: the machine has
changed nothing then, and decides once more on the same request in its general shape.
"""

from functools import partial
from typing import Any

from levada.api.offset_commits import known_topic
from levada.api.registry import takes_frames
from levada.broker.broker import Broker
from levada.broker.waiting import Answer
from levada.core.groups import GroupsMachine
from levada.core.machines import Outcome, Ticket
from levada.core.offsets import CommitRequest
from levada.errors import KafkaError
from levada.net.listener import Connection
from levada.wire import offset_commit
from levada.wire.journal import OffsetValue
from levada.wire.offset_commit import Head, Partition


@takes_frames("offset_commit", versions=offset_commit.VERSIONS)
def usual_commit(
    broker: Broker,
    connection: Connection,
    view: memoryview,
    position: int,
    stop: int,
    version: int,
    correlation_id: int,
) -> bool:
    """Commit offsets of one topic; False if this is another kind of commit."""
    usual = offset_commit.read(view, position, stop, version)
    if usual is None:
        return False
    head, parts = usual
    topic, count, _ = known_topic(broker.image, head.topic, head.topic_id)
    now_ms = broker.clock.now_ms()
    offsets = [
        ((topic, index), OffsetValue(offset, leader_epoch, "", now_ms))
        for index, offset, leader_epoch, _, _ in parts
        if 0 <= index < count
    ]
    if len(offsets) < len(parts):
        return False
    who = (head.group_id, head.member_id, head.instance_id, head.generation)
    commit = CommitRequest(*who, offsets, api_version=version)
    try:
        decided = broker.groups.shard(head.group_id).submit(partial(_decide, commit))
    except KafkaError:
        return False
    answer = Answer(connection)
    decided.then(partial(_give, answer, correlation_id, head, parts))
    connection.reply(answer)
    return True


def _decide(commit: CommitRequest, machine: GroupsMachine, now_ms: int, ticket: Ticket) -> Outcome:
    return machine.commit(commit, now_ms, ticket)


def _give(answer: Answer, correlation_id: int, head: Head, parts: list[Partition], result: Any) -> None:
    codes = [result.code] * len(parts) if isinstance(result, KafkaError) else result
    answer.give(offset_commit.write_answer(correlation_id, head, parts, codes))
