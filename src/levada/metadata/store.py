"""The protocol of metadata stores: versioned records under path-like keys, with atomic commits.

A store provides records, compare-and-set over several of them, leases, and one ordered change stream with a revision.
With SQLite the revision is a row id in the table of changes, with ZooKeeper the zxid; with a quorum it would be the
index of its log. No handler depends on the kind of store.

The change stream is a sequence of states: after an update with revision R the receiver has the effect of every commit
up to R, and of none after R. Commits are atomic in it and in order. Several changes of one key may be merged into its
newest value. A connection that is lost and found again leaves no gap.

A lease is a record of its own, which its holder creates and the store deletes when the session of the holder ends: the
store is closed, the process dies, or the session timeout passes without a sign of it (a pause, an unreachable store).
Other brokers see both in the change stream. While the store is unreachable commits raise StoreError within a bounded
time; what was read stays readable.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

ABSENT: Final = 0  # the version of a key without a record; versions of records are positive
WRITE_OVERHEAD: Final = 256  # of one write, in `commit_bytes`: versions, access control, directories


class MetadataRecord(NamedTuple):
    """A key and its value; None as the value is a deletion.

    Every write of the key changes `version`. A version never returns, also if the record is deleted and created again.
    """

    key: str
    value: bytes | None
    version: int


class CompareAndSet(NamedTuple):
    """Sets the value of a key (None deletes it) if its version is still `version`. A value is not empty."""

    key: str
    value: bytes | None
    version: int


class CheckVersion(NamedTuple):
    """Requires that a key still has this version, ABSENT if it has no record; writes nothing."""

    key: str
    version: int


Write: TypeAlias = CompareAndSet | CheckVersion


class MetadataUpdate(NamedTuple):
    """Records as of a revision: the changed ones, or all of them in a snapshot, where other keys have no record."""

    revision: int
    records: Sequence[MetadataRecord]
    snapshot: bool = False


class Lease(NamedTuple):
    """An exclusive right. Each later holder has a higher epoch."""

    name: str
    epoch: int


class ConflictError(Exception):
    """A record does not have the expected version: nothing is written. Decide again on the newer records."""


class LeaseLostError(Exception):
    """The lease is over, or another session holds it: nothing is written."""


class StoreError(Exception):
    """The store cannot be read or written; the message contains the reason and the place.

    A commit that fails with it may have been applied, if the connection was lost after it was sent.
    """


class MetadataStore(Protocol):
    """Stores metadata. All methods are called on the loop, all callbacks run on the loop, and no method blocks it."""

    @property
    def commit_bytes_max(self) -> int:
        """The largest `commit_bytes` of a commit."""
        ...

    @property
    def dead_session_timeout_s(self) -> float:
        """How long the leases of a process may last that has died."""
        ...

    async def open(self, on_change: Callable[[MetadataUpdate], None]) -> MetadataUpdate:
        """Return a snapshot; `on_change` receives all later changes in order, also those of other processes."""
        ...

    async def commit(self, writes: Sequence[Write], lease: Lease | None = None) -> int:
        """Apply all writes or none; return a revision that includes them, after `on_change` has received it.

        Each key occurs once, and none is the name of a lease. Raises ConflictError if a version is not the expected
        one, LeaseLostError if `lease` is over. After a ConflictError `on_change` has received the newer records.
        """
        ...

    async def acquire(self, name: str, value: bytes, on_lost: Callable[[], None]) -> Lease | None:
        """Acquire a lease and create its record; None while another session holds it.

        `on_lost` is called once if the session ends before the lease is released, at the latest when the session
        timeout has passed on the local monotonic clock since the store last heard of this session. From then on its
        owner must not act on the lease. The store begins a new session by itself; the owner acquires again.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """End a lease and delete its record. A lease that is over is ignored."""
        ...

    async def close(self) -> None:
        """End the session with all its leases and stop. `on_lost` is not called. A second call has no effect."""
        ...


def commit_bytes(writes: Iterable[Write]) -> int:
    """Return the size of a commit, as `commit_bytes_max` limits it."""
    return sum(
        WRITE_OVERHEAD + 2 * len(write.key) + len((write.value if isinstance(write, CompareAndSet) else None) or b"")
        for write in writes
    )


def check_writes(writes: Sequence[Write], bytes_max: int) -> None:
    """Raise ValueError for a write that no commit can have, StoreError if they are too many for one."""
    for write in writes:
        if isinstance(write, CompareAndSet) and write.value == b"":
            raise ValueError(f"{write.key} has an empty value")
    size = commit_bytes(writes)
    if size > bytes_max:
        raise StoreError(f"a commit of {size} bytes is larger than {bytes_max}")
