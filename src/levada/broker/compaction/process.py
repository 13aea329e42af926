"""Starts and stops a cleaner process, sends it jobs and receives its reports.

The process is started with the first job, so that a broker without compacted topics does not pay for it. It can be
killed at any time, because it only writes files that are not in use yet.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import levada
from levada.storage.compaction.messages import (
    LENGTH,
    CleaningFailed,
    CleaningFinished,
    CleaningJob,
    CleaningReport,
    decode_report,
    encode,
)

MODULE: Final = "levada.storage.compaction.process"


class CleanerDiedError(Exception):
    """A cleaning cannot continue: the process has ended, or the log has changed. A new process can be started."""


class CleanerProcess:
    """One cleaner process, which cleans at most one log at a time."""

    __slots__ = ("_process", "_reader", "_writer")

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def clean(self, job: CleaningJob) -> AsyncGenerator[CleaningReport, None]:
        """Clean a log; the last report is CleaningFinished or CleaningFailed, otherwise CleanerDiedError is raised.

        Closing the generator earlier (`aclosing`) stops the process.
        """
        done = False
        try:
            if self._process is None:
                await self._start()
            self._writer.write(encode(job))
            await self._writer.drain()
            while not done:
                report = await self._read()
                done = isinstance(report, CleaningFinished | CleaningFailed)
                yield report
        except (asyncio.IncompleteReadError, OSError) as error:
            raise CleanerDiedError(f"the cleaner process ended: {error}") from error
        finally:
            if not done:
                await self.stop()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            self._process = _spawn(theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)

    async def _read(self) -> CleaningReport:
        (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        return decode_report(await self._reader.readexactly(length))

    async def stop(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._writer.close()
            await asyncio.to_thread(process.wait)


def _spawn(connection: socket.socket) -> "subprocess.Popen[bytes]":
    # All our descriptors are close-on-exec, so close_fds, which would block the loop, is not needed.
    package = str(Path(levada.__file__).parent.parent)
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(  # noqa: S603 (our own module)
        [sys.executable, "-P", "-m", MODULE, str(os.getpid())],
        stdin=connection.fileno(),
        stdout=subprocess.DEVNULL,
        close_fds=False,
        env={**os.environ, "PYTHONPATH": path},
    )
