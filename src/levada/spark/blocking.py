"""Runs the asyncio client for Spark's synchronous calls: one event loop per process, and one client per set of options.

Spark reuses its Python workers for many tasks, so connections are kept in this module, and not in a reader or writer.
Workers are forked, and a child cannot use its parent's connections: so everything belongs to one process. The loop has
its own thread: it fetches the next records while a task decodes.
"""

import asyncio
import atexit
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from levada.client.errors import FAILURES, Failure
from levada.client.retry import RetryPolicy, is_retriable, retry
from levada.errors import KafkaError
from levada.loop import new_event_loop

if TYPE_CHECKING:
    from levada.client.client import Client

T = TypeVar("T")

CLIENT_ID = "levada-spark"
_END = object()  # after the last item of an iterator
CLOSING_S = 5.0  # at the end of a process, to send what is buffered


class BrokersUnreachable(ConnectionError):  # noqa: N818
    """No broker responded before the deadline."""


class _Process:
    """The event loop of one process, its thread, and the clients by servers and options."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = new_event_loop()
        self.clients: dict[object, Client] = {}
        self.lock = threading.Lock()
        self.closing: set[asyncio.Task[None]] = set()  # of iterators that were closed on the loop's thread
        self._thread = threading.Thread(target=self.loop.run_forever, name="levada-spark", daemon=True)
        self._thread.start()

    @property
    def is_loop_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def close(self) -> None:
        async def close_all() -> None:
            await asyncio.gather(*(client.close() for client in self.clients.values()))

        try:
            asyncio.run_coroutine_threadsafe(close_all(), self.loop).result(CLOSING_S)
        except TimeoutError:
            pass  # a broker does not read; the operating system closes the rest
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CLOSING_S)


_process: _Process | None = None
_process_lock = threading.RLock()  # the collector may close an iterator while its thread holds the lock


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop of the process and wait for its result; an interrupted wait cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, _current().loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


@contextmanager
def background(work: Coroutine[Any, Any, None]) -> Iterator[None]:
    """Run a coroutine on the loop of the process during the block; its failure is raised at the end of the block."""
    future = asyncio.run_coroutine_threadsafe(work, _current().loop)
    try:
        yield
    finally:
        future.cancel()
    if not future.cancelled():
        future.result()


def call(client: "Client", attempt: Callable[[], Awaitable[T]], policy: RetryPolicy) -> T:
    """Run requests that are safe to repeat, retried by `policy`; BrokersUnreachable if no broker responds in time."""
    began = time.monotonic()
    try:
        return run(retry(client, attempt, policy))
    except FAILURES as failure:
        if client.closed or not is_retriable(failure, policy.codes):
            raise
        raise timed_out(client, failure, time.monotonic() - began) from None


def connect(client: "Client", policy: RetryPolicy) -> None:
    """Wait for a first response, before requests that have their own reasons to wait."""
    if not client.has_responded:
        call(client, lambda: client.metadata(()), policy)


def timed_out(client: "Client", failure: Failure, waited_s: float) -> BrokersUnreachable | KafkaError:
    """The error at the end of the retries: the brokers, how long they were retried, and the last failure."""
    if isinstance(failure, KafkaError):
        return KafkaError(failure.code, f"{failure.detail}; for {waited_s:.0f} s now".removeprefix("; "))
    servers = ",".join(map(str, client.bootstrap))
    return BrokersUnreachable(
        f"no response from the brokers at {servers} (option kafka.bootstrap.servers) for {waited_s:.0f} s: {failure}"
    )


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """The items of an asynchronous iterator; it is closed with this one."""
    try:
        while (item := run(_next(items))) is not _END:
            yield cast(T, item)
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            _finish(close())


def client(bootstrap: str, **options: Any) -> "Client":
    """The client of this process for these servers and options of `levada.Client`; callers do not close it."""
    here = _current()
    key = (bootstrap, tuple(sorted(options.items())))
    with here.lock:
        found = here.clients.get(key)
        if found is None or found.closed:
            found = here.clients[key] = run(_create(bootstrap, options))
        return found


def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine and wait for it, except on the loop's own thread.

    The garbage collector may close an abandoned iterator on any thread; the loop cannot wait for itself.
    """
    here = _current()
    if here.is_loop_thread:
        here.closing.add(task := here.loop.create_task(work))
        task.add_done_callback(here.closing.discard)
    else:
        run(work)


async def _create(bootstrap: str, options: dict[str, Any]) -> "Client":
    from levada.client.client import Client

    return Client(bootstrap, **{"client_id": CLIENT_ID} | options)


async def _next(items: AsyncIterator[T]) -> T | object:
    return await anext(items, _END)


def _current() -> _Process:
    global _process  # noqa: PLW0603 (one per process)
    with _process_lock:
        if _process is None or _process.pid != os.getpid():
            _process = _Process()
        return _process


def _after_fork() -> None:
    """A child starts with its own state: threads that it does not have may hold the parent's locks."""
    global _process, _process_lock
    _process, _process_lock = None, threading.RLock()


@atexit.register
def close() -> None:
    """Close the clients of this process and stop its loop; the next call starts a new one."""
    global _process  # noqa: PLW0603 (as above)
    with _process_lock:
        if _process is not None and _process.pid == os.getpid():
            _process.close()
        _process = None


os.register_at_fork(after_in_child=_after_fork)
