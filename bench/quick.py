"""`make bench-quick`: what the hot path costs, against the last recorded state, in under two minutes and without a JVM.

The figure is the broker's CPU time a request or megabyte, which neighbours disturb least, divided by the CPU time of
a calibration loop of the same seconds, so that two machines compare. A row that looks worse is measured again before
it is believed. `--record` makes this run the state to compare with; `--against REV` compares with a commit instead.
"""

import argparse
import datetime
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from struct import Struct
from typing import Any

from crc32c import crc32c

from bench import against, machine, overhead, results, start_times
from bench.brokers import Broker, Levada
from bench.generator import loads
from bench.report import number, overhead_table, table
from bench.rows import Row, bulk, small

RECORD = results.DIRECTORY / "quick.json"
ROUNDS, ROUNDS_AGAIN = 5, 5
TOLERANCE = 0.15
CALIBRATION_LOOPS = 10_000
SECONDS = 0.8
ROUND_BYTES = 128 * loads.MIB

ROWS = (
    small("one-1", "one 100 B message a request, 1 connection", loads.one_message(1, seconds=SECONDS)),
    small("one-8", "one 100 B message a request, 8 connections", loads.one_message(8, seconds=SECONDS)),
    small("idempotent-8", "the same, idempotent", loads.one_message(8, idempotent=True, seconds=SECONDS)),
    bulk("16K-8", "16 KiB batches, 8 connections", loads.batches(8, 1024, 16 << 10, round_bytes=ROUND_BYTES)),
    bulk("64K-8", "64 KiB batches, 8 connections", loads.batches(8, 1024, 64 << 10, round_bytes=ROUND_BYTES)),
    bulk("fetch-64K", "fetch 64 KiB, 1 connection",
         loads.fetch(1, 64 << 10, stored_bytes=ROUND_BYTES, seconds=SECONDS)),
    bulk("seek-64K", "fetch 64 KiB from random offsets, 8 connections",
         loads.fetch(8, 64 << 10, seeking=True, stored_bytes=ROUND_BYTES, seconds=SECONDS)),
    bulk("fetch-1M", "fetch 1 MiB, 1 connection",
         loads.fetch(1, 1 << 20, stored_bytes=ROUND_BYTES, seconds=SECONDS)),
    small("latency", "1,000 messages/s, each consumed at once", loads.end_to_end(messages=1_000)),
)  # fmt: skip
COORDINATOR_ROWS = (
    small("commit-8", "commit offsets one by one, 8 connections", loads.commits(8, seconds=SECONDS)),
    small("rebalance-50", "a group of 50 members rebalances", loads.rebalances(50, times=40)),
)


class _Request:
    """What the calibration makes a request of."""

    __slots__ = ("key", "size", "view")

    def __init__(self, key: int, size: int, view: memoryview) -> None:
        self.key, self.size, self.view = key, size, view

    def weight(self) -> int:
        return self.size + len(self.view)


def calibrate() -> float:
    """CPU microseconds of one iteration of a loop that does what a broker does: Python, checksums, copies, sockets."""
    header, source, target = Struct(">ihq"), bytearray(16 << 10), bytearray(16 << 10)
    known = {index: index for index in range(64)}
    left, right = socket.socketpair()
    message, seen, view = bytes(200), [], memoryview(source)
    started = time.process_time()
    for iteration in range(CALIBRATION_LOOPS):
        for _ in range(4):
            size, key, _offset = header.unpack_from(source, iteration & 63)
            request = _Request(known[iteration & 63] + key, size, view[16:80])
            seen.append(request.weight())
        if iteration & 7 == 0:
            crc32c(view)
            target[:] = view
            left.send(message)
            right.recv(4096)
            seen.clear()
    spent = time.process_time() - started
    left.close()
    right.close()
    return spent * 1e6 / CALIBRATION_LOOPS


def measure(row: Row, broker: Broker) -> tuple[float, float]:
    """CPU in microseconds, and the same in calibration units."""
    before = calibrate()
    cost = results.figures(row.run(broker))[row.cost]
    return cost, cost / ((before + calibrate()) / 2)


class Measured:
    """The rounds of a row so far."""

    __slots__ = ("rounds", "row")

    def __init__(self, row: Row) -> None:
        self.row = row
        self.rounds: list[tuple[float, float]] = []

    def add(self, broker: Broker) -> None:
        self.rounds.append(measure(self.row, broker))

    @property
    def cost(self) -> float:
        return median(cost for cost, _ in self.rounds)

    @property
    def units(self) -> float:
        return median(units for _, units in self.rounds)

    def change(self, record: dict[str, Any] | None) -> float | None:
        """Relative to the record: 0.1 is a tenth worse."""
        before = (record or {}).get("rows", {}).get(self.row.key)
        return None if before is None else self.units / before["units"] - 1


