"""The names of files and folders in a data directory: Kafka's, so that its tools read them."""

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
LEFTOVER_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")
EPOCHS_FILE = "leader-epoch-checkpoint"
METADATA_FILE = "partition.metadata"

_DIRECTORY_NAME_MAX = 255
_DELETE_SUFFIX = "-delete"
_STRAY_SUFFIX = "-stray"


def file_name(offset: int, suffix: str) -> str:
    """`00000000000000000042.log`."""
    return f"{offset:020d}{suffix}"


class FileName(NamedTuple):
    """A file that is named by an offset."""

    offset: int
    suffix: str


def parse_file_name(name: str) -> FileName | None:
    """The offset and suffix in a name, or None where the name has no offset."""
    digits, dot, suffix = name.partition(".")
    if len(digits) != 20 or not (digits.isascii() and digits.isdigit()):
        return None
    return FileName(int(digits), dot + suffix)


def parse_partition_directory(name: str) -> TopicPartition | None:
    """`orders-0` is partition 0 of `orders`; a topic's name may itself hold dots, underscores and hyphens."""
    topic, _, digits = name.rpartition("-")
    if not topic or not (digits.isascii() and digits.isdigit()) or str(int(digits)) != digits:
        return None
    return TopicPartition(topic, int(digits))


def deleted_directory(name: str) -> str:
    """The name under which a partition's folder waits for its removal."""
    return _renamed(name, _DELETE_SUFFIX)


def stray_directory(name: str) -> str:
    """The name under which the folder of a partition that nobody knows is kept for people to look at."""
    return _renamed(name, _STRAY_SUFFIX)


def _renamed(name: str, suffix: str) -> str:
    ending = f".{uuid.uuid4().hex}{suffix}"
    return name[: _DIRECTORY_NAME_MAX - len(ending)] + ending


def is_deleted_directory(name: str) -> bool:
    """Whether a folder is one that waits for its removal."""
    return name.endswith(_DELETE_SUFFIX)
