"""Structured logs: an event in plain words and its facts, one line each, as text or as JSON.

They ride on the standard library's logging, so that a program which embeds a broker decides where they go;
`configure` is for the process that is a broker. structlog would do the same and take a third of the start-up time.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

TEXT: Final = "text"
JSON: Final = "json"
_FACTS: Final = "facts"
_PEER: Final = "peer"
REPEATS_MAX: Final = 20  # of an event that clients cause
WINDOW_S: Final = 10.0


class EventLog:
    """The log of one module: `log.warning("checkpoint is damaged", file=path)`."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **facts: object) -> None:
        """What only a developer wants to know."""
        self._write(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: object) -> None:
        """What happened."""
        self._write(logging.INFO, event, facts)

    def warning(self, event: str, **facts: object) -> None:
        """What somebody should look at."""
        self._write(logging.WARNING, event, facts)

    def error(self, event: str, *, exc_info: BaseException | None = None, **facts: object) -> None:
        """What is broken; with the trace of a bug."""
        self._write(logging.ERROR, event, facts, exc_info)

    def _write(
        self, level: int, event: str, facts: dict[str, object], exc_info: BaseException | None = None
    ) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={_FACTS: facts}, exc_info=exc_info)


class _Text(logging.Formatter):
    """`2026-11-15T09:24:02.513Z warning checkpoint is damaged file=/data/x`"""

    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(f" {name}={_quoted(value)}" for name, value in _facts(record).items())
        line = f"{_time(record)} {record.levelname.lower():7} {record.getMessage()}{facts}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Calm(logging.Filter):
    """An event that names a peer is told so often in a while and then only counted: no client can fill a disk."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[tuple[str, str], tuple[float, int]] = {}  # by event: since when, how often

    def filter(self, record: logging.LogRecord) -> bool:
        facts = _facts(record)
        if _PEER not in facts:
            return True
        event = (record.name, record.msg)
        since, count = self._windows.get(event, (record.created, 0))
        if not 0 <= record.created - since < WINDOW_S:
            if count > REPEATS_MAX:
                facts["not_told"] = count - REPEATS_MAX
            since, count = record.created, 0
        self._windows[event] = (since, count + 1)
        if count + 1 == REPEATS_MAX:
            facts["more"] = f"only counted for {WINDOW_S:g} s"
        return count < REPEATS_MAX


def configure(form: str = TEXT, level: str = "info", stream: TextIO | None = None) -> None:
    """Write everything from `level` on to `stream` (stderr)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if form == JSON else _Text())
    handler.addFilter(_Calm())
    for name in ("levada", "asyncio"):  # the loop tells there of callbacks that failed
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False


def _facts(record: logging.LogRecord) -> dict[str, object]:
    facts: dict[str, object] = getattr(record, _FACTS, {})
    return facts


def _quoted(value: object) -> str:
    """A fact is one word, or quoted: what a client sent cannot begin a line of its own."""
    text = str(value)
    return text if text.isprintable() and " " not in text and '"' not in text and text else json.dumps(text)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
