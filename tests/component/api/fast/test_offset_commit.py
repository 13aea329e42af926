"""The fast path of OffsetCommit decodes and responds as the general codec does."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.broker import BrokerThread

from levada.errors import ErrorCode
from levada.wire.fast import offset_commit


@pytest.fixture(params=[True, False], ids=["fast", "general"])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerThread]:
    """A broker with fast paths and one without: clients see no difference."""
    with BrokerThread(levada_fast_paths=request.param) as own:
        own.wait(own.broker.groups.create_topic())
        own.create("orders", partitions=2)
        yield own


def committed(broker: BrokerThread, version: int, *partitions: tuple[int, int], **fields: Any) -> list[ErrorCode]:
    """Commit (partition, offset) of orders; the codes of the response."""
    topic: dict[str, Any] = {"name": "orders"}
    if version >= offset_commit.TOPIC_IDS_FROM:
        topic = {"topic_id": broker.broker.image.topics["orders"].id}
    parts = [
        {"partition_index": index, "committed_offset": offset, "committed_metadata": ""} for index, offset in partitions
    ]
    who = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    with broker.connect() as connection:
        response = connection.call(
            "offset_commit", version, {**who, "topics": [{**topic, "partitions": parts}], **fields}
        )
    return [part.error_code for part in response.topics[0].partitions]


def kept(broker: BrokerThread) -> list[int]:
    with broker.connect() as connection:
        response = connection.call(
            "offset_fetch", 7, {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0, 1]}]}
        )
    return [part.committed_offset for part in response.topics[0].partitions]


@pytest.mark.parametrize("version", offset_commit.VERSIONS)
def test_commits_of_the_fast_path_and_others_have_the_same_result(broker: BrokerThread, version: int) -> None:
    assert committed(broker, version, (0, 5), (1, 6)) == [ErrorCode.NONE] * 2
    assert kept(broker) == [5, 6]
    unknown = committed(broker, version, (0, 7), (9, 7))
    assert unknown == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    nobody = committed(broker, version, (0, 8), generation_id_or_member_epoch=3, member_id="nobody")
    assert nobody == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert kept(broker) == [7, 6]


def test_waiters_for_a_lost_journal_get_an_error(broker: BrokerThread) -> None:
    """What could not be written is not acknowledged."""
    assert committed(broker, 9, (0, 5)) == [ErrorCode.NONE]
    broker.call(broker.broker.groups.shard("g").partition.go_offline)
    assert committed(broker, 9, (0, 6), (1, 6)) == [ErrorCode.NOT_COORDINATOR] * 2
