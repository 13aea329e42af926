"""Metadata in one SQLite file: no server, crash safe, shared by the broker processes of one host.

One thread owns the connection, so that the loop never waits for its fsync. Every commit appends to a table of
changes whose row id is the revision; this process and the others follow that table, and `PRAGMA data_version`
tells cheaply whether somebody else has written.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

from levada.clock import Clock
from levada.logs import EventLog
from levada.metadata.leases import Leases
from levada.metadata.store import ABSENT, ConflictError, Lease, LeaseLostError, Row, Rows, StoreError, Write

log = EventLog(__name__)

Result = TypeVar("Result")

FORMAT_VERSION: Final = 1
POLL_S: Final = 0.25  # how late the writes of another process are noticed
BUSY_TIMEOUT_S: Final = 10.0  # how long another process may hold the file
CHANGES_KEPT: Final = 1_000  # who is further behind reads the whole store again

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS rows"
    " (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS changes"
    " (revision INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, value BLOB)",
    "CREATE TABLE IF NOT EXISTS leases"
    " (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, heartbeat REAL NOT NULL) WITHOUT ROWID",
    f"PRAGMA user_version = {FORMAT_VERSION}",
)


class SqliteStore:
    """A MetadataStore in a file: the side of the loop."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metadata")
        self._file: _File | None = None  # touched by the thread alone
        self._timer: asyncio.TimerHandle | None = None  # of the next look for the writes of others
        self._closed = False

    async def open(self, on_change: Callable[[Rows], None]) -> Rows:
        loop = asyncio.get_running_loop()

        def opened() -> Rows:
            self._file = _File(
                self._path, self._clock, lambda news: loop.call_soon_threadsafe(on_change, news)
            )
            return self._file.open()

        whole = await self._run(opened)
        self._timer = loop.call_later(POLL_S, self._poll)
        return whole

    async def commit(self, writes: Sequence[Write], lease: Lease | None = None) -> int:
        return await self._run(lambda: self._opened.commit(writes, lease))

    async def acquire(self, name: str, on_lost: Callable[[], None]) -> Lease | None:
        loop = asyncio.get_running_loop()
        return await self._run(
            lambda: self._opened.leases.acquire(name, lambda: loop.call_soon_threadsafe(on_lost))
        )

    async def release(self, lease: Lease) -> None:
        await self._run(lambda: self._opened.leases.release(lease))

    async def close(self) -> None:
        """Give all leases back and stop; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._file is not None:
            await self._run(self._file.close)
        self._thread.shutdown()

    @property
    def _opened(self) -> "_File":
        assert self._file is not None, "the store is not open"
        return self._file

    async def _run(self, function: Callable[[], Result]) -> Result:
        """Have the thread do something, and speak of SQLite's errors in the store's words."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"metadata store {self._path}: {error}") from error

    def _poll(self) -> None:
        """Look for the writes of others, then again a moment after that is done."""
        loop = asyncio.get_running_loop()

        def again(done: asyncio.Future[None]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                log.error("metadata store cannot be read", path=self._path, error=str(error))
            if not self._closed:
                self._timer = loop.call_later(POLL_S, self._poll)

        loop.run_in_executor(self._thread, self._opened.poll).add_done_callback(again)


class _File:
    """The side of the thread: all of SQLite."""

    def __init__(self, path: str, clock: Clock, tell: Callable[[Rows], object]) -> None:
        self._path = path
        self._tell = tell
        self._revision = 0  # everything up to here has been told
        self._data_version = 0  # of the file, when it was last looked at
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        self._database = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        self.leases = Leases(self._database, path, clock)

    def open(self) -> Rows:
        """Make the tables unless they are there, and give everything."""
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version > FORMAT_VERSION:
            raise StoreError(
                f"metadata store {self._path} has format {version}; this Levada reads up to {FORMAT_VERSION}"
            )
        if version < FORMAT_VERSION:
            self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        if version < FORMAT_VERSION:
            with self._transaction():
                for statement in SCHEMA:
                    self._database.execute(statement)
        return self._whole()

    def close(self) -> None:
        self.leases.release_all()
        self._database.close()

    def commit(self, writes: Sequence[Write], lease: Lease | None) -> int:
        try:
            with self._transaction():
                if lease is not None and not self.leases.is_held(lease):
                    raise LeaseLostError(f"the lease {lease.name} has a later holder")
                for write in writes:
                    self._write(write)
        finally:
            self._follow()  # after a conflict too: who tries again must know what the other wrote
        return self._revision

    def poll(self) -> None:
        """Show that this process is awake, and tell what others have written."""
        self.leases.beat()
        (data_version,) = self._database.execute("PRAGMA data_version").fetchone()
        if data_version != self._data_version:
            self._data_version = data_version
            self._follow()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def _write(self, write: Write) -> None:
        key, value, version = write
        execute = self._database.execute
        found = execute("SELECT version FROM rows WHERE key = ?", (key,)).fetchone()
        if (found[0] if found else ABSENT) != version:
            raise ConflictError(key)
        revision = execute("INSERT INTO changes (key, value) VALUES (?, ?)", (key, value)).lastrowid
        assert revision is not None
        if value is None:
            execute("DELETE FROM rows WHERE key = ?", (key,))
        else:
            execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", (key, value, revision))
        execute("DELETE FROM changes WHERE revision <= ?", (revision - CHANGES_KEPT,))

    def _follow(self) -> None:
        """Tell what changed since the last time. The answer to a commit is sent later and so comes after it."""
        changed = self._database.execute(
            "SELECT revision, key, value FROM changes WHERE revision > ? ORDER BY revision", (self._revision,)
        ).fetchall()
        if not changed:
            return
        if changed[0][0] == self._revision + 1:
            self._revision = changed[-1][0]
            self._tell(Rows(self._revision, [Row(key, value, revision) for revision, key, value in changed]))
        else:
            self._tell(self._whole())

    def _whole(self) -> Rows:
        self._database.execute("BEGIN")  # so that rows and revision are of one moment
        try:
            rows = self._database.execute("SELECT key, value, version FROM rows ORDER BY key").fetchall()
            (revision,) = self._database.execute("SELECT coalesce(max(revision), 0) FROM changes").fetchone()
        finally:
            self._database.execute("COMMIT")
        self._revision = revision
        return Rows(revision, [Row(*row) for row in rows], whole=True)
