"""The rows of the benchmark, and their goals as ratios to Kafka in the same run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.generator import loads
from bench.generator.loads import KIB, MIB, LoadOnBroker
from bench.generator.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on the ratio Levada : Kafka of one metric."""

    metric: str
    at_least: float = 0.0
    at_most: float = 0.0

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.at_least if self.at_least else ratio <= self.at_most

    def __str__(self) -> str:
        bound = f"≥ {self.at_least:g}" if self.at_least else f"≤ {self.at_most:.3g}"
        return f"{LABELS[self.metric]} {bound} x"


@dataclass(frozen=True, slots=True)
class Row:
    """`metric` is what the row is about; `cost` is the CPU figure that goes with it.

    `run` puts a load on what is measured: a broker, or a connector with one.
    """

    key: str
    title: str
    run: Callable[[Any], Outcome]
    metric: str = "mb_per_s"
    cost: str = "cpu_us_per_mb"
    goals: tuple[Goal, ...] = ()
    default: bool = True  # only with FULL=1 otherwise
    rounds: int = 5
    also: str = ""  # a second figure that is shown beside the metric


LABELS = {
    "requests_per_s": "rate",
    "mb_per_s": "rate",
    "cpu_us_per_request": "CPU",
    "cpu_us_per_mb": "CPU",
    "average_ms": "average",
    "p50_ms": "p50",
    "p99_ms": "p99",
    "start_s": "start",
    "first_record_s": "start",
    "rss_anon_idle_mb": "anonymous memory, idle",
    "rss_anon_loaded_mb": "anonymous memory, loaded",
}
BATCH_GOALS = (Goal("mb_per_s", at_least=1.5), Goal("cpu_us_per_mb", at_most=0.6))
LATENCY_GOALS = (Goal("p50_ms", at_most=0.7), Goal("p99_ms", at_most=0.3))
COORDINATOR_GOALS = (Goal("requests_per_s", at_least=1.5), Goal("p99_ms", at_most=0.5))
PROCESS_GOALS = (
    Goal("start_s", at_most=1 / 8),
    Goal("first_record_s", at_most=0.5),
    Goal("rss_anon_idle_mb", at_most=1 / 8),
    Goal("rss_anon_loaded_mb", at_most=1 / 5),
)


def small(key: str, title: str, run: LoadOnBroker, *goals: Goal, default: bool = True) -> Row:
    """A row that counts requests."""
    return Row(key, title, run, "requests_per_s", "cpu_us_per_request", goals, default)


def bulk(key: str, title: str, run: LoadOnBroker, *goals: Goal, default: bool = True) -> Row:
    """A row that counts megabytes."""
    return Row(key, title, run, "mb_per_s", "cpu_us_per_mb", goals, default)


def timed(key: str, title: str, run: LoadOnBroker, *goals: Goal, default: bool = True, rounds: int = 3) -> Row:
    """A row about latency."""
    return Row(key, title, run, "p99_ms", "cpu_us_per_request", goals, default, rounds)


def coordinated(key: str, title: str, run: LoadOnBroker, *, default: bool = True) -> Row:
    """A row about coordinators: rate and latency."""
    return Row(
        key,
        title,
        run,
        "requests_per_s",
        "cpu_us_per_request",
        COORDINATOR_GOALS,
        default,
        rounds=7,  # of a second or two, of which a busy host may spoil some
        also="p99_ms",
    )


