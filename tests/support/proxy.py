"""A TCP proxy whose connections a test cuts, in one direction or both."""

import asyncio
from typing import Self


class Proxy:
    """Forwards connections to a port of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server
        self._writers: set[asyncio.StreamWriter] = set()
        self.drops_requests = False  # what clients send does not arrive
        self.drops_responses = False
        self.requests = 0  # pieces that clients have sent

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.disconnect()

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self) -> None:
        """Drop everything; connections stay open."""
        self.drops_requests = self.drops_responses = True

    def heal(self) -> None:
        """Close the connections that have lost something; new ones are forwarded."""
        self.drops_requests = self.drops_responses = False
        self.disconnect()

    def disconnect(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target_reader, target = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, target}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, target, are_requests=True))
                group.create_task(self._forward(target_reader, writer, are_requests=False))
        except* (OSError, _Closed):
            pass
        finally:
            self._writers -= {writer, target}
            writer.transport.abort()
            target.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, are_requests: bool) -> None:
        while piece := await reader.read(65_536):
            self.requests += are_requests
            if not (self.drops_requests if are_requests else self.drops_responses):
                writer.write(piece)
                await writer.drain()
        raise _Closed


class _Closed(Exception):
    """A side has closed its connection."""
