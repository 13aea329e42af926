"""The rows on Spark and their goals: ratios of Levada's connector to the stock one on Kafka."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.rows import Goal, Row
from bench.spark import jobs as spark_jobs
from bench.spark.jobs import Job
from bench.spark.sides import Shape
from levada.model import Codec

SHAPES = {
    "100": Shape(100, Codec.NONE),
    "100-lz4": Shape(100, Codec.LZ4),
    "1k": Shape(1_000, Codec.NONE),
    "1k-lz4": Shape(1_000, Codec.LZ4),
}
LARGE = Shape(1_000_000, Codec.NONE)
WIDE = Shape(100, Codec.NONE, partitions=200)
SKEWED = Shape(100, Codec.NONE, partitions=8, is_skewed=True)
GROWTH = (1, 4, 16)
GROWTH_ROWS = 250_000  # at the first size
LATENCY_SECONDS = 5.0
ROUNDS = 3
READ_ROWS_PER_S = 1_000_000  # promised for values of 100 bytes, whatever the stock connector does


@dataclass(frozen=True, slots=True)
class Kind:
    """A job on all shapes; `rows` of 100 bytes or of 1,000, so many that a side has some seconds of work.

    What a job costs before its first row, a second or two, is seen in the rows on growth.
    """

    key: str
    title: str
    job: Callable[[Shape, int], Job]
    rows: tuple[int, int]
    goals: tuple[Goal, ...] = ()


RATE = "requests_per_s"
KINDS = (
    Kind("read", "read to noop", spark_jobs.read_to_noop, (4_000_000, 1_000_000), (Goal(RATE, at_least=2.0),)),
    Kind("parquet", "read to Parquet", spark_jobs.read_to_parquet, (1_000_000, 250_000)),
    Kind("write", "write", spark_jobs.write, (1_600_000, 400_000), (Goal(RATE, at_least=1.5),)),
    Kind("copy", "topic to topic", spark_jobs.copy, (2_500_000, 600_000), (Goal(RATE, at_least=1.0),)),
)
# Key, title, job, shape, rows.
OTHER_SHAPES = (
    ("read-1m", "read to noop, 1 MB", spark_jobs.read_to_noop, LARGE, 1_000),
    ("write-1m", "write, 1 MB", spark_jobs.write, LARGE, 400),
    ("copy-1m", "topic to topic, 1 MB", spark_jobs.copy, LARGE, 400),
    ("read-200p", "read to noop, 100 B, 200 partitions", spark_jobs.read_to_noop, WIDE, 2_000_000),
    ("copy-200p", "topic to topic, 100 B, 200 partitions", spark_jobs.copy, WIDE, 1_000_000),
    ("read-skewed", "read to noop, 100 B, 90% in one of 8 partitions", spark_jobs.read_to_noop, SKEWED, 2_000_000),
    ("copy-skewed", "topic to topic, 100 B, 90% in one of 8 partitions", spark_jobs.copy, SKEWED, 1_000_000),
)
GROWING = {kind.key: kind for kind in KINDS if kind.key in ("read", "copy")}


def rows(part: float) -> Iterator[Row]:
    """All of them, with this part of their data."""
    for kind in KINDS:
        for key, shape in SHAPES.items():
            count = int(kind.rows[shape.value_bytes > 100] * part)
            title = f"{kind.title}, {shape.value_bytes:,} B" + (", lz4" if shape.codec else "")
            yield _row(f"{kind.key}-{key}", title, kind.job(shape, count), kind.goals)
    for key, title, job_on, shape, count in OTHER_SHAPES:
        yield _row(key, title, job_on(shape, max(1, int(count * part))))
    yield Row(
        "latency",
        f"micro-batches at {spark_jobs.EVENTS_PER_SECOND} events/s, end to end",
        spark_jobs.latency(LATENCY_SECONDS),
        "p50_ms",
        "cpu_us_per_request",
        (Goal("p50_ms", at_most=1.0),),
        rounds=ROUNDS,
    )
    for kind in GROWING.values():
        for times in GROWTH:
            count = int(GROWTH_ROWS * times * part)
            job = kind.job(SHAPES["100"], count)
            yield _row(growth_key(kind.key, times), f"{kind.title}, 100 B, {count:,} rows", job)


def _row(key: str, title: str, job: Job, goals: tuple[Goal, ...] = ()) -> Row:
    return Row(key, title, job, RATE, "cpu_us_per_request", goals, rounds=ROUNDS)


def growth_key(kind: str, times: int) -> str:
    return f"{kind}-{times}x"


def is_growth(key: str) -> bool:
    """Whether a row is about our own cost at several sizes, and compared with no other."""
    return key in {growth_key(kind, times) for kind in GROWING for times in GROWTH}


def stored_rows(part: float) -> dict[Shape, int]:
    """How many records must be stored of each shape."""
    most = {shape: max(kind.rows[shape.value_bytes > 100] for kind in KINDS) for shape in SHAPES.values()}
    most[SHAPES["100"]] = max(most[SHAPES["100"]], GROWTH_ROWS * GROWTH[-1])
    for _, _, _, shape, count in OTHER_SHAPES:
        most[shape] = max(most.get(shape, 0), count)
    return {shape: int(count * part) for shape, count in most.items()}
