"""The cleaner process: `python -m levada.storage.compaction.process`, started by the broker on demand.

Compaction occupies one core for hours; in the broker's process it would block every client while it holds the GIL.
The process only reads and writes files, and reports over a socket, its standard input. It can be killed at any time:
the next cleaning or start deletes the files that it has not reported. It always ends with the broker.
"""

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

from levada.clock import Clock, SystemClock
from levada.errors import KafkaError
from levada.storage.compaction.cleaner import Cleaner
from levada.storage.compaction.messages import CleaningFailed, CleaningJob, CleaningReport, encode, read_job
from levada.storage.disk import OsDisk

NICENESS = 10  # below the broker
THROTTLE_BYTES = 256 * 1024  # read or written between two checks of the rate
BURST_S = 0.1  # of unused rate that may be used later
PAUSE_S_MAX = 1.0
_PR_SET_PDEATHSIG = 1


class OrphanError(Exception):
    """The broker process has ended."""


class Throttler:
    """Sleeps so that I/O stays below a rate; raises OrphanError if the broker process has ended."""

    __slots__ = ("_bytes", "_clock", "_due", "_parent", "_rate", "_sleep")

    def __init__(self, rate: float, clock: Clock, sleep: Callable[[float], None], parent: int) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._parent = parent
        self._bytes = 0
        self._due = clock.monotonic()  # when the I/O done so far conforms to the rate

    def __call__(self, size: int) -> None:
        self._bytes += size
        if self._bytes < min(THROTTLE_BYTES, self._rate * BURST_S):
            return
        now = self._clock.monotonic()
        self._due = max(self._due, now - BURST_S) + self._bytes / self._rate
        self._bytes = 0
        while self._due > now:
            self._check_parent()
            self._sleep(min(self._due - now, PAUSE_S_MAX))
            now = self._clock.monotonic()
        self._check_parent()

    def _check_parent(self) -> None:
        if os.getppid() != self._parent:
            raise OrphanError


def clean(job: CleaningJob, throttle: Callable[[int], None], send: Callable[[CleaningReport], None]) -> None:
    """Clean one log and send reports, also of failures."""
    try:
        for report in Cleaner(job, OsDisk(), throttle).run():
            send(report)
    except KafkaError as error:
        send(CleaningFailed(error.detail, corrupt=True))
    except OSError as error:
        send(CleaningFailed(str(error), errno=error.errno or 0))


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; on other systems `Throttler` checks for it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise OrphanError


def main() -> None:
    """Clean logs until the broker closes the connection."""
    parent = int(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal; the broker stops this process
    os.nice(NICENESS)
    with socket.socket(fileno=0) as connection, connection.makefile("rb") as jobs:
        try:
            end_with(parent)
            while (job := read_job(jobs.read)) is not None:
                throttle = Throttler(job.io_bytes_per_second, SystemClock(), time.sleep, parent)
                clean(job, throttle, lambda report: connection.sendall(encode(report)))
        except (OrphanError, ConnectionError):
            return


if __name__ == "__main__":
    main()
