"""Sessions of the broker processes of one host that share a SQLite file, and the leases of each session.

Each session has a file beside the database. Its process holds a lock on it, which ends with the process, and writes
heartbeats into it, which end in a pause. Neither uses the database: a slow disk or a long transaction of another
process ends no session, and a heartbeat costs no fsync. Any process ends a session that is dead: it deletes the lease
records of the session, as any change of records.
"""

import fcntl
import os
import secrets
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from levada.clock import Clock
from levada.metadata.database import Database
from levada.metadata.store import Lease, LeaseLostError

HEARTBEATS_PER_TIMEOUT: Final = 5
_TIME: Final = struct.Struct("<d")  # seconds of the monotonic clock, which all processes of a host share


class Sessions:
    """The leases of this process and the sessions of all; used in the thread of the database."""

    def __init__(self, database: Database, clock: Clock, timeout_s: float) -> None:
        self._database = database
        self._folder = database.path + ".sessions"
        self._clock = clock
        self._timeout_s = timeout_s
        self._own: _OwnSession | None = None  # begun with the first lease
        self._others: dict[str, _OtherSession] = {}  # by token

    @property
    def has_others(self) -> bool:
        """Whether other sessions exist, whose changes and ends are of interest."""
        return bool(self._others)

    def refresh(self) -> None:
        """Read which sessions exist, after a change of another process; notice that it has ended this one."""
        rows = dict(self._database.execute("SELECT token, timeout FROM sessions").fetchall())
        if self._own is not None and self._own.ended:
            self._own = None  # as dead as one of another process
        if self._own is not None and rows.pop(self._own.token, None) is None:
            self._own.end()
            self._own = None
        for token in self._others.keys() - rows.keys():
            self._others.pop(token).close()
        for token in rows.keys() - self._others.keys():
            self._others[token] = _OtherSession(os.path.join(self._folder, token), rows[token])

    def end_dead_sessions(self) -> bool:
        """Delete the sessions of processes that are dead or paused, with their lease records; whether there were any.

        The own session is one of them when it is lost.
        """
        if self._own is not None and self._own.ended:
            self.refresh()
        dead = [token for token, other in self._others.items() if other.is_dead(self._clock)]
        if dead:
            with self._database.transaction(durable=False):
                for token in dead:
                    if self._others[token].is_dead(self._clock):  # no other process has taken a part in it meanwhile
                        self._delete(token)
            self.refresh()
            self._remove_files(dead)
        return bool(dead)

    def acquire(self, name: str, value: bytes, on_lost: Callable[[], object]) -> Lease | None:
        """Acquire a lease; None while its holder is alive."""
        database = self._database
        self.refresh()
        self.end_dead_sessions()
        with database.transaction(durable=False):
            found = database.execute("SELECT epoch, session FROM leases WHERE name = ?", (name,)).fetchone()
            epoch, holder = found or (0, None)
            if holder is not None:
                return None
            own = self._begin()
            lease = Lease(name, epoch + 1)
            database.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?)", (*lease, own.token))
            database.put(name, value)
        own.add(lease, on_lost)
        return lease

    def check(self, lease: Lease) -> None:
        """Raise LeaseLostError unless this process holds the lease; in a transaction."""
        own = self._own
        held = own is not None and not own.ended and self._is_held(lease, own.token)
        if not held:
            raise LeaseLostError(f"the lease {lease.name} is over")

    def names(self) -> set[str]:
        """The names of all leases."""
        return {name for (name,) in self._database.execute("SELECT name FROM leases")}

    def release(self, lease: Lease) -> None:
        """Release a lease if it is held."""
        own = self._own
        if own is None or not own.remove(lease):
            return
        with self._database.transaction(durable=False):
            if self._is_held(lease, own.token):
                self._database.put(lease.name, None)
                self._database.execute("UPDATE leases SET session = NULL WHERE name = ?", (lease.name,))

    def close(self) -> None:
        """End the session of this process."""
        for other in self._others.values():
            other.close()
        own, self._own = self._own, None
        if own is not None:
            own.end(notify=False)
            with self._database.transaction(durable=False):
                self._delete(own.token)
            self._remove_files([own.token])

    def _begin(self) -> "_OwnSession":
        """Begin a session unless there is one; in a transaction."""
        if self._own is None:
            os.makedirs(self._folder, exist_ok=True)
            self._own = _OwnSession(self._folder, self._clock, self._timeout_s)
        self._database.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?)", (self._own.token, self._timeout_s))
        return self._own

    def _is_held(self, lease: Lease, token: str) -> bool:
        found = self._database.execute("SELECT epoch, session FROM leases WHERE name = ?", (lease.name,)).fetchone()
        return bool(found == (lease.epoch, token))

    def _delete(self, token: str) -> None:
        execute = self._database.execute
        for (name,) in execute("SELECT name FROM leases WHERE session = ?", (token,)).fetchall():
            self._database.put(name, None)
        execute("UPDATE leases SET session = NULL WHERE session = ?", (token,))
        execute("DELETE FROM sessions WHERE token = ?", (token,))

    def _remove_files(self, tokens: list[str]) -> None:
        for token in tokens:
            if token not in self._others:
                with suppress(FileNotFoundError):
                    os.remove(os.path.join(self._folder, token))