FETCH, FETCH_64K = Goal("mb_per_s", at_least=1.3), Goal("mb_per_s", at_least=2.0)
ROWS = (
    small("one-1", "produce one 100 B message a request, 1 connection", loads.one_message(1)),
    small("one-8", "produce one 100 B message a request, 8 connections", loads.one_message(8),
          Goal("requests_per_s", at_least=3.0), Goal("cpu_us_per_request", at_most=0.3)),
    small("idempotent-8", "produce one idempotent message a request, 8 connections",
          loads.one_message(8, idempotent=True), Goal("cpu_us_per_request", at_most=0.25)),
    small("one-100", "produce one message a request, 100 connections", loads.one_message(100, depth=4), default=False),
    small("one-1000", "produce one message a request, 1,000 connections", loads.one_message(1_000, depth=1)),
    bulk("100B-16K-8", "produce 100 B messages in 16 KiB batches, 8 connections", loads.batches(8, 100, 16 * KIB),
         *BATCH_GOALS),
    bulk("1K-16K-1", "produce 1 KiB messages in 16 KiB batches, 1 connection", loads.batches(1, KIB, 16 * KIB),
         *BATCH_GOALS, default=False),
    bulk("1K-16K-8", "produce 1 KiB messages in 16 KiB batches, 8 connections", loads.batches(8, KIB, 16 * KIB),
         *BATCH_GOALS),
    bulk("10K-16K-8", "produce 10 KiB messages in 16 KiB batches, 8 connections",
         loads.batches(8, 10 * KIB, 16 * KIB), default=False),
    bulk("1K-64K-1", "produce 1 KiB messages in 64 KiB batches, 1 connection", loads.batches(1, KIB, 64 * KIB),
         *BATCH_GOALS, default=False),
    bulk("1K-64K-8", "produce 1 KiB messages in 64 KiB batches, 8 connections", loads.batches(8, KIB, 64 * KIB),
         *BATCH_GOALS),
    bulk("fetch-64K-1", "fetch 64 KiB, 1 connection", loads.fetch(1, 64 * KIB), FETCH_64K),
    bulk("fetch-64K-8", "fetch 64 KiB, 8 connections", loads.fetch(8, 64 * KIB), FETCH_64K, default=False),
    bulk("seek-64K-8", "fetch 64 KiB from random offsets, 8 connections",
         loads.fetch(8, 64 * KIB, seeking=True), Goal("mb_per_s", at_least=1.2)),
    bulk("fetch-1M-1", "fetch 1 MiB, 1 connection", loads.fetch(1, MIB), FETCH),
    bulk("fetch-1M-8", "fetch 1 MiB, 8 connections", loads.fetch(8, MIB), FETCH, default=False),
    bulk("tail-4", "produce 16 KiB batches and tail them, 4 + 4 connections",
         loads.batches(4, KIB, 16 * KIB, tailers=4)),
    bulk("rdkafka-produce-1K", "librdkafka produces 1 KiB messages", loads.librdkafka("produce", KIB)),
    bulk("rdkafka-consume-1K", "librdkafka consumes 1 KiB messages", loads.librdkafka("consume", KIB)),
    bulk("java-produce-1K", "Kafka's ProducerPerformance, 1 KiB messages", loads.producer_performance(KIB)),
    bulk("rdkafka-produce-100B", "librdkafka produces 100 B messages",
         loads.librdkafka("produce", 100), default=False),
    bulk("rdkafka-produce-10K", "librdkafka produces 10 KiB messages",
         loads.librdkafka("produce", 10 * KIB), default=False),
    bulk("rdkafka-consume-100B", "librdkafka consumes 100 B messages",
         loads.librdkafka("consume", 100), default=False),
    bulk("rdkafka-consume-10K", "librdkafka consumes 10 KiB messages",
         loads.librdkafka("consume", 10 * KIB), default=False),
    bulk("java-produce-100B", "Kafka's ProducerPerformance, 100 B messages",
         loads.producer_performance(100), default=False),
    Row("java-latency", "Kafka's EndToEndLatency, average", loads.java_end_to_end, "average_ms", "cpu_us_per_request",
        rounds=3),
    timed("latency", "end to end at 1,000 messages/s", loads.end_to_end(), *LATENCY_GOALS),
    timed("latency-beside", "end to end at 1,000 messages/s beside 50 MB/s",
          loads.end_to_end(bytes_per_second_beside=50e6), *LATENCY_GOALS),
    coordinated("commit-1", "commit offsets one by one, 1 connection", loads.commits(1)),
    coordinated("commit-8", "commit offsets one by one, 8 connections", loads.commits(8)),
    coordinated("commit-8-5", "commit offsets, 8 connections with 5 in flight", loads.commits(8, depth=5),
                default=False),
    coordinated("commit-8-of-10", "commit 10 offsets at once, 8 connections",
                loads.commits(8, partitions=10), default=False),
    timed("commit-2000", "commit offsets at 2,000/s, 8 connections", loads.commits(8, rate=2_000),
          Goal("p99_ms", at_most=0.5), rounds=7),
    coordinated("txn-1", "transactions of 1 message, 8 producers", loads.transactional(1)),
    coordinated("txn-10", "transactions of 10 messages, 8 producers", loads.transactional(10)),
    coordinated("txn-1000", "transactions of 1,000 messages, 8 producers", loads.transactional(1_000)),
    coordinated("txn-1-alone", "transactions of 1 message, 1 producer",
                loads.transactional(1, producers=1), default=False),
    coordinated("txn-v1-10", "transactions of 10 messages by clients of version 1, 8 producers",
                loads.transactional(10, version=1), default=False),
    coordinated("rebalance-50", "a group of 50 members rebalances", loads.rebalances(50, times=200)),
    coordinated("rebalance-3", "a group of 3 members rebalances", loads.rebalances(3, times=200), default=False),
    coordinated("consumer-start", "a consumer starts and has its first record: ten requests, one after the other",
                loads.consumer_starts("raw", 200)),
    timed("rdkafka-start", "a librdkafka consumer starts and has its first record",
          loads.consumer_starts("librdkafka", 5), default=False),
    timed("rdkafka-start-848", "the same in the consumer protocol (KIP-848)",
          loads.consumer_starts("librdkafka-848", 5), default=False),
)  # fmt: skip
