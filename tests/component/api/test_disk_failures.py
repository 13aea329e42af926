"""A failing disk under administrative requests gives Kafka's storage error."""

import errno
from typing import Any

import pytest
from tests.support.raw import Connection

import levada.testing
from levada.errors import ErrorCode
from levada.storage.log.log import Log


@pytest.mark.parametrize(
    ("broken", "api", "version", "asked"),
    [
        (
            "offset_for_timestamp",
            "list_offsets",
            7,
            {"timestamp": 1_700_000_000_000, "current_leader_epoch": -1},
        ),
        ("max_timestamp", "list_offsets", 7, {"timestamp": -3, "current_leader_epoch": -1}),
        ("delete_records", "delete_records", 2, {"offset": 0}),
    ],
)
def test_an_input_output_error_is_a_storage_error(
    broken: str, api: str, version: int, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(Log, broken, fails)
    with levada.testing.broker() as broker:
        topic = {"name": broker.topic(), "partitions": [{"partition_index": 0, **asked}]}
        fields = (
            {"topics": [topic], "timeout": 1_000} if api == "delete_records" else {"topics": [topic], "replica_id": -1}
        )
        with Connection(broker.bootstrap) as one:
            answer = one.call(api, version, fields)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
