"""A metadata store in one SQLite file: no server, crash safe, shared by the broker processes of one host.

One thread owns the connection, so that the loop never waits for an fsync. Every commit appends to a table of changes,
whose row id is the revision. Every process reads its change stream from that table; `PRAGMA data_version` is a cheap
check for writes of other processes. SQLite has no checksums: each record has a CRC, and an open compares the records
with their last changes, so that a damaged or missing record is not taken for a change of the metadata.
"""

import asyncio
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Final, TypeVar

from crc32c import crc32c

from levada.clock import Clock
from levada.logs import EventLog
from levada.metadata.leases import Leases
from levada.metadata.store import (
    ABSENT,
    CompareAndSet,
    ConflictError,
    Lease,
    LeaseLostError,
    MetadataRecord,
    MetadataUpdate,
    StoreError,
)

log = EventLog(__name__)

Result = TypeVar("Result")

FORMAT_VERSION: Final = 2
POLL_S: Final = 0.25  # the delay of changes of other processes
BUSY_TIMEOUT_S: Final = 10.0  # the longest lock of another process
CHANGES_KEPT: Final = 1_000  # a process further behind reads a snapshot

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS rows"
    " (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, crc INTEGER) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS changes (revision INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, value BLOB)",
    "CREATE TABLE IF NOT EXISTS leases"
    " (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, heartbeat REAL NOT NULL) WITHOUT ROWID",
    f"PRAGMA user_version = {FORMAT_VERSION}",
)
WITHOUT_CRC: Final = 1  # a format version
# The last change of each key, unless it is the record's.
CONTRADICTION: Final = (
    "WITH latest AS (SELECT max(revision) AS revision FROM changes GROUP BY key)"
    " SELECT changes.key FROM latest JOIN changes USING (revision) LEFT JOIN rows ON rows.key = changes.key"
    " WHERE rows.version IS NOT CASE WHEN changes.value IS NULL THEN NULL ELSE changes.revision END LIMIT 1"
)

# Each is incremented by one; one that SQLite cannot increment any more would stop every commit.
NUMBERS: Final = "SELECT name, seq FROM sqlite_sequence UNION ALL SELECT 'lease ' || name, epoch FROM leases"
NUMBER_MAX: Final = 1 << 62


