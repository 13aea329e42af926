"""`make bench-spark`: Levada's connector on Levada, the stock connector on Levada and on Apache Kafka, in one run.

Same machine, same Spark session, same stored bytes; the sides take turns within each row, and a row is the median of
its rounds. All jobs run once with a part of their data before anything is measured, for the JIT compilers of Spark
and of Kafka and for the Python workers. A row that fails is reported and does not stop the others.
"""

import argparse
import datetime
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.support.jars import CONNECTOR_VERSION, stock_connector
from tests.support.downloads import Unavailable
from tests.support.kafka_jars import KAFKA_VERSION

from bench import machine, results
from bench.brokers import Broker, Levada
from bench.rows import Row
from bench.run import BEGAN, chosen_brokers, measure_row, progress
from bench.spark import report as spark_report
from bench.spark.rows import is_growth, rows, stored_rows
from bench.spark.sides import Side, batches, fill
from levada.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULTS = results.DIRECTORY / "spark.json"
CORES = 2
QUICK = 0.2  # of the data
WARM_UP_ROUNDS = 2
WARM_UP = 0.05  # of the data
SETTINGS = {"spark.driver.memory": "2g", "spark.log.level": "FATAL"}  # failed queries are reported as rows


def jars() -> dict[str, str]:
    """The setting for the stock connector; nothing where it cannot be had."""
    try:
        return {"spark.jars": ",".join(map(str, stock_connector()))}
    except Unavailable as problem:
        progress(f"without the stock connector: {problem}")
        return {}


def chosen_sides(brokers: Sequence[Broker], spark: "SparkSession", stock: bool, only: str | None) -> list[Side]:
    """Those that can be measured here; each broker has its own count of stored records."""
    sides = []
    for broker in brokers:
        stored: dict[str, list[int]] = {}
        if isinstance(broker, Levada):
            sides.append(Side("levada", "Levada's connector on Levada", "levada", broker, spark, stored))
        if stock:
            name = "kafka" if broker.name == "kafka" else "stock"
            title = f"the stock connector on {broker.name.capitalize()}"
            sides.append(Side(name, title, "kafka", broker, spark, stored))
    return [side for side in sides if only in (None, side.name)]


def fill_topics(sides: Sequence[Side], part: float) -> None:
    """What the rows read, in every broker."""
    brokers = {side.broker.name: side for side in sides}
    for shape, records in stored_rows(part).items():
        parts = batches(shape)
        for side in brokers.values():
            side.stored[shape.topic] = fill(side.broker, shape, records, parts)
        progress(f"{shape.topic} has {records:,} records in {len(parts[0][0]):,} B batches")


def warm_up(chosen: Sequence[Row], sides: Sequence[Side]) -> None:
    """Every job that will be measured, smaller; the first run of a side is counted."""
    for shape in stored_rows(1):
        for side in sides:
            wanted = min(10_000, sum(side.stored[shape.topic]))
            found = side.read(shape.topic, wanted).count()
            if found != wanted:
                progress(f"{side.title} reads {found} rows of {wanted} in {shape.topic}")
    keys = {row.key for row in chosen}
    for number in range(WARM_UP_ROUNDS):
        for row in rows(WARM_UP):
            if row.key in keys and not is_growth(row.key):
                measure_row(row, sides, 1)
        progress(f"warmed up, {number + 1} of {WARM_UP_ROUNDS}")


def measure(chosen: Sequence[Row], sides: Sequence[Side], rounds: int) -> dict[str, Any]:
    measured: dict[str, Any] = {}
    for row in chosen:
        compared = [side for side in sides if side.name == "levada" or not is_growth(row.key)]
        measured[row.key] = measure_row(row, compared, rounds or row.rounds)
        progress(f"{row.title}: {spark_report.summary(measured[row.key])}")
    return measured


@contextmanager
def running(only: str | None, data: Path) -> Iterator[list[Side]]:
    """The sides, their brokers started and Spark with them."""
    with tempfile.TemporaryDirectory(prefix="levada-bench-", dir=data) as root:
        brokers = chosen_brokers({"stock": "levada"}.get(only or "", only), Path(root))
        spark = None
        try:
            for broker in brokers:
                broker.prepare()
                progress(f"{broker.name} answers after {broker.start():.2f} s")
            stock = jars()
            settings = {**stock, **SETTINGS, "spark.local.dir": root}
            spark = session("levada bench", master=f"local[{CORES}]", **settings)
            yield chosen_sides(brokers, spark, bool(stock), only)
        finally:
            if spark is not None:
                spark.stop()
            for broker in brokers:
                broker.remove()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench spark", description=__doc__)
    parser.add_argument(
        "--rows", default="", help="only these, by the start of their keys, with commas; nothing is recorded"
    )
    parser.add_argument("--rounds", type=int, default=0, help="of each row and side; nothing is recorded")
    parser.add_argument("--only", choices=("levada", "stock", "kafka"), help="one side; nothing is recorded")
    parser.add_argument("--quick", action="store_true", help="one round with a fifth of the data; nothing is recorded")
    parser.add_argument("--data", type=Path, default=Path("/var/tmp"), help="where both brokers keep their data")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Measure, record, report; 1 when a row failed."""
    options = parse(arguments)
    part = QUICK if options.quick else 1.0
    wanted = tuple(key for key in options.rows.split(",") if key)
    chosen = [row for row in rows(part) if not wanted or row.key.startswith(wanted)]
    if not chosen:
        print(f"no such row; there are {', '.join(row.key for row in rows(part))}")
        return 2
    with running(options.only, options.data) as sides:
        fill_topics(sides, part)
        warm_up(chosen, sides)
        measured = measure(chosen, sides, 1 if options.quick else options.rounds)
        found = {
            "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "minutes": (time.perf_counter() - BEGAN) / 60,
            "machine": machine.describe(),
            "kafka": KAFKA_VERSION,
            "connector": CONNECTOR_VERSION,
            "spark": sides[0].spark.version,
            "revision": results.revision(),
            "rows": measured,
        }
    print(spark_report.markdown(found))
    if len(sides) == 3 and not (wanted or options.rounds or options.quick):
        results.save_results(RESULTS, found)
        spark_report.publish(found)
    return 1 if any(row["errors"] for row in measured.values()) else 0
