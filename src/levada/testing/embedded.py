"""A broker on a thread of the test process: the real server on real sockets, with its data in a temporary directory.

The server's loop runs on the thread; every call of a test crosses to it and waits, so that tests are plain functions.
What a test asks for here (topics, records) goes straight to the broker's parts and not over the wire: faults that the
test ordered for its client are met by its client alone.
"""

import asyncio
import concurrent.futures
import itertools
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, TypeVar

from levada.api.registry import api_key
from levada.broker.faults import Fault, Faults
from levada.config import BrokerConfig
from levada.core.controller import CreateTopic, DeleteTopic
from levada.errors import ErrorCode
from levada.server import Server, new_event_loop
from levada.wire import batches

T = TypeVar("T")

PATIENCE_S = 30.0  # for anything a broker does on its own machine; passing it means a bug of ours


class ReceivedRecord(NamedTuple):
    """A record as it lies in the log."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class EmbeddedBroker:
    """One broker in this process, from `start` to `stop`; as a context manager, for the length of a block."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.faults = Faults()
        self._settings = dict(settings or {})
        self._topics: list[str] = []  # made by `topic` and not yet forgotten
        self._numbers = itertools.count(1)
        self._thread: threading.Thread | None = None
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
