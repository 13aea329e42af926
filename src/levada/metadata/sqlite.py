"""A metadata store in one SQLite file: no server, crash safe, shared by the broker processes of one host.

One thread owns the connection, so that the loop never waits for an fsync. Between operations it polls for changes and
dead sessions of other processes: often while there are other sessions, else only to notice a new one.
"""

import asyncio
import os
import queue
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final, TypeVar

from levada.clock import Clock
from levada.core.cluster.migration import migrated
from levada.logs import EventLog
from levada.metadata.database import Database
from levada.metadata.sessions import Sessions
from levada.metadata.store import Lease, MetadataRecord, MetadataUpdate, StoreError, Write, check_writes

log = EventLog(__name__)

Result = TypeVar("Result")

SESSION_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.02  # the delay of changes of other processes
POLL_ALONE_S: Final = 0.25  # the delay of the first other session
COMMIT_BYTES_MAX: Final = 256 << 20


class SqliteStore:
    """A MetadataStore in a file."""

    commit_bytes_max = COMMIT_BYTES_MAX
    dead_session_timeout_s = 0.0  # `acquire` ends dead sessions

    def __init__(self, path: str, clock: Clock, session_timeout_s: float = SESSION_TIMEOUT_S) -> None:
        self._path = path
        self._clock = clock
        self._session_timeout_s = session_timeout_s
        self._loop: asyncio.AbstractEventLoop
        self._opened: _OpenedStore | None = None  # used by the thread only
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="metadata", daemon=True)
        self._closed = False

    async def open(self, on_change: Callable[[MetadataUpdate], None]) -> MetadataUpdate:
        loop = self._loop = asyncio.get_running_loop()

        def opened() -> MetadataUpdate:
            database = Database(self._path, lambda update: loop.call_soon_threadsafe(on_change, update))
            self._opened = _OpenedStore(database, Sessions(database, self._clock, self._session_timeout_s))
            return self._opened.open()

        self._thread.start()
        return await self._in_thread(opened)

    async def commit(self, writes: Sequence[Write], lease: Lease | None = None) -> int:
        check_writes(writes, COMMIT_BYTES_MAX)
        return await self._in_thread(lambda: self._store.commit(writes, lease))

    async def acquire(self, name: str, value: bytes, on_lost: Callable[[], None]) -> Lease | None:
        loop = self._loop

        def lost() -> None:
            loop.call_soon_threadsafe(on_lost)

        return await self._in_thread(lambda: self._store.acquire(name, value, lost))

    async def release(self, lease: Lease) -> None:
        await self._in_thread(lambda: self._store.release(lease))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._thread.is_alive():
            try:
                if self._opened is not None:
                    await self._in_thread(self._opened.close)
            finally:
                self._jobs.put(None)
                self._thread.join()

    @property
    def _store(self) -> "_OpenedStore":
        assert self._opened is not None, "the store is not open"
        return self._opened

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        """Run a function in the thread; SQLite's errors become StoreErrors."""
        loop, future = self._loop, self._loop.create_future()

        def job() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = function()
            except (sqlite3.Error, OSError) as cause:
                error = StoreError(f"metadata store {self._path}: {cause}")
                error.__cause__ = cause
            except Exception as cause:  # noqa: BLE001 (the caller gets it)
                error = cause
            loop.call_soon_threadsafe(_finish, future, result, error)

        self._jobs.put(job)
        found: Result = await future
        return found

    def _run(self) -> None:
        """Run jobs, and polls between them."""
        poll_at = time.monotonic() + POLL_ALONE_S
        while True:
            try:
                job = self._jobs.get(timeout=max(poll_at - time.monotonic(), 0))
            except queue.Empty:
                job = _nothing
            if job is None:
                return
            job()
            if time.monotonic() >= poll_at:
                poll_at = time.monotonic() + self._poll()

    def _poll(self) -> float:
        """Poll for what other processes have done; return the interval until the next poll."""
        if self._closed or self._opened is None:
            return POLL_ALONE_S
        try:
            return self._opened.poll()
        except (sqlite3.Error, OSError) as error:
            log.error("metadata store cannot be read", path=self._path, error=str(error))
            return POLL_ALONE_S


def read_closed_store(path: str) -> list[MetadataRecord]:
    """Read the records of a store that no broker uses, from a copy: SQLite would change the file."""
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "copy.db")
        try:
            for suffix in ("", "-wal"):
                if os.path.exists(path + suffix):
                    shutil.copyfile(path + suffix, copy + suffix)
            with closing(sqlite3.connect(copy)) as connection:
                rows = connection.execute("SELECT key, value, version FROM rows ORDER BY key").fetchall()
                (version,) = connection.execute("PRAGMA user_version").fetchone()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"metadata store {path}: {error}") from error
    if version == 1:
        return [
            MetadataRecord(key, value, 1) for key, value in migrated({key: value for key, value, _ in rows}).items()
        ]
    return [MetadataRecord(*row) for row in rows]


class _OpenedStore:
    """The operations of the store, in its thread."""

    def __init__(self, database: Database, sessions: Sessions) -> None:
        self._database = database
        self._sessions = sessions

    def open(self) -> MetadataUpdate:
        self._database.open()
        self._sessions.refresh()
        self._sessions.end_dead_sessions()
        self._database.has_changed()
        return self._database.snapshot()

    def commit(self, writes: Sequence[Write], lease: Lease | None) -> int:
        try:
            with self._database.transaction():
                if lease is not None:
                    self._sessions.check(lease)
                leases = self._sessions.names()
                for write in writes:
                    if write.key in leases:
                        raise ValueError(f"{write.key} is a lease")
                    self._database.apply(write)
        finally:
            self._database.publish()  # after a conflict too: a retry needs the records of the other process
        return self._database.revision

    def acquire(self, name: str, value: bytes, on_lost: Callable[[], object]) -> Lease | None:
        lease = self._sessions.acquire(name, value, on_lost)
        self._database.publish()
        return lease

    def release(self, lease: Lease) -> None:
        self._sessions.release(lease)
        self._database.publish()

    def poll(self) -> float:
        has_changed = self._database.has_changed()
        if has_changed:
            self._sessions.refresh()
        if self._sessions.end_dead_sessions() or has_changed:
            self._database.publish()
        return POLL_S if self._sessions.has_others else POLL_ALONE_S

    def close(self) -> None:
        try:
            self._sessions.close()
        finally:
            self._database.close()


def _finish(future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if future.done():
        return  # the caller was cancelled
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _nothing() -> None:
    """The job of a poll."""
