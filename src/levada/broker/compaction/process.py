"""The cleaner's process as the broker sees it: a log goes in, reports of what is done come out.

It is started with the first log that needs it, so that a broker without compacted topics pays nothing, and killed
without ceremony: it only ever writes files that nobody uses yet.
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
from levada.storage.compaction.messages import LENGTH, Failed, Finished, Job, Report, decode_report, encode

MODULE: Final = "levada.storage.compaction.process"


class CleanerDiedError(Exception):
    """The process is gone or talks nonsense; another one can be started."""


class CleanerProcess:
    """One cleaner, busy with at most one log; it runs from the first log on until it is stopped or fails."""

    __slots__ = ("_process", "_reader", "_writer")

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def clean(self, job: Job) -> AsyncGenerator[Report, None]:
        """Have a log cleaned; the last report is Finished or Failed, or else CleanerDiedError is raised.

        Whoever stops listening earlier (`aclosing`) ends the process.
        """
        done = False
        try:
            if self._process is None:
                await self._start()
            self._writer.write(encode(job))
            await self._writer.drain()
            while not done:
                report = await self._read()
                done = isinstance(report, Finished | Failed)
                yield report
        except (asyncio.IncompleteReadError, OSError) as error:
            raise CleanerDiedError(f"the cleaner's process ended: {error}") from error
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

    async def _read(self) -> Report:
        (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        return decode_report(await self._reader.readexactly(length))

    async def stop(self) -> None:
        """End the process, whatever it is doing."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._writer.close()
            await asyncio.to_thread(process.wait)


def _spawn(connection: socket.socket) -> "subprocess.Popen[bytes]":
    # Every descriptor of ours closes itself on exec: nothing has to be closed one by one while the loop waits.
    package = str(Path(levada.__file__).parent.parent)
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(  # noqa: S603 (our own module)
        [sys.executable, "-P", "-m", MODULE, str(os.getpid())],
        stdin=connection.fileno(),
        stdout=subprocess.DEVNULL,
        close_fds=False,
        env={**os.environ, "PYTHONPATH": path},
    )
