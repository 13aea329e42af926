"""Runs worlds by seeds: how a failure is replayed, and the proof that planted bugs are found."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Protocol

import pytest

from levada.testing.sim_disk import SimDisk

SEEDS_DEFAULT = 600  # of each world in `make test`

Plant = Callable[[pytest.MonkeyPatch], object]


class Invariant(Enum):
    """What must hold in a world, as docs/project_testing.md lists it."""

    READ_BOUND = "no reader sees an offset at or past the high watermark; with read_committed, the last stable offset"
    STORED_RECORDS = "readers get what was stored: every byte, and nothing is skipped"
    COMMITTED_READS = "what a read_committed reader was given does not change when all transactions have ended"
    OFFSETS_RISE = "offsets are given once, one after the other"
    TIMESTAMPS = "a lookup by timestamp finds the first record that is not older"
    ACKNOWLEDGEMENT = "a batch is acknowledged after its write, and where acks wait for it, after its fsync"
    DURABILITY = "what was fsynced survives a power cut, what was written a killed process"
    RECOVERY = "a log opens after every crash, ends with a whole batch that was given, and opens the same again"
    SEQUENCE_ONCE = "a producer's (id, epoch, sequence) is in the log once"
    PRODUCER_STATE = "a producer's next sequence and last batches are known after a start and a cleaning"
    FENCED_EPOCH = "a fenced epoch never appends"
    TRANSACTION_END = (
        "a transaction ends with one kind of marker on all of its partitions, the one its client was acknowledged, "
        "and readers get all of it or nothing"
    )
    MARKER_AFTER_PREPARE = "a partition has the marker of a transaction only if its end is in the journal"
    ONE_TRANSACTION_A_MARKER = "no record of a transaction is decided by the end of another"
    LAST_STABLE_OFFSET = "the last stable offset is the start of the first open transaction; once healed, none hangs"
    ONE_OWNER = (
        "a partition has at most one owner in a group generation, and no two current members read the same partition"
    )
    MEMBER_EPOCH = "the epoch of a member never goes back"
    COMMITS_OF_OWNERS = "only the owner of a partition commits its offset"
    COMMITTED_OFFSETS = (
        "committed offsets are those of the last valid commit, acknowledged commits are kept, and none expires early"
    )
    JOURNAL_REPLAY = "replaying a journal rebuilds the state"
    VALID_REQUESTS = "a valid request is not refused"
    PROGRESS = "once healed, every request gets its response, every transaction ends, and every group becomes stable"
    EXPIRY = "groups and offsets expire once their members have left"
    LATEST_OF_A_KEY = "the latest committed record of each key survives compaction"
    DELETED_KEYS = "a deleted key does not come back"
    TOMBSTONES = "a tombstone stays for delete.retention.ms"
    REPLICATION = "every leader has all records that were acknowledged with acks=all"
    COMMITTED_RECORDS = "a record below a high watermark is the same on all replicas, for ever"
    UNCLEANED_RECORDS = "records that were never cleaned are all there"


class Violation(AssertionError):
    """The broker broke an invariant."""

    def __init__(self, invariant: Invariant, detail: str) -> None:
        super().__init__(f"{invariant.name}: {detail}")
        self.invariant = invariant


class Traced(Protocol):
    """A world that writes down what happens in it."""

    trace: list[str]
    disk: SimDisk


@contextmanager
def replayable(world: Traced, seed: int, tests: str) -> Iterator[None]:
    """Adds to a failure how to replay it, and the last actions."""
    try:
        yield
    except Exception as error:
        error.add_note(f"replay: SEED={seed} python -m pytest tests/sim/{tests}")
        error.add_note("the last actions:\n  " + "\n  ".join(world.trace[-60:]))
        error.add_note("the last calls to the disk:\n  " + "\n  ".join(world.disk.trace[-40:]))
        raise


def must_be_found(
    plant: Callable[..., object], invariant: Invariant, simulate: Callable[[int], object], first: int = 0
) -> None:
    """Run the seeds of `make test`, from `first` on, until one of them breaks the invariant.

    Another violation, or a bug's own exception, is not what the plant is for: the search goes on.
    """
    others: dict[str, int] = {}
    for seed in (*range(first, SEEDS_DEFAULT), *range(first)):
        try:
            simulate(seed)
        except Violation as violation:
            if violation.invariant is invariant:
                return
            others.setdefault(violation.invariant.name, seed)
        except AssertionError as error:
            others.setdefault(repr(error)[:200], seed)
    pytest.fail(f"{plant.__name__} does not break {invariant.name} in {SEEDS_DEFAULT} seeds; found instead: {others}")
