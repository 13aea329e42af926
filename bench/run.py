"""`make bench`: Levada and Apache Kafka in one run, the same load on both, round about.

Only the ratios of one run mean something: the brokers take turns within each row, and the other one is
stopped meanwhile. Kafka first gets half a minute of load for its JIT compiler. A row is the median of its rounds.
A row that fails is reported and does not stop the others. Without Java or Maven Levada is measured alone.
"""

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

from tests.support.downloads import Unavailable
from tests.support.kafka_jars import KAFKA_VERSION

from bench import large_topics, machine, overhead, report, results, start_times
from bench.brokers import Broker, Kafka, Levada, alone
from bench.generator import loads, relay
from bench.generator.consumer_starts import first_consumer
from bench.generator.latency import Latency
from bench.generator.wire import BrokerError
from bench.rows import ROWS, Row

WARM_UP_S = {"levada": 4.0, "kafka": 30.0}
STARTS = {"levada": 5, "kafka": 3}
IDLE_S = 5.0  # before idle memory is read


def progress(text: str) -> None:
    """What happens now, with the minutes since the start."""
    print(f"[{(time.perf_counter() - BEGAN) / 60:4.1f} min] {text}", file=sys.stderr, flush=True)


BEGAN = time.perf_counter()


def start(broker: Broker, root: Path, starts: int) -> dict[str, float]:
    """Start several of its kind on empty data directories; only the last keeps running."""
    times, first_records = [], []
    for number in range(starts):
        last = number == starts - 1
        one = broker if last else type(broker)(root)
        try:
            one.prepare()
            times.append(one.start())
            if not last or starts == 1:  # the one that goes on is to be idle when its memory is read
                first_records.append(first_consumer(one.port))
        finally:
            if not last:
                one.remove()
    found = {"start_s": median(times), "first_record_s": median(first_records)}
    progress(
        f"{broker.name} answers after {found['start_s']:.2f} s, its first consumer has a record after another "
        f"{found['first_record_s']:.2f} s"
    )
    return found


def read_memory(brokers: Sequence[Broker], process: dict[str, dict[str, float]], state: str) -> None:
    """Note what every broker holds now."""
    for broker in brokers:
        held = machine.memory(broker.pid)
        process[broker.name] |= {f"rss_{state}_mb": held.rss, f"rss_anon_{state}_mb": held.anonymous}
        progress(f"{broker.name} holds {held.anonymous:.0f} MB anonymous, {held.rss:.0f} MB resident, {state}")


def warm_up(broker: Broker, seconds: float) -> None:
    """The loads of the rows in turns, until the time is over."""
    kinds = (
        loads.one_message(8, seconds=2),
        loads.batches(8, loads.KIB, 16 * loads.KIB, round_bytes=128 * loads.MIB),
        loads.batches(8, loads.KIB, 64 * loads.KIB, round_bytes=128 * loads.MIB),
        loads.fetch(8, 64 * loads.KIB, seconds=1),
        loads.fetch(1, loads.MIB, seconds=1),
        loads.one_message(8, idempotent=True, seconds=1),
        loads.commits(8, depth=5, seconds=0.5),
        loads.transactional(10, seconds=0.5),
        loads.rebalances(10, times=4),
    )
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for kind in kinds:
            try:
                kind(broker)
            except BrokerError as problem:
                raise BrokerError(f"{broker.name}: {problem}\n{broker.log_tail()}") from problem


class Side(Protocol):
    """What is compared with others: a broker, or a connector with one."""

    @property
    def name(self) -> str: ...

    def log_tail(self) -> str: ...


AnySide = TypeVar("AnySide", bound=Side)


def measure_row(
    row: Row,
    sides: Sequence[AnySide],
    rounds: int,
    around: Callable[[AnySide], AbstractContextManager[object]] = nullcontext,
) -> dict[str, Any]:
    """Rounds of the sides in turns, the first of a round changing; `around` is around each."""
    taken: dict[str, list[results.Figures]] = {side.name: [] for side in sides}
    errors: dict[str, str] = {}
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            if side.name in errors:
                continue
            try:
                with around(side):
                    taken[side.name].append(results.figures(row.run(side)))
            except (BrokerError, OSError, subprocess.SubprocessError) as problem:
                errors[side.name] = str(problem)
                progress(f"{row.key}: {side.name} failed: {problem}\n{side.log_tail()}")
    measured: dict[str, Any] = {"title": row.title, "metric": row.metric, "cost": row.cost, "errors": errors}
    if row.also:
        measured["also"] = row.also
    for name, figures in taken.items():
        if figures and name not in errors:
            middle = results.medians(figures)
            every = {metric: [figure[metric] for figure in figures] for metric in (row.metric, row.also) if metric}
            measured[name] = {**middle, "bottleneck": results.bottleneck(middle), "rounds": every}
    return measured