def measure_all(broker: Broker, record: dict[str, Any] | None) -> list[Measured]:
    """All rows in turns; then again those that look worse than they were."""
    every = [Measured(row) for row in ROWS]
    for measured in every:
        measured.row.run(broker)  # the first is not counted
    for number_of_round in range(ROUNDS):
        print(f"round {number_of_round + 1} of {ROUNDS}", file=sys.stderr, flush=True)
        for measured in every:
            measured.add(broker)
    for measured in every:
        if (measured.change(record) or 0.0) > TOLERANCE:
            print(f"{measured.row.title} looks worse: measured again", file=sys.stderr, flush=True)
            measured.rounds.clear()
            for _ in range(ROUNDS_AGAIN):
                measured.add(broker)
    return every


def show(every: Sequence[Measured], record: dict[str, Any] | None) -> str:
    """A table for people."""
    lines = []
    for measured in every:
        change = measured.change(record)
        unit = "us/request" if measured.row.cost == "cpu_us_per_request" else "us/MB"
        change_text = "new" if change is None else f"{change:+.0%}{'  WORSE' if change > TOLERANCE else ''}"
        lines.append((measured.row.title, f"{number(measured.cost)} {unit}", f"{measured.units:.3g}", change_text))
    head = (
        "hot path of Levada",
        "CPU",
        "calibrated",
        f"against {record['revision']}" if record else "no record",
    )
    return table(head, lines)


def to_record(every: Sequence[Measured], memory: machine.Memory) -> dict[str, Any]:
    """What the next run compares with."""
    return {
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "revision": results.revision(),
        "machine": machine.describe(),
        "rss_anon_mb": memory.anonymous,
        "rows": {each.row.key: {"us": each.cost, "units": each.units} for each in every},
    }


def compare(options: argparse.Namespace) -> int:
    """1 when a row got worse by more than the tolerance."""
    keys = set(filter(None, options.rows.split(",")))
    known = {row.key: row for row in (*ROWS, *COORDINATOR_ROWS)}
    if unknown := keys - known.keys():
        print(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return 2
    rows = [row for key, row in known.items() if not keys or key in keys]
    with tempfile.TemporaryDirectory(prefix="levada-bench-", dir=options.data) as root:
        costs = against.measure(rows, Path(root), options.against, options.rounds)
    print(against.show(rows, costs, options.against))
    return 1 if any(median(now / before for before, now in pairs) > 1 + TOLERANCE for pairs in costs.values()) else 0


def main(arguments: Sequence[str]) -> int:
    """1 when a row got worse by more than the tolerance."""
    parser = argparse.ArgumentParser(prog="python -m bench quick", description=__doc__)
    parser.add_argument("--record", action="store_true", help="make this run the state to compare with")
    parser.add_argument("--data", type=Path, default=Path("/var/tmp"), help="where the broker keeps its data")
    parser.add_argument("--against", metavar="REV", help="measure this tree and a commit in turns; records nothing")
    parser.add_argument("--overhead", action="store_true", help="what metrics and logs cost; records nothing")
    parser.add_argument("--rounds", type=int, default=20, help="of each row, with --against and --overhead")
    parser.add_argument("--rows", default="", help="only these, by key, with commas, with --against")
    options = parser.parse_args(arguments)
    if options.against:
        return compare(options)
    if options.overhead:
        with tempfile.TemporaryDirectory(prefix="levada-bench-", dir=options.data) as root:
            print(overhead_table({"overhead": overhead.measure(Path(root), options.rounds)}))
        return 0
    record = results.load_results(RECORD)
    with tempfile.TemporaryDirectory(prefix="levada-bench-", dir=options.data) as root:
        broker = Levada(Path(root))
        try:
            broker.prepare()
            seconds = broker.start()
            every = measure_all(broker, record)
            memory = machine.memory(broker.pid)
            started = start_times.measure(broker)
        finally:
            broker.remove()
    print(show(every, record))
    print(f"\nstart {seconds:.2f} s, {memory.anonymous:.0f} MB anonymous, calibration {calibrate():.2f} us per loop")
    print(f"levada topic list {started['topic_list_s']:.2f} s, pytest fixture {started['fixture_s']:.2f} s")
    if options.record:
        results.save_results(RECORD, to_record(every, memory))
        print(f"recorded in {RECORD}")
        return 0
    return 1 if any((each.change(record) or 0.0) > TOLERANCE for each in every) else 0
