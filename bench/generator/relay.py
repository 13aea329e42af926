"""The lower bound of end-to-end latency: a process that forwards messages from one connection to another, no more.

It has the broker's event loop, and the paced sender and the receiver of `latency`. Its time is that of the loopback and
of waking up two processes; what a broker takes beyond it is the broker's own.
"""

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from typing import cast

from bench.generator.latency import EndToEnd, Latency, Stream
from bench.generator.outcome import ROOT, Outcome, run_module
from levada.loop import new_event_loop

READY = b"\n"


class Forwarding(asyncio.Protocol):
    """Forwards what the first connection sends to the second. A byte tells the first that the second is there."""

    def __init__(self, transports: list[asyncio.Transport]) -> None:
        self.transports = transports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transports.append(cast(asyncio.Transport, transport))
        if len(self.transports) == 2:
            self.transports[0].write(READY)

    def data_received(self, data: bytes) -> None:
        self.transports[1].write(data)


async def serve() -> None:
    """Print the port; serve until the process is ended."""
    transports: list[asyncio.Transport] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Forwarding(transports), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Relayed(EndToEnd):
    """The paced sender and the receiver, with plain bytes."""

    def __init__(self, settings: Latency) -> None:
        self.settings = settings
        self.batch_bytes = settings.value_bytes
        self.produce = bytes(settings.value_bytes)
        self.producer, self.consumer = Stream(settings.port), Stream(settings.port)
        self.producer.sock.recv(len(READY))
        self.sent = []
        self.latencies = []
        self.acknowledged = 0
        self._received = 0

    def send_fetch(self) -> None:
        """The relay forwards without being asked."""

    def take(self) -> None:
        self._received += len(self.consumer.sock.recv(1 << 20))
        now = time.perf_counter()
        arrived = self._received // self.batch_bytes
        self.latencies += [now - when for when in self.sent[len(self.latencies) : arrived]]

    def acknowledge(self) -> None:
        """Nothing is acknowledged: a message that has arrived is done."""
        self.acknowledged = len(self.latencies)


def run(settings: Latency) -> Outcome:
    """Start the relay and measure, each in a process of its own."""
    command = [sys.executable, "-m", "bench.generator.relay", "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as relay:
        try:
            assert relay.stdout is not None
            port = int(relay.stdout.readline())
            return run_module("bench.generator.relay", asdict(replace(settings, port=port, pid=relay.pid)))
        finally:
            relay.terminate()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve())
    else:
        print(Relayed(Latency(**json.loads(sys.argv[1]))).outcome().to_json())
