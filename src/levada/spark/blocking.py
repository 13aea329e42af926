"""From Spark's plain calls to the asynchronous client: one event loop and one client of each kind in a process.

Spark reuses its Python workers for many tasks, so connections are kept here, in a module, and not in a reader or
writer. Workers are also made by fork: what a parent opened is no use in its child, so everything is kept by process.
The loop has a thread of its own: it fetches the next bytes while a task decodes the last ones.
"""

import asyncio
import atexit
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
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
CLOSING_S = 5.0  # at the end of a process, for what was written to leave


class BrokersUnreachable(ConnectionError):  # noqa: N818
    """No broker responded before the deadline."""


class _Process:
    """What one process has: its loop, the thread that runs it, and clients by what they were asked with."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = new_event_loop()
        self.clients: dict[object, Client] = {}
        self.lock = threading.Lock()
        self._thread = threading.Thread(target=self.loop.run_forever, name="levada-spark", daemon=True)
        self._thread.start()

    def close(self) -> None:
        async def close_all() -> None:
            await asyncio.gather(*(client.close() for client in self.clients.values()))

        try:
            asyncio.run_coroutine_threadsafe(close_all(), self.loop).result(CLOSING_S)
        except TimeoutError:
            pass  # a broker that does not read; the system closes what is left
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CLOSING_S)


_process: _Process | None = None
_making = threading.Lock()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do this on the loop of the process and wait for it; an interrupted wait cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, _here().loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


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
    """Take what an asynchronous generator gives, one by one; it is closed when the taker stops."""
    try:
        while (item := run(_next(items))) is not _END:
            yield cast(T, item)
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            run(close())


def client(bootstrap: str, **options: Any) -> "Client":
    """The client of this process for these servers and options of `levada.Client`; nobody closes it."""
    here = _here()
    key = (bootstrap, tuple(sorted(options.items())))
    with here.lock:
        found = here.clients.get(key)
        if found is None or found.closed:
            found = here.clients[key] = run(_make(bootstrap, options))
        return found


async def _make(bootstrap: str, options: dict[str, Any]) -> "Client":
    from levada.client.client import Client

    return Client(bootstrap, **{"client_id": CLIENT_ID} | options)


async def _next(items: AsyncIterator[T]) -> T | object:
    return await anext(items, _END)


def _here() -> _Process:
    global _process  # noqa: PLW0603 (the one place that knows the process)
    with _making:
        if _process is None or _process.pid != os.getpid():
            _process = _Process()
        return _process


def _after_fork() -> None:
    """The parent's locks may be held by threads that a child does not have."""
    global _process, _making
    _process, _making = None, threading.Lock()


@atexit.register
def close() -> None:
    """Close the clients of this process and end its loop; the next call starts anew."""
    global _process  # noqa: PLW0603 (as above)
    with _making:
        if _process is not None and _process.pid == os.getpid():
            _process.close()
        _process = None


os.register_at_fork(after_in_child=_after_fork)
