"""Names of files and directories in a log dir: Kafka's, so that its tools can read them."""

import uuid
from collections.abc import Collection
from typing import NamedTuple

from levada.model import TopicPartition

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
INTERRUPTED_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")
EPOCHS_FILE = "leader-epoch-checkpoint"
TXN_CHECKSUMS_FILE = "txnindex-checkpoint"
METADATA_FILE = "partition.metadata"
OFFSET_MAX = (1 << 63) - 1

_DIRECTORY_NAME_MAX = 255
_DELETE_SUFFIX = "-delete"
_STRAY_SUFFIX = "-stray"
_DAMAGED_SUFFIX = "-damaged"
_REPAIRED_SUFFIX = "-repaired"


def file_name(offset: int, suffix: str) -> str:
    """Return a name such as `00000000000000000042.log`."""
    return f"{offset:020d}{suffix}"


class FileName(NamedTuple):
    """The name of a file that starts with an offset."""

    offset: int
    suffix: str


def parse_file_name(name: str) -> FileName | None:
    """Return the offset and suffix of a name; None if it has no offset."""
    digits, dot, suffix = name.partition(".")
    if len(digits) != 20 or not (digits.isascii() and digits.isdigit()) or int(digits) > OFFSET_MAX:
        return None
    return FileName(int(digits), dot + suffix)


def parse_partition_directory(name: str) -> TopicPartition | None:
    """Parse `orders-0` as partition 0 of `orders`; topic names may contain dots, underscores and hyphens."""
    topic, _, digits = name.rpartition("-")
    if not topic or not (digits.isascii() and digits.isdigit()) or str(int(digits)) != digits:
        return None
    return TopicPartition(topic, int(digits))


def deleted_directory(name: str) -> str:
    """Return the name of a partition's directory until its files are deleted."""
    return _renamed(name, _DELETE_SUFFIX)


def stray_directory(name: str) -> str:
    """Return the name of the directory of a stray partition, which is kept until an operator removes it."""
    return _renamed(name, _STRAY_SUFFIX)


def damaged_file(name: str) -> str:
    """Return the name that keeps what was in the place of a file."""
    return f"{name}.{uuid.uuid4().hex}{_DAMAGED_SUFFIX}"


class RepairDirectories(NamedTuple):
    """The directories of one repair of a partition, which the broker ignores; their names have the same id."""

    repaired: str  # in which the repaired log is written
    damaged: str  # which keeps the damaged files


def repair_directories(name: str, repair_id: str = "") -> RepairDirectories:
    """Return the names of the directories of a repair, a new one unless an id is given."""
    repair_id = repair_id or uuid.uuid4().hex
    return RepairDirectories(_renamed(name, _REPAIRED_SUFFIX, repair_id), _renamed(name, _DAMAGED_SUFFIX, repair_id))


def interrupted_repair(name: str, directories: Collection[str]) -> RepairDirectories | None:
    """Return the repair of a partition that ended before the repaired directory took the place of the damaged one.

    The damaged directory is renamed once the repaired one is complete: without it the repaired one may be half-written.
    """
    for one in directories:
        if not one.endswith(_REPAIRED_SUFFIX):
            continue
        repair_id = one.removesuffix(_REPAIRED_SUFFIX).rpartition(".")[2]
        found = repair_directories(name, repair_id)
        if one == found.repaired and found.damaged in directories:
            return found
    return None


def _renamed(name: str, suffix: str, unique_id: str = "") -> str:
    """Return a name with an ending, at the cost of the topic's name if it is long."""
    topic, _, partition = name.rpartition("-")
    ending = f"-{partition}.{unique_id or uuid.uuid4().hex}{suffix}"
    return topic[: _DIRECTORY_NAME_MAX - len(ending)] + ending


def is_deleted_directory(name: str) -> bool:
    """Whether the files of a directory are to be deleted."""
    return name.endswith(_DELETE_SUFFIX)
