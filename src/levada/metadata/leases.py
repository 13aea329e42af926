"""Leases on one host: a file lock, which ends with its process, and a heartbeat, which detects suspended processes.

The process with the lock has the lease. Another process can take the lease over when the heartbeat of the holder is
stale: it increments the epoch in the table, and the former holder finds a newer epoch than its own.
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable
from typing import Final, NamedTuple

from levada.clock import Clock
from levada.metadata.store import Lease

HEARTBEAT_S: Final = 2.0
STALE_S: Final = 10.0  # a holder without a heartbeat for so long loses its lease


class _Held(NamedTuple):
    lease: Lease
    descriptor: int
    on_lost: Callable[[], object]


class Leases:
    """The leases of this process, stored in the database of the store."""

    def __init__(self, database: sqlite3.Connection, path: str, clock: Clock) -> None:
        self._database = database
        self._path = path
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._last_heartbeat = clock.monotonic()

    def acquire(self, name: str, on_lost: Callable[[], object]) -> Lease | None:
        """Acquire a lease; None while its holder is alive."""
        descriptor = os.open(
            f"{self._path}.{name.strip('/').replace('/', '-')}.lock",
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
            0o600,
        )
        lease = self._take(name, have_lock=_try_lock(descriptor))
        if lease is None:
            os.close(descriptor)
            return None
        self._held[name] = _Held(lease, descriptor, on_lost)
        return lease

    def _take(self, name: str, *, have_lock: bool) -> Lease | None:
        now = self._clock.monotonic()
        self._database.execute("BEGIN IMMEDIATE")
        try:
            found = self._database.execute("SELECT epoch, heartbeat FROM leases WHERE name = ?", (name,)).fetchone()
            epoch, heartbeat = found or (0, 0.0)
            # A heartbeat in the future is from before a reboot.
            if not have_lock and 0 <= now - heartbeat < STALE_S:
                return None
            self._database.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?)", (name, epoch + 1, now))
            return Lease(name, epoch + 1)
        finally:
            self._database.execute("COMMIT")

    def is_held(self, lease: Lease) -> bool:
        """Whether this process still holds the lease."""
        found = self._database.execute("SELECT epoch FROM leases WHERE name = ?", (lease.name,)).fetchone()
        return lease.name in self._held and found == (lease.epoch,)

    def heartbeat(self) -> None:
        """Renew the heartbeats periodically, and drop the leases that other processes have taken over."""
        now = self._clock.monotonic()
        if now - self._last_heartbeat < HEARTBEAT_S or not self._held:
            return
        self._last_heartbeat = now
        # A heartbeat needs no fsync: it need not survive a power failure.
        self._database.execute("PRAGMA synchronous = NORMAL")
        try:
            for held in list(self._held.values()):
                renewed = self._database.execute(
                    "UPDATE leases SET heartbeat = ? WHERE name = ? AND epoch = ?", (now, *held.lease)
                )
                if renewed.rowcount:
                    _try_lock(held.descriptor)  # a lease taken over has no lock yet
                else:
                    self.release(held.lease)
                    held.on_lost()
        finally:
            self._database.execute("PRAGMA synchronous = FULL")

    def release(self, lease: Lease) -> None:
        """Release a lease if it is held."""
        held = self._held.get(lease.name)
        if held is not None and held.lease == lease:
            del self._held[lease.name]
            os.close(held.descriptor)

    def release_all(self) -> None:
        """Release all leases."""
        for held in list(self._held.values()):
            self.release(held.lease)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
