"""Structured logs: an event and its fields, one line each, as text or JSON.

They use the standard library's logging, so that a program with an embedded broker configures its own handlers;
`configure` is for broker processes. structlog would do the same at a third of the start-up time.
"""

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, TextIO

TEXT: Final = "text"
JSON: Final = "json"
_FIELDS: Final = "fields"
_PEER: Final = "peer"
_GROUP: Final = "group"
EVENTS_PER_WINDOW_MAX: Final = 20  # of an event that clients cause
WINDOW_S: Final = 10.0
LOGGERS: Final = ("levada", "asyncio", "py.warnings")  # asyncio logs failed callbacks, warnings.warn its texts
WINDOWS_MAX: Final = 10_000  # events and groups whose lines are counted


class EventLog:
    """The log of one module: `log.warning("checkpoint is corrupt", file=path)`."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: object) -> None:
        """Log an event for developers."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Log an event."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log an event that an operator should check."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, *, exc_info: BaseException | None = None, **fields: object) -> None:
        """Log a failure, with the traceback of a bug."""
        self._write(logging.ERROR, event, fields, exc_info)

    def _write(self, level: int, event: str, fields: dict[str, object], exc_info: BaseException | None = None) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={_FIELDS: fields}, exc_info=exc_info)


class _Text(logging.Formatter):
    """`2026-11-15T09:24:02.513Z warning checkpoint is corrupt file=/data/x`"""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_quoted(value)}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname.lower():7} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _RateLimit(logging.Filter):
    """Limits the rate of events with a peer, and of those of one group: no client fills the disk with log lines."""

    def __init__(self) -> None:
        super().__init__()
        # By event and group: start of the window, count.
        self._windows: dict[tuple[str, str, object], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        fields = _fields(record)
        group = fields.get(_GROUP)
        if _PEER not in fields and group is None:
            return True
        event = (record.name, record.msg, group)
        if len(self._windows) >= WINDOWS_MAX and event not in self._windows:
            self._windows.clear()
        since, count = self._windows.get(event, (record.created, 0))
        if not 0 <= record.created - since < WINDOW_S:
            if count > EVENTS_PER_WINDOW_MAX:
                fields["suppressed"] = count - EVENTS_PER_WINDOW_MAX
            since, count = record.created, 0
        self._windows[event] = (since, count + 1)
        if count + 1 == EVENTS_PER_WINDOW_MAX:
            fields["more"] = f"only counted for {WINDOW_S:g} s"
        return count < EVENTS_PER_WINDOW_MAX


def json_line(event: str, **fields: object) -> str:
    """Return an event as a line of JSON, for what a process prints beside its log."""
    return _Json().format(logging.makeLogRecord({"name": "levada", "levelname": "INFO", "msg": event, _FIELDS: fields}))


def configure(form: str = TEXT, level: str = "info", stream: TextIO | None = None) -> None:
    """Write events from `level` on, Python's warnings and uncaught exceptions to `stream` (stderr)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if form == JSON else _Text())
    handler.addFilter(_RateLimit())
    logging.captureWarnings(True)
    sys.excepthook = _log_exception
    threading.excepthook = lambda args: _log_exception(args.exc_type, args.exc_value, args.exc_traceback)
    sys.unraisablehook = lambda args: _log_exception(args.exc_type, args.exc_value, args.exc_traceback)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False


def _log_exception(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    """Log an exception that nothing has caught: a traceback of its own would not be a line of JSON."""
    if issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    error = error if error is not None else kind()
    logging.getLogger("levada").error("uncaught exception", exc_info=(kind, error, trace))


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, _FIELDS, {})
    return fields


def _quoted(value: object) -> str:
    """Quote a value unless it is one printable word: values from clients cannot start a new line."""
    text = str(value)
    return text if text.isprintable() and " " not in text and '"' not in text and text else json.dumps(text)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
