"""Requests queued by the scheduler: closed connections, delays, order, stop, limits."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.index import load_request_schema
from tests.support.broker import TIMEOUT_S, BrokerThread
from tests.support.raw import Connection, batch, build

from levada.api.admin.topics import TOPICS_PER_ITERATION, create_topics
from levada.api.request import RequestContext
from levada.api.scheduler import RequestScheduler
from levada.core.groups.memory_limit import NAME_BYTES_MAX
from levada.errors import ErrorCode
from levada.model import ANONYMOUS
from levada.wire.schema import messages


class NoTime:
    """No request off the hot path has its turn before `go_on`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.parked: list[Any] = []
        queue = RequestScheduler.queue

        def noted(scheduler: RequestScheduler, request: Any) -> bool:
            self.parked.append(request)
            return queue(scheduler, request)

        patch.setattr(RequestScheduler, "admits", lambda _: False)
        patch.setattr(RequestScheduler, "queue", noted)

    def wait_for(self, one: BrokerThread, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not one.call(condition):
            assert time.monotonic() < deadline, "it never came"

    def go_on(self, one: BrokerThread) -> None:
        """A pass begins with the request of another client, and is followed by the next."""
        self._patch.undo()
        with one.connect() as other:
            other.call("api_versions", 0, {})


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> NoTime:
    return NoTime(monkeypatch)


def creation(name: str) -> dict[str, Any]:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return {"topics": [topic], "timeout": 10_000, "validate_only": False}


def produced(topic: str) -> dict[str, Any]:
    data = {"name": topic, "partition_data": [{"index": 0, "records": batch(b"v")}]}
    return {"acks": 1, "timeout": 10_000, "topic_data": [data]}


def test_a_client_that_is_gone_meanwhile_has_nothing_begun(tmp_path: Path, no_time: NoTime) -> None:
    with BrokerThread(tmp_path) as one:
        with one.connect() as gone:
            gone.send("create_topics", 7, creation("never"))
            no_time.wait_for(one, lambda: len(no_time.parked) == 1)
        (request,) = no_time.parked
        no_time.wait_for(one, lambda: request.connection.closed)
        no_time.go_on(one)
        one.create("after")
        assert "never" not in one.broker.image.topics


def test_an_ordered_delay_comes_after_the_wait(tmp_path: Path, no_time: NoTime) -> None:
    with BrokerThread(tmp_path) as one, one.connect() as client:
        one.delay("describe_groups", 0.05)
        sent = [client.send("describe_groups", 5, {"groups": ["g"]}), client.send("api_versions", 0, {})]
        no_time.wait_for(one, lambda: len(no_time.parked) == 1)
        assert one.faults, "it is of the request's turn"
        no_time.go_on(one)
        assert [client.receive()[0] for _ in sent] == sent
        assert not one.faults and len(no_time.parked) == 1


def test_a_produce_stays_behind_a_request_that_waits(tmp_path: Path, no_time: NoTime) -> None:
    with BrokerThread(tmp_path) as one, one.connect() as client, one.connect() as other:
        one.create("t")
        one.create("u")
        sent = [
            client.send("describe_groups", 5, {"groups": ["g"]}),
            client.send("produce", 9, produced("t")),
        ]
        no_time.wait_for(one, lambda: len(no_time.parked) == 1)
        other.call("produce", 9, produced("u"))
        assert (one.partition("u").log.log_end_offset, one.partition("t").log.log_end_offset) == (1, 0)
        no_time.go_on(one)
        assert [client.receive()[0] for _ in sent] == sent
        assert one.partition("t").log.log_end_offset == 1


def test_a_broker_stops_with_requests_that_wait(tmp_path: Path, no_time: NoTime) -> None:
    clients: list[Connection] = []
    with BrokerThread(tmp_path) as one:
        for _ in range(5):
            clients.append(one.connect())
            clients[-1].send("create_topics", 7, creation("never"))
            clients[-1].send("api_versions", 0, {})
        no_time.wait_for(one, lambda: len(no_time.parked) == 5)
    for client in clients:
        with client, pytest.raises(ConnectionResetError):
            client.receive()
    with BrokerThread(tmp_path) as again:
        assert "never" not in again.broker.image.topics


def test_names_of_members_that_nobody_could_have_are_refused(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    long = "n" * (NAME_BYTES_MAX + 1)
    with BrokerThread(tmp_path, offsets_topic_num_partitions=1) as one, one.connect() as client:
        client.call("find_coordinator", 4, {"key_type": 0, "coordinator_keys": ["g"]})
        for changed, error in (
            ({"member_id": long}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"protocol_type": long}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"group_id": long}, ErrorCode.INVALID_GROUP_ID),
        ):
            assert client.call("join_group", 4, fields | changed).error_code == error
        assert client.call("join_group", 4, fields).error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_a_request_for_many_topics_lets_others_be_served(tmp_path: Path) -> None:
    count = 20 * TOPICS_PER_ITERATION
    topics = [creation(f"t-{number}")["topics"][0] for number in range(count)]
    fields = {"topics": topics, "timeout": 10_000, "validate_only": True}
    request = build(load_request_schema(messages.api_key("create_topics"), 7), fields)
    client = cast(Any, SimpleNamespace(client_id=None, peer="", principal=ANONYMOUS))

    async def passes(one: BrokerThread) -> int:
        task = asyncio.ensure_future(create_topics(RequestContext(one.broker, client, 7), request))
        passed = 0
        while not task.done():
            await asyncio.sleep(0)
            passed += 1
        assert [topic.error_code for topic in task.result().topics] == [0] * count
        return passed

    with BrokerThread(tmp_path) as one:
        assert one.wait(passes(one)) >= count // TOPICS_PER_ITERATION
