"""The protocol of metadata stores: versioned records under path-like keys, with atomic commits.

A store provides records, compare-and-set over several of them, leases, and one ordered change stream with a revision.
With SQLite the revision is a row id in the table of changes. With ZooKeeper it would be the zxid: records are znodes, a
commit is a multi of version checks, a lease an ephemeral node, the change stream one recursive watch. With a quorum it
would be the index of its log. No handler depends on the kind of store.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

ABSENT = 0  # the version of a key without a record


class MetadataRecord(NamedTuple):
    """A key and its value. Every write of the key changes `version`; None as the value is a deletion."""

    key: str
    value: bytes | None
    version: int


class CompareAndSet(NamedTuple):
    """Sets the value of a key (None deletes it) if its version is still `version`."""

    key: str
    value: bytes | None
    version: int


class MetadataUpdate(NamedTuple):
    """Records as of a revision: the changed ones, or all of them in a snapshot."""

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
    """Another process holds the lease: nothing is written."""


class StoreError(Exception):
    """The store cannot be read or written; the message contains the reason and the path."""


class MetadataStore(Protocol):
    """Stores metadata. All methods are called on the loop, and all callbacks run on the loop."""

    async def open(self, on_change: Callable[[MetadataUpdate], None]) -> MetadataUpdate:
        """Return a snapshot; `on_change` receives all later changes in order, also those of other processes."""
        ...

    async def commit(self, writes: Sequence[CompareAndSet], lease: Lease | None = None) -> int:
        """Apply all writes or none; return the revision after `on_change` has received it.

        Raises ConflictError, or LeaseLostError if the lease under which the writes were decided has another holder.
        """
        ...

    async def acquire(self, name: str, on_lost: Callable[[], None]) -> Lease | None:
        """Acquire a lease; None while another process holds it. A lease ends at the latest with its process."""
        ...

    async def release(self, lease: Lease) -> None:
        """Release a lease."""
        ...

    async def close(self) -> None:
        """Release all leases and stop."""
        ...
