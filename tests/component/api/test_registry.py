"""Dispatch of frames to handlers: versions, unknown APIs, and bugs answered as errors."""

import asyncio
import logging
import struct
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.broker import BrokerThread
from tests.support.raw import Connection, versions_known

from levada.api.registry import handlers
from levada.errors import ErrorCode, KafkaError
from levada.wire.schema import messages

BUG = "planted"


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[..., Any]], None]:
    """Replace a handler's function."""

    def plant(name: str, function: Callable[..., Any]) -> None:
        key = messages.api_key(name)
        monkeypatch.setitem(handlers(), key, handlers()[key]._replace(function=function))

    return plant


def traces(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(record.exc_info[1]) for record in caplog.records if record.exc_info]


def broken(*_: object) -> Any:
    raise ValueError(BUG)


async def broken_later(*_: object) -> Any:
    await asyncio.sleep(0)
    raise ValueError(BUG)


@pytest.mark.parametrize("function", [broken, broken_later])
def test_a_bug_is_answered_and_logged(
    broker: BrokerThread,
    planted: Callable[[str, Callable[..., Any]], None],
    caplog: pytest.LogCaptureFixture,
    function: Callable[..., Any],
) -> None:
    planted("list_offsets", function)
    asked = [{"name": "orders", "partitions": [{"partition_index": 0}, {"partition_index": 7}]}]
    with broker.connect() as one, caplog.at_level(logging.ERROR):
        response = one.call("list_offsets", 7, {"replica_id": -1, "topics": asked})
        parts = response.topics[0].partitions
        assert {(part.partition_index, part.error_code) for part in parts} == {
            (0, ErrorCode.UNKNOWN_SERVER_ERROR),
            (7, ErrorCode.UNKNOWN_SERVER_ERROR),
        }
        assert one.call("metadata", 12, {"topics": []}).brokers, "the connection goes on"
    assert traces(caplog) == [BUG]


@pytest.mark.parametrize("later", [False, True])
def test_a_response_that_cannot_be_written_ends_the_connection(
    broker: BrokerThread,
    planted: Callable[[str, Callable[..., Any]], None],
    caplog: pytest.LogCaptureFixture,
    later: bool,
) -> None:
    """Better than a client that waits for ever."""

    async def nonsense_later(*_: object) -> Any:
        return "no response"

    planted("list_offsets", nonsense_later if later else lambda *_: "no response")
    with broker.connect() as one, caplog.at_level(logging.ERROR):
        with pytest.raises(ConnectionResetError):
            one.call("list_offsets", 7, {"replica_id": -1, "topics": []})
        with broker.connect() as other:
            assert other.call("metadata", 12, {"topics": []}).brokers
    assert len(traces(caplog)) == 1


def test_a_clients_mistake_is_no_bug(
    broker: BrokerThread, planted: Callable[[str, Callable[..., Any]], None], caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> Any:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not you")

    planted("create_topics", refuse)
    topics = [{"name": "x", "num_partitions": 1, "replication_factor": 1}]
    with broker.connect() as one, caplog.at_level(logging.ERROR):
        response = one.call("create_topics", 7, {"topics": topics, "timeout": 1000})
    (topic,) = response.topics
    assert (topic.name, topic.error_code, topic.error_message) == (
        "x",
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        "not you",
    )
    assert traces(caplog) == []


def test_an_unknown_version_of_api_versions_is_answered_in_the_oldest(broker: BrokerThread) -> None:
    with broker.connect() as one:
        one.send_frame(struct.pack(">hhih", 18, 99, 5, -1))
        frame = one.receive_frame()
        correlation_id, error, count = struct.unpack_from(">ihi", frame)
        assert (correlation_id, error) == (5, ErrorCode.UNSUPPORTED_VERSION)
        assert count > 0
        assert one.call("api_versions", 3, {}).error_code == 0


def test_what_is_advertised_is_served(broker: BrokerThread) -> None:
    """Derived from the handlers: each in every version that there is, but for Produce, which claims more."""
    with broker.connect() as one:
        advertised = {
            api.api_key: (api.min_version, api.max_version) for api in one.call("api_versions", 4, {}).api_keys
        }
    for key, handler in handlers().items():
        first, last = advertised[key]
        assert (first, last) == (handler.advertised_from, handler.versions[-1])
        assert handler.versions[-1] == max(versions_known(handler.name)), handler.name
    assert advertised.keys() == handlers().keys()


@pytest.mark.parametrize("size", range(10))
def test_a_frame_shorter_than_its_header(broker: BrokerThread, size: int) -> None:
    with Connection(broker.bootstrap) as one:
        one.send_frame(struct.pack(">hhih", 3, 12, 1, -1)[:size])
        with pytest.raises(ConnectionResetError):
            one.receive_frame()
