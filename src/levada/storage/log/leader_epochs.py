"""Which leader epoch began at which offset of a log: what replicas compare to find where they part.

The file is written without fsync: recovery learns the epochs of what is not yet fsynced from the batches.
"""

import os
from bisect import bisect_left, bisect_right
from operator import itemgetter

from levada.storage.checkpoints import BadCheckpointError, decode_epochs, encode_epochs
from levada.storage.disk import Disk, fsync_file, read_file, write_atomically
from levada.storage.file_names import EPOCHS_FILE

Epochs = list[tuple[int, int]]  # (leader epoch, its first offset); both rise

_EPOCH, _START = itemgetter(0), itemgetter(1)
UNKNOWN = (-1, -1)


def load(disk: Disk, directory: str) -> Epochs | None:
    """The stored list; None when it is missing or damaged."""
    data = read_file(disk, os.path.join(directory, EPOCHS_FILE))
    try:
        return None if data is None else decode_epochs(data)
    except BadCheckpointError:
        return None


def store(disk: Disk, directory: str, epochs: Epochs) -> None:
    """Replace the stored list."""
    write_atomically(disk, os.path.join(directory, EPOCHS_FILE), encode_epochs(epochs), durable=False)


def fsync(disk: Disk, directory: str) -> None:
    """Make the stored list survive a crash, before batches that it tells of count as fsynced."""
    path = os.path.join(directory, EPOCHS_FILE)
    if disk.exists(path):
        fsync_file(disk, path)


def assign(epochs: Epochs, epoch: int, start_offset: int) -> bool:
    """Note that `epoch` writes from `start_offset` on; whether that is news."""
    if epoch < 0 or (epochs and epoch <= epochs[-1][0]):
        return False
    while epochs and epochs[-1][1] >= start_offset:
        epochs.pop()  # an epoch that wrote nothing
    epochs.append((epoch, start_offset))
    return True


def cut_end(epochs: Epochs, end_offset: int) -> None:
    """Forget the epochs that begin at or after the end of the log."""
    del epochs[bisect_left(epochs, end_offset, key=_START) :]


def cut_start(epochs: Epochs, start_offset: int) -> None:
    """Forget the epochs that end before the log begins; the one that holds its start begins there."""
    place = bisect_right(epochs, start_offset, key=_START) - 1
    if place >= 0:
        epochs[: place + 1] = [(epochs[place][0], start_offset)]


def end_offset(epochs: Epochs, epoch: int, log_end_offset: int) -> tuple[int, int]:
    """The largest epoch known that is at most `epoch`, and the offset at which it ends, as Kafka answers it."""
    if not epochs or epoch < 0 or epoch > epochs[-1][0]:
        return UNKNOWN
    if epoch == epochs[-1][0]:
        return epoch, log_end_offset
    place = bisect_right(epochs, epoch, key=_EPOCH)
    return (epochs[place - 1][0] if place else epoch), epochs[place][1]