def measure(rows: Sequence[Row], brokers: Sequence[Broker], root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Everything of one run."""
    process = {broker.name: start(broker, root, 1 if options.rows else STARTS[broker.name]) for broker in brokers}
    time.sleep(IDLE_S)
    read_memory(brokers, process, "idle")
    for broker in brokers:
        process[broker.name] |= start_times.measure(broker)
        progress(f"{broker.name} lists its topics in {process[broker.name]['topic_list_s']:.2f} s")
    for broker in brokers:
        progress(f"warming {broker.name} up")
        warm_up(broker, WARM_UP_S[broker.name])
    measured: dict[str, Any] = {}
    for row in rows:
        rounds = options.rounds or row.rounds
        measured[row.key] = measure_row(row, brokers, rounds, partial(alone, brokers))
        progress(f"{row.title}: {report.summary(measured[row.key])}")
    read_memory(brokers, process, "loaded")
    return {"process": process, "rows": measured}


def chosen_brokers(only: str | None, root: Path) -> list[Broker]:
    """Both, or the one that was asked for; Levada alone where there is no Java."""
    kinds: list[type[Broker]] = [kind for kind in (Levada, Kafka) if only in (None, kind.name)]
    brokers: list[Broker] = []
    for kind in kinds:
        try:
            brokers.append(kind.available(root))
        except Unavailable as problem:
            progress(f"without {kind.name}: {problem}")
    return brokers


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; `FULL=1` is the one that `make` passes."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--full", action="store_true", default=os.environ.get("FULL") == "1", help="every row")
    parser.add_argument("--rows", default="", help="only these, by key, with commas; nothing is recorded")
    parser.add_argument("--rounds", type=int, default=0, help="of each row and broker; nothing is recorded")
    parser.add_argument("--only", choices=("levada", "kafka"), help="one broker alone; nothing is recorded")
    parser.add_argument("--data", type=Path, default=Path("/var/tmp"), help="where both brokers keep their data")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Measure, record, report; 1 when a row failed."""
    options = parse(arguments)
    wanted = [key for key in options.rows.split(",") if key]
    unknown = set(wanted) - {row.key for row in ROWS}
    if unknown:
        print(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(row.key for row in ROWS)}")
        return 2
    rows = [row for row in ROWS if (row.key in wanted if wanted else row.default or options.full)]
    with tempfile.TemporaryDirectory(prefix="levada-bench-", dir=options.data) as root:
        brokers = chosen_brokers(options.only, Path(root))
        try:
            measured = measure(rows, brokers, Path(root), options)
        finally:
            for broker in brokers:
                broker.remove()
        if any(row.metric == "p99_ms" for row in rows):
            progress("the lower bound of end-to-end latency")
            measured["relay"] = results.figures(relay.run(Latency()))
        if not wanted and options.only != "kafka":
            progress("what metrics and logs cost")
            measured["overhead"] = overhead.measure(Path(root))
        if not wanted:
            progress("how long clients wait while thousands of partitions are created and deleted")
            kinds = [type(broker) for broker in brokers if options.full or isinstance(broker, Levada)]  # Kafka is slow
            measured["large_topics"] = large_topics.measure(kinds, Path(root))
    found = {
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "minutes": (time.perf_counter() - BEGAN) / 60,
        "machine": machine.describe(),
        "kafka": KAFKA_VERSION,
        "revision": results.revision(),
        **measured,
    }
    previous = results.load_results(results.LATEST)
    print(report.markdown(found, previous))
    if len(brokers) == 2 and not wanted and not options.rounds:
        results.save_results(results.LATEST, found)
        report.publish(results.load_results(results.LATEST) or found, previous)  # as rounded
    return 1 if any(row["errors"] for row in measured["rows"].values()) else 0
