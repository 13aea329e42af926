"""The SQLite file of a metadata store: records, the table of changes, transactions.

Used in one thread. Every write of a record appends to the table of changes, whose row id is the revision and the
version of the record. Every process reads its change stream from that table; `PRAGMA data_version` is a cheap check for
writes of other processes.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import escape, glob
from typing import Final

from levada.core.cluster.migration import migrated
from levada.metadata.store import (
    ABSENT,
    CompareAndSet,
    ConflictError,
    MetadataRecord,
    MetadataUpdate,
    StoreError,
    Write,
)

FORMAT_VERSION: Final = 2
BUSY_TIMEOUT_S: Final = 10.0  # the longest lock of another process
BUSY_RETRY_S: Final = 0.01
CHANGES_KEPT: Final = 20_000  # more than one request changes; a process further behind reads a snapshot

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS rows"
    " (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS changes (revision INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, value BLOB)",
    "DROP TABLE IF EXISTS leases",  # of format 1
    "CREATE TABLE leases (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, session TEXT) WITHOUT ROWID",
    "CREATE TABLE sessions (token TEXT PRIMARY KEY, timeout REAL NOT NULL) WITHOUT ROWID",
    f"PRAGMA user_version = {FORMAT_VERSION}",
)


class Database:
    """The connection to the file."""

    def __init__(self, path: str, on_change: Callable[[MetadataUpdate], object]) -> None:
        self.path = path
        self.revision = 0  # the last one passed to on_change
        self._on_change = on_change
        self._data_version = 0  # of the last check
        self._synchronous = ""
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self.execute = self._connection.execute

    def open(self) -> None:
        """Create or convert the tables if necessary, and check the file."""
        version = self._format()
        if version < FORMAT_VERSION:
            self._change_to_wal()
        (result,) = self.execute("PRAGMA integrity_check(1)").fetchone()
        if result != "ok":
            raise StoreError(f"metadata store {self.path} is corrupt, restore it from a backup: {result}")
        if version < FORMAT_VERSION:
            with self.transaction():
                if (version := self._format()) < FORMAT_VERSION:  # another process may have been first
                    for statement in SCHEMA:
                        self.execute(statement)
                    if version == 1:
                        self._migrate()
            for lock in glob(escape(self.path) + ".*.lock"):  # of format 1
                os.remove(lock)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[None]:
        """Run a block as one transaction; it survives a power failure if it is durable."""
        synchronous = "FULL" if durable else "NORMAL"
        if synchronous != self._synchronous:
            self.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self.execute("ROLLBACK")
            raise

    def apply(self, write: Write) -> None:
        """Check the version of a key and write its value, in a transaction."""
        found = self.execute("SELECT version FROM rows WHERE key = ?", (write.key,)).fetchone()
        if (found[0] if found else ABSENT) != write.version:
            raise ConflictError(write.key)
        if isinstance(write, CompareAndSet):
            self.put(write.key, write.value)

    def put(self, key: str, value: bytes | None) -> None:
        """Write a record, in a transaction."""
        revision = self.execute("INSERT INTO changes (key, value) VALUES (?, ?)", (key, value)).lastrowid
        assert revision is not None
        if value is None:
            self.execute("DELETE FROM rows WHERE key = ?", (key,))
        else:
            self.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", (key, value, revision))
        self.execute("DELETE FROM changes WHERE revision <= ?", (revision - CHANGES_KEPT,))

    def has_changed(self) -> bool:
        """Whether another connection has written since the last call."""
        former = self._data_version
        (self._data_version,) = self.execute("PRAGMA data_version").fetchone()
        return former != self._data_version

    def publish(self) -> None:
        """Pass the changes since the last call to on_change."""
        changed = self.execute(
            "SELECT revision, key, value FROM changes WHERE revision > ? ORDER BY revision", (self.revision,)
        ).fetchall()
        if not changed:
            return
        if changed[0][0] == self.revision + 1:
            self.revision = changed[-1][0]
            records = [MetadataRecord(key, value, revision) for revision, key, value in changed]
            self._on_change(MetadataUpdate(self.revision, records))
        else:
            self._on_change(self.snapshot())

    def snapshot(self) -> MetadataUpdate:
        """Return all records; changes after them are published."""
        self.execute("BEGIN")  # so that records and revision are consistent
        try:
            records = self.execute("SELECT key, value, version FROM rows ORDER BY key").fetchall()
            (revision,) = self.execute("SELECT coalesce(max(revision), 0) FROM changes").fetchone()
        finally:
            self.execute("COMMIT")
        self.revision = revision
        return MetadataUpdate(revision, [MetadataRecord(*record) for record in records], snapshot=True)

    def _format(self) -> int:
        (version,) = self.execute("PRAGMA user_version").fetchone()
        if version > FORMAT_VERSION:
            raise StoreError(
                f"metadata store {self.path} has format {version}; this Levada reads up to {FORMAT_VERSION}"
            )
        return int(version)

    def _migrate(self) -> None:
        """Replace the records of format 1, in a transaction."""
        former: dict[str, bytes] = dict(self.execute("SELECT key, value FROM rows").fetchall())
        try:
            records = migrated(former)
        except ValueError as error:
            raise StoreError(f"metadata store {self.path} cannot be converted: {error}") from error
        for key in former:
            self.put(key, None)
        for key, value in records.items():
            self.put(key, value)

    def _change_to_wal(self) -> None:
        """Change the journal; SQLite does not wait for other processes that open the file at the same time."""
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                self.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(BUSY_RETRY_S)
