"""Names of files and directories in a log dir: Kafka's, so that its tools can read them."""

import uuid
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
    if len(digits) != 20 or not (digits.isascii() and digits.isdigit()):
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


def damaged_directory(name: str) -> str:
    """Return the name of the directory for the damaged files of a repaired partition, which the broker ignores."""
    return _renamed(name, _DAMAGED_SUFFIX)


def repaired_directory(name: str) -> str:
    """Return the name of the directory in which a partition is repaired, which the broker ignores."""
    return _renamed(name, _REPAIRED_SUFFIX)


def _renamed(name: str, suffix: str) -> str:
    ending = f".{uuid.uuid4().hex}{suffix}"
    return name[: _DIRECTORY_NAME_MAX - len(ending)] + ending


def is_deleted_directory(name: str) -> bool:
    """Whether the files of a directory are to be deleted."""
    return name.endswith(_DELETE_SUFFIX)
