"""Serves /metrics and /healthz on a port of their own."""

import asyncio
import errno
import json
import time
from collections.abc import Sequence
from typing import Final

from levada.broker.broker import Broker
from levada.broker.metrics.collector import Collector, IdleRatio
from levada.config.listeners import address
from levada.net.busy_polling import BusyPoller
from levada.net.listener import Listener

REQUEST_BYTES_MAX: Final = 8 * 1024
TIMEOUT_S: Final = 5.0
OFFLINE_PARTITIONS_MAX: Final = 100  # named by /healthz
SETTING: Final = "levada.metrics.listener"


class MetricsServer:
    """A minimal HTTP server: two pages, one request per connection."""

    def __init__(self, broker: Broker, listeners: Sequence[Listener], busy_poller: BusyPoller) -> None:
        self._broker = broker
        idle_ratio = IdleRatio(broker.clock.monotonic, lambda: time.thread_time() - busy_poller.spun_s)
        self._collector = Collector(broker, listeners, idle_ratio)
        self._server: asyncio.Server | None = None
        self._requests: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # being served
        self.address = ""
        self.port_in_use: int | None = None  # the default port, if another process has it

    @classmethod
    async def start(
        cls, broker: Broker, listeners: Sequence[Listener], busy_poller: BusyPoller
    ) -> "MetricsServer | None":
        """Listen on levada.metrics.listener, and have requests timed; None if that is empty."""
        if not broker.config.listeners.levada_metrics_listener:
            return None
        broker.flush_queue.after_flush(broker.request_metrics.flushed)
        pages = cls(broker, listeners, busy_poller)
        host, port = address(broker.config.listeners.levada_metrics_listener, SETTING)
        try:
            pages._server = await pages._listen(host, port)
        except OSError as error:
            # A second broker on this host takes a free port, unless the port is configured.
            if error.errno != errno.EADDRINUSE or SETTING in broker.config.static:
                raise
            pages._server = await pages._listen(host, 0)
            pages.port_in_use = port
        taken = pages._server.sockets[0].getsockname()
        pages.address = f"{taken[0]}:{taken[1]}"
        return pages

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)

    async def stop(self) -> None:
        """Close the listener and abort the requests being served."""
        assert self._server is not None
        self._server.close()
        for writer in self._requests.values():
            writer.transport.abort()
        await asyncio.gather(*self._requests, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._server is not None and not self._server.is_serving():  # accepted just before the stop
            writer.transport.abort()
            return
        self._requests[task] = writer
        try:
            async with asyncio.timeout(TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
                response = await self._respond(request.split(b" ", 2)[1].partition(b"?")[0])
                if not writer.is_closing():
                    writer.write(response)
                    await writer.drain()
        except (TimeoutError, OSError, IndexError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # not HTTP, or the client has closed
        finally:
            del self._requests[task]
            writer.close()

    async def _respond(self, path: bytes) -> bytes:
        if path == b"/metrics":
            return _response("200 OK", "text/plain; version=0.0.4; charset=utf-8", await self._exposition())
        if path == b"/healthz":
            status = "200 OK" if self._broker.log_dirs.is_usable else "503 Service Unavailable"
            return _response(status, "application/json", json.dumps(self._health()).encode())
        return _response("404 Not Found", "text/plain", b"there are /metrics and /healthz\n")

    def _health(self) -> dict[str, object]:
        """What is offline, damaged or not open yet. Load balancers keep the broker: it serves its other partitions."""
        log_dirs = self._broker.log_dirs
        partitions = sorted(map(str, log_dirs.offline_partitions()))
        remaining = len(log_dirs.logs_to_recover())
        checkpoints = [path for paths in log_dirs.damaged_checkpoints().values() for path in paths]
        is_degraded = bool(log_dirs.offline or partitions or checkpoints)
        return {
            "status": "degraded" if is_degraded else "recovering" if remaining else "ok",
            "offline_log_dirs": log_dirs.offline,
            "offline_partitions_count": len(partitions),
            "offline_partitions": partitions[:OFFLINE_PARTITIONS_MAX],
            "damaged_checkpoints": checkpoints,
            "remaining_logs_to_recover": remaining,
        }

    async def _exposition(self) -> bytes:
        """All metrics as text; the loop serves clients between families."""
        text = []
        for family in self._collector.collect():
            text.append(family.text())
            await asyncio.sleep(0)
        return "".join(text).encode()


def _response(status: str, content_type: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return (head + "Connection: close\r\n\r\n").encode() + body
