"""The Fetch of followers: written and read by hand, compared with what the broker's codec reads and writes."""

import pytest

from levada.errors import ErrorCode
from levada.wire.fast import fetch
from levada.wire.fast.leader_hints import CurrentLeader, NodeEndpoint
from levada.wire.fast.replica_fetch import VERSION, FetchLimits, ReplicaFetch, read_response, write_request
from levada.wire.schema import messages

FIRST, SECOND = b"a" * 16, b"b" * 16
WANTED = [
    ReplicaFetch(SECOND, 3, 7, 100, 6, 4, 1 << 20),
    ReplicaFetch(FIRST, 0, 7, 2**40, -1, 0, 1 << 20),
    ReplicaFetch(FIRST, 5, 8, 0, -1, 0, 1 << 20),
]
FETCH = messages.api_key("fetch")
DATA = [
    fetch.PartitionData(FIRST, 0, ErrorCode.NONE, 10, 9, 1, [memoryview(b"abc"), b"defg"], 7),
    fetch.PartitionData(FIRST, 1, ErrorCode.NONE, 5, 5, 0, diverging=(3, 77)),
    fetch.PartitionData(SECOND, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=CurrentLeader(2, 9)),
]


def test_the_broker_reads_what_a_follower_writes() -> None:
    forgotten = [(SECOND, 9), (FIRST, 1), (SECOND, 8)]
    body = write_request((4, 2**50), (11, 12), FetchLimits(500, 1, 1 << 23), WANTED, forgotten)
    view = memoryview(b"\0" + bytes(body))
    request = fetch.read_request(view, 0, len(view), VERSION)
    assert (request.replica_id, request.broker_epoch, request.rack) == (4, 2**50, b"")
    assert request.partitions == [fetch.PartitionFetch(*one) for one in sorted(WANTED)]
    assert sorted(request.forgotten) == sorted(forgotten)
    assert request[1:7] == (500, 1, 1 << 23, 0, 11, 12)


def test_kios_reader_reads_what_a_follower_writes() -> None:
    body = write_request((4, 2**50), (11, 12), FetchLimits(500, 1, 1 << 23), WANTED, [])
    shape = messages.read_request(FETCH, VERSION, bytes(body), 0)
    assert (shape.replica_state.replica_id, shape.replica_state.replica_epoch) == (4, 2**50)


def test_a_follower_reads_what_the_broker_writes() -> None:
    frame = b"".join(fetch.write_response(VERSION, 7, ErrorCode.NONE, 42, DATA))
    error, session_id, results = read_response(memoryview(frame)[9:])  # after size, correlation id and header tags
    assert (error, session_id) == (ErrorCode.NONE, 42)
    assert [(one.topic_id, one.partition, one.error, bytes(one.records)) for one in results] == [
        (one.topic, one.partition, one.error, b"".join(one.records)) for one in DATA
    ]
    assert [(one.high_watermark, one.log_start_offset) for one in results] == [(10, 1), (5, 0), (-1, -1)]
    assert results[1].diverging == (3, 77) and results[2].current_leader == CurrentLeader(2, 9)


@pytest.mark.parametrize("cut", [2, 10, 30])
def test_a_response_that_ends_early_is_refused(cut: int) -> None:
    frame = b"".join(fetch.write_response(VERSION, 7, ErrorCode.NONE, 42, DATA))
    with pytest.raises(ValueError):
        read_response(memoryview(frame)[9:-cut])


@pytest.mark.parametrize("version", range(fetch.LEADER_HINTS_FROM, fetch.VERSIONS.stop))
def test_kios_reader_reads_leader_hints(version: int) -> None:
    endpoints = [NodeEndpoint(2, "example.org", 9092, "rack-a"), NodeEndpoint(3, "127.0.0.1", 9093, None)]
    frame = b"".join(fetch.write_response(version, 7, ErrorCode.NONE, 0, DATA, endpoints))
    response = messages.read_response(FETCH, version, frame[4:], 5)
    found = [(one.node_id, one.host, one.port, one.rack) for one in response.node_endpoints]
    assert found == [tuple(one) for one in endpoints]
    leader = response.responses[1].partitions[0].current_leader
    assert (leader.leader_id, leader.leader_epoch) == (2, 9)
