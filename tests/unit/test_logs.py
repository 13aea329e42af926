"""Event logs: one line an event, with its fields, as text or as JSON."""

import io
import json
import logging
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from levada import logs
from levada.logs import EventLog

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where lines go; the loggers are afterwards as they were."""
    loggers = [logging.getLogger(name) for name in logs.LOGGERS]
    before = [(one.handlers, one.level, one.propagate) for one in loggers]
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    yield io.StringIO()
    logging.captureWarnings(False)
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
    for one, (handlers, level, propagate) in zip(loggers, before, strict=True):
        one.handlers, one.propagate = handlers, propagate
        one.setLevel(level)


def test_text(stream: io.StringIO) -> None:
    logs.configure("text", "info", stream)
    log = EventLog("levada.test")
    log.info("a client came", peer="127.0.0.1:5", client_id="my app", empty="", nothing=None)
    log.debug("not told")
    line = stream.getvalue()
    assert re.fullmatch(
        TIME + r' info    a client came peer=127\.0\.0\.1:5 client_id="my app" empty="" nothing=None\n', line
    )


def test_json(stream: io.StringIO) -> None:
    logs.configure("json", "debug", stream)
    EventLog("levada.test").warning("checkpoint is corrupt", file=Path("/data/x"), offset=3)
    line = json.loads(stream.getvalue())
    assert re.fullmatch(TIME, line.pop("time"))
    assert line == {
        "level": "warning",
        "logger": "levada.test",
        "event": "checkpoint is corrupt",
        "file": "/data/x",
        "offset": 3,
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_a_client_sends_cannot_begin_a_line(stream: io.StringIO, form: str) -> None:
    logs.configure(form, "info", stream)
    EventLog("levada.test").info("closed", client_id="x\n2026-01-01T00:00:00.000Z error all is lost\x1b[2J")
    (line,) = stream.getvalue().splitlines()
    assert "\x1b" not in line


@pytest.mark.parametrize("form", ["text", "json"])
def test_bugs_come_with_their_trace(stream: io.StringIO, form: str) -> None:
    logs.configure(form, "info", stream)
    try:
        raise ValueError("planted")
    except ValueError as error:
        EventLog("levada.test").error("a handler failed", api="fetch", exc_info=error)
    text = stream.getvalue()
    assert "ValueError: planted" in text and "test_logs.py" in text
    if form == "json":
        assert json.loads(text)["event"] == "a handler failed"


def test_what_clients_cause_is_reported_some_times_and_then_counted(stream: io.StringIO) -> None:
    """By event, and again after a while; what names no client is always told."""
    logs.configure("json", "info", stream)

    def tell(event: str, when: float, **fields: str) -> None:
        record = {
            "msg": event,
            "levelno": logging.INFO,
            "levelname": "INFO",
            "created": when,
            "fields": fields,
        }
        logging.getLogger("levada").handle(logging.makeLogRecord(record))

    for number in range(100):
        tell("connection closed", 1_000, peer=f"127.0.0.1:{number}")
        tell("another event", 1_000, peer=f"127.0.0.1:{number}")
        tell("a log is compacted", 1_000, partition=f"t-{number}")
    tell("connection closed", 1_000 + logs.WINDOW_S, peer="127.0.0.1:5")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    counts = Counter(line["event"] for line in lines)
    assert counts == {
        "connection closed": logs.EVENTS_PER_WINDOW_MAX + 1,
        "another event": logs.EVENTS_PER_WINDOW_MAX,
        "a log is compacted": 100,
    }
    assert lines[-1]["suppressed"] == 100 - logs.EVENTS_PER_WINDOW_MAX


def test_a_group_that_rebalances_in_a_loop_leaves_the_lines_of_others(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream)
    for generation in range(100):
        EventLog("levada.test").info("group rebalanced", group="in-a-loop", generation=generation)
    EventLog("levada.test").info("group rebalanced", group="another", generation=1)
    groups = [json.loads(line)["group"] for line in stream.getvalue().splitlines()]
    assert Counter(groups) == {"in-a-loop": logs.EVENTS_PER_WINDOW_MAX, "another": 1}


def test_the_loops_own_errors_are_reported_likewise(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream)
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    assert json.loads(stream.getvalue())["logger"] == "asyncio"


def test_without_configuration_the_host_decides(caplog: pytest.LogCaptureFixture) -> None:
    """In a user's tests the broker's log goes where theirs goes."""
    with caplog.at_level(logging.INFO, "levada"):
        EventLog("levada.test").info("something", fact=1)
    (record,) = caplog.records
    assert (record.name, record.message) == ("levada.test", "something")
