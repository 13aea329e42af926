"""The outcome of a load: requests, bytes, latencies and CPU, in one shape for every kind of load.

A load runs as `python -m bench.generator.<module> '<its settings as JSON>'`, in an interpreter
of its own, and prints its Outcome. The broker's CPU is read just before the first request and just after the
last response; the generator's own CPU is part of the outcome, so that a reader can see when it was the limit.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import machine
from bench.generator.wire import BrokerError

ROOT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Outcome:
    """Of one load on one broker."""

    seconds: float
    requests: int  # or messages, where a client decides how many go into a request
    bytes: int
    latency: dict[str, float]
    broker: machine.Usage
    generator: machine.Usage
    idle: float  # share of all cores
    steal: float
    tail_bytes: int = 0

    @classmethod
    def from_json(cls, text: str) -> "Outcome":
        fields = json.loads(text)
        for spender in ("broker", "generator"):
            fields[spender] = machine.Usage(*fields[spender])
        return cls(**fields)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Meter:
    """Reads the clocks of broker, generator and machine around a load."""

    __slots__ = ("broker", "generator", "host", "pid")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.broker, self.generator, self.host = self.read()

    def read(self) -> tuple[machine.Usage, machine.Usage, machine.HostTimes]:
        times = os.times()
        own = machine.Usage(times.user + times.children_user, times.system + times.children_system)
        return machine.usage(self.pid), own, machine.host_times()

    def outcome(self, seconds: float, requests: int, sent_bytes: int, latencies: Iterable[float]) -> Outcome:
        """The load is over now: what was spent since this meter was made."""
        broker, generator, host = self.read()
        spent = host.since(self.host)
        return Outcome(
            seconds=seconds,
            requests=requests,
            bytes=sent_bytes,
            latency=machine.latencies_ms(latencies),
            broker=broker.since(self.broker),
            generator=generator.since(self.generator),
            idle=spent.idle / (spent.total or 1.0),
            steal=spent.steal / (spent.total or 1.0),
        )


def run_module(module: str, settings: dict[str, Any]) -> Outcome:
    """Run a load in a process of its own."""
    command = [sys.executable, "-m", module, json.dumps(settings)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise BrokerError(f"{module} failed: {' | '.join(done.stderr.strip().splitlines()[-3:])}")
    return Outcome.from_json(done.stdout)