class _OwnSession:
    """The session of this process: a locked file, and a thread that writes heartbeats into it."""

    def __init__(self, folder: str, clock: Clock, timeout_s: float) -> None:
        self.token = secrets.token_hex(8)
        self.ended = False
        self._clock = clock
        self._timeout_s = timeout_s
        self._leases: dict[Lease, Callable[[], object]] = {}  # and what to call when they are lost
        self._mutex = threading.Lock()  # guards everything here: the heartbeat thread can end the session
        self._descriptor = os.open(
            os.path.join(folder, self.token), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._last_heartbeat = clock.monotonic()
        os.pwrite(self._descriptor, _TIME.pack(self._last_heartbeat), 0)
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="metadata-heartbeat", daemon=True).start()

    def add(self, lease: Lease, on_lost: Callable[[], object]) -> None:
        with self._mutex:
            if not self.ended:
                self._leases[lease] = on_lost
                return
        on_lost()

    def remove(self, lease: Lease) -> bool:
        """Remove a lease; False if it was not held."""
        with self._mutex:
            return self._leases.pop(lease, None) is not None

    def end(self, *, notify: bool = True) -> None:
        """End the session for this process: its file is no longer locked. Other processes see it as dead."""
        with self._mutex:
            if self.ended:
                return
            self.ended = True
            self._stopped.set()
            os.close(self._descriptor)
            lost, self._leases = self._leases, {}
        if notify:
            for on_lost in lost.values():
                on_lost()

    def _run(self) -> None:
        while not self._stopped.wait(self._timeout_s / HEARTBEATS_PER_TIMEOUT):
            self._beat()

    def _beat(self) -> None:
        """Write a heartbeat, unless the last one is so old that other processes may have ended the session."""
        now = self._clock.monotonic()
        in_time = now - self._last_heartbeat < self._timeout_s
        with self._mutex:
            if in_time and not self.ended:
                with suppress(OSError):  # a later heartbeat may be in time
                    os.pwrite(self._descriptor, _TIME.pack(now), 0)
                    self._last_heartbeat = now
        if not in_time:
            self.end()


class _OtherSession:
    """A session of another process."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._descriptor = -1

    def is_dead(self, clock: Clock) -> bool:
        """Whether its process is dead, or has paused for longer than the session timeout."""
        if self._descriptor < 0:
            return True
        # Read before the heartbeat: a pause of this process in between must not make the heartbeat old.
        now = clock.monotonic()
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            (heartbeat,) = _TIME.unpack(os.pread(self._descriptor, _TIME.size, 0))
            return bool(now - heartbeat >= self._timeout_s)
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return True

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