class SqliteStore:
    """A MetadataStore in a file; runs every operation in one thread."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metadata")
        self._database: _Database | None = None  # used by the thread only
        self._timer: asyncio.TimerHandle | None = None  # of the next poll for changes of other processes
        self._closed = False

    async def open(self, on_change: Callable[[MetadataUpdate], None]) -> MetadataUpdate:
        loop = asyncio.get_running_loop()

        def opened() -> MetadataUpdate:
            self._database = _Database(
                self._path, self._clock, lambda update: loop.call_soon_threadsafe(on_change, update)
            )
            return self._database.open()

        snapshot = await self._run(opened)
        self._timer = loop.call_later(POLL_S, self._poll)
        return snapshot

    async def commit(self, writes: Sequence[CompareAndSet], lease: Lease | None = None) -> int:
        return await self._run(lambda: self._opened.commit(writes, lease))

    async def acquire(self, name: str, on_lost: Callable[[], None]) -> Lease | None:
        loop = asyncio.get_running_loop()
        return await self._run(lambda: self._opened.leases.acquire(name, lambda: loop.call_soon_threadsafe(on_lost)))

    async def release(self, lease: Lease) -> None:
        await self._run(lambda: self._opened.leases.release(lease))

    async def close(self) -> None:
        """Release all leases and stop; a second call has no effect."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._database is not None:
            await self._run(self._database.close)
        self._thread.shutdown()

    @property
    def _opened(self) -> "_Database":
        assert self._database is not None, "the store is not open"
        return self._database

    async def _run(self, function: Callable[[], Result]) -> Result:
        """Run a function in the thread; SQLite's errors become StoreErrors."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"metadata store {self._path}: {error}") from error

    def _poll(self) -> None:
        """Poll for changes of other processes, and schedule the next poll."""
        loop = asyncio.get_running_loop()

        def again(done: asyncio.Future[None]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                log.error("metadata store cannot be read", path=self._path, error=str(error))
            if not self._closed:
                self._timer = loop.call_later(POLL_S, self._poll)

        loop.run_in_executor(self._thread, self._opened.poll).add_done_callback(again)


def read_closed_store(path: str) -> list[MetadataRecord]:
    """Read the records of a store that no broker uses, from a copy: SQLite would change the file."""
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "copy.db")
        try:
            for suffix in ("", "-wal"):
                if os.path.exists(path + suffix):
                    shutil.copyfile(path + suffix, copy + suffix)
            with closing(sqlite3.connect(copy)) as connection:
                version = _format(connection)
                if version:
                    _check(connection, path)
                return _records(connection, path, version)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"metadata store {path}: {error}") from error


def _format(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _check(connection: sqlite3.Connection, path: str) -> None:
    """Raise StoreError if the file is damaged, apart from the values of the records."""
    (result,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if result != "ok":
        raise StoreError(f"metadata store {path} is corrupt, restore it from a backup: {result}")
    for (key,) in connection.execute(CONTRADICTION):
        raise _damaged(path, key, "it is not as its last change has left it")
    for name, number in connection.execute(NUMBERS):
        if not isinstance(number, int) or not 0 <= number < NUMBER_MAX:
            raise StoreError(f"metadata store {path} is corrupt, restore it from a backup: {name} has number {number}")


def _records(connection: sqlite3.Connection, path: str, version: int = FORMAT_VERSION) -> list[MetadataRecord]:
    """Read all records. Raises StoreError if the CRC of one differs."""
    rows = connection.execute("SELECT * FROM rows ORDER BY key").fetchall()
    for key, value, _, *crc in rows:
        if not isinstance(value, bytes):
            raise _damaged(path, key, "its value is not a blob")
        if version > WITHOUT_CRC and crc != [_crc(key, value)]:
            raise _damaged(path, key, "its CRC differs")
    return [MetadataRecord(*row[:3]) for row in rows]


def _crc(key: str, value: bytes) -> int:
    return crc32c(value, crc32c(key.encode()))


def _damaged(path: str, key: str, why: str) -> StoreError:
    return StoreError(f"metadata store {path} is corrupt, restore it from a backup: record {key}: {why}")


class _Database:
    """The SQLite connection; used in the thread of the store only."""

    def __init__(self, path: str, clock: Clock, on_change: Callable[[MetadataUpdate], object]) -> None:
        self._path = path
        self._on_change = on_change
        self._revision = 0  # the last one passed to on_change
        self._data_version = 0  # of the last poll
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self.leases = Leases(self._connection, path, clock)

    def open(self) -> MetadataUpdate:
        """Create the tables unless they exist, and return a snapshot."""
        version = _format(self._connection)
        if version > FORMAT_VERSION:
            raise StoreError(
                f"metadata store {self._path} has format {version}; this Levada reads up to {FORMAT_VERSION}"
            )
        if version < FORMAT_VERSION:
            self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        if version:
            _check(self._connection, self._path)
        if version < FORMAT_VERSION:
            with self._transaction():
                self._upgrade()
        return self._snapshot()

    def close(self) -> None:
        self.leases.release_all()
        self._connection.close()

    def _upgrade(self) -> None:
        """Create the tables, or add the CRCs of records that a former version has written."""
        if _format(self._connection) == WITHOUT_CRC:  # another process may have been faster
            records = _records(self._connection, self._path, WITHOUT_CRC)
            self._connection.execute("ALTER TABLE rows ADD COLUMN crc INTEGER")
            crcs = [(_crc(record.key, record.value or b""), record.key) for record in records]
            self._connection.executemany("UPDATE rows SET crc = ? WHERE key = ?", crcs)
        for statement in SCHEMA:
            self._connection.execute(statement)

    def commit(self, writes: Sequence[CompareAndSet], lease: Lease | None) -> int:
        try:
            with self._transaction():
                if lease is not None and not self.leases.is_held(lease):
                    raise LeaseLostError(f"the lease {lease.name} has another holder")
                for write in writes:
                    self._write(write)
        finally:
            self._publish_changes()  # after a conflict too: a retry needs the records of the other process
        return self._revision

    def poll(self) -> None:
        """Renew the heartbeats of leases and publish the changes of other processes."""
        self.leases.heartbeat()
        (data_version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if data_version != self._data_version:
            self._data_version = data_version
            self._publish_changes()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _write(self, write: CompareAndSet) -> None:
        key, value, version = write
        execute = self._connection.execute
        found = execute("SELECT version FROM rows WHERE key = ?", (key,)).fetchone()
        if (found[0] if found else ABSENT) != version:
            raise ConflictError(key)
        revision = execute("INSERT INTO changes (key, value) VALUES (?, ?)", (key, value)).lastrowid
        assert revision is not None
        if value is None:
            execute("DELETE FROM rows WHERE key = ?", (key,))
        else:
            execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)", (key, value, revision, _crc(key, value)))
        execute("DELETE FROM changes WHERE revision <= ?", (revision - CHANGES_KEPT,))

    def _publish_changes(self) -> None:
        """Pass the changes since the last call to on_change, before the result of a commit reaches the loop."""
        changed = self._connection.execute(
            "SELECT revision, key, value FROM changes WHERE revision > ? ORDER BY revision", (self._revision,)
        ).fetchall()
        if not changed:
            return
        if changed[0][0] == self._revision + 1:
            self._revision = changed[-1][0]
            records = [MetadataRecord(key, value, revision) for revision, key, value in changed]
            self._on_change(MetadataUpdate(self._revision, records))
        else:
            self._on_change(self._snapshot())

    def _snapshot(self) -> MetadataUpdate:
        self._connection.execute("BEGIN")  # so that records and revision are consistent
        try:
            records = _records(self._connection, self._path)
            (revision,) = self._connection.execute("SELECT coalesce(max(revision), 0) FROM changes").fetchone()
        finally:
            self._connection.execute("COMMIT")
        self._revision = revision
        return MetadataUpdate(revision, records, snapshot=True)
