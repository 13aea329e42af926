"""The data directory of a stopped broker with two topics, and `levada log check` on it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker import BrokerThread
from tests.support.raw import batch, fetch, produce

from levada.cli.main import run
from levada.wire.batches import decode, iterate_headers

RECORDS = 40
SETTINGS: dict[str, Any] = {"log_segment_bytes": 1_000}


def make_data(path: Path) -> Path:
    """Two topics of several segments, stopped cleanly."""
    with BrokerThread(path, **SETTINGS) as broker, broker.connect() as one:
        for topic in ("hurt", "whole"):
            broker.create(topic)
            for number in range(RECORDS):
                assert produce(one, topic, batch(b"%d" % number)).error_code == 0
    return path


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def check(data: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The findings of a check, which must change nothing."""
    capsys.readouterr()
    before = contents(data)
    code = run(["log", "check", str(data), "-o", "json"])
    assert contents(data) == before
    findings: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert code == bool(findings)
    return findings


def segments(data: Path, topic: str = "hurt") -> list[Path]:
    return sorted((data / f"{topic}-0").glob("*.log"))


def served(broker: BrokerThread, topic: str = "hurt", partition: int = 0) -> dict[int, bytes]:
    """All records of a partition, by offset."""
    found: dict[int, bytes] = {}
    log = broker.partition(topic, partition).log
    offset = log.log_start_offset
    with broker.connect() as one:
        while offset < log.log_end_offset:
            answer = fetch(one, topic, offset, partition=partition)
            assert answer.error_code == 0
            view = memoryview(bytes(answer.records or b""))
            for position, header in iterate_headers(view):
                records = decode(view[position : position + header.size])
                found |= {record.offset: record.value or b"" for record in records}
                offset = header.last_offset + 1
    return found
