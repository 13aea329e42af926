"""The cleaner's own process: `python -m levada.storage.compaction.process`, started by the broker when it is needed.

Compaction is hours of work for one core, and in the broker's process it would stop every client for as long as it
holds the interpreter. Here it reads and writes files only, and tells the broker over a socket, its standard input,
what is done. It can be killed at any moment: what it had not told of is removed by the next cleaning or start. It
ends with the broker, however that ends.
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
from levada.storage.compaction.messages import Failed, Job, Report, encode, read_job
from levada.storage.disk import OsDisk

NICENESS = 10  # whoever serves clients goes first
PACE_BYTES = 256 * 1024  # read or written between two looks at the clock
BURST_S = 0.1  # for so long more than the rate
PAUSE_S_MAX = 1.0
_PR_SET_PDEATHSIG = 1


class OrphanError(Exception):
    """The broker is gone."""


class Pace:
    """Waits so that no more than so many bytes a second are read and written; sees when the broker is gone."""

    __slots__ = ("_bytes", "_clock", "_due", "_parent", "_rate", "_sleep")

    def __init__(self, rate: float, clock: Clock, sleep: Callable[[float], None], parent: int) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._parent = parent
        self._bytes = 0
        self._due = clock.monotonic()  # when what was done so far may be done

    def __call__(self, size: int) -> None:
        self._bytes += size
        if self._bytes < min(PACE_BYTES, self._rate * BURST_S):
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


def clean(job: Job, pace: Callable[[int], None], tell: Callable[[Report], None]) -> None:
    """Clean one log and tell how it goes; what is wrong with the log is told as well."""
    try:
        for report in Cleaner(job, OsDisk(), pace).run():
            tell(report)
    except KafkaError as error:
        tell(Failed(error.detail, corrupt=True))
    except OSError as error:
        tell(Failed(str(error), errno=error.errno or 0))


def end_with(parent: int) -> None:
    """Have the kernel end this process when its parent is gone; where it cannot, `Pace` looks."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise OrphanError


def main() -> None:
    """Clean logs until the broker has no more of them."""
    parent = int(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the broker decides
    os.nice(NICENESS)
    with socket.socket(fileno=0) as connection, connection.makefile("rb") as jobs:
        try:
            end_with(parent)
            while (job := read_job(jobs.read)) is not None:
                pace = Pace(job.io_bytes_per_second, SystemClock(), time.sleep, parent)
                clean(job, pace, lambda report: connection.sendall(encode(report)))
        except (OrphanError, ConnectionError):
            return


if __name__ == "__main__":
    main()
