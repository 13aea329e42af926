"""logs: lines of many formats understood, rates and alerts kept, everything found again."""

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.support.feeding import NOON, as_table, feed, forget_the_last_commit, made, results

from levada.pipelines.flows import service_logs
from levada.pipelines.flows.samples import Sample
from levada.pipelines.flows.samples import service_logs as made_up
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = "2026-11-15 11:59:30"
LINES = [
    ('{"ts": "2026-11-15T11:59:30Z", "severity": "critical", "app": "cart", "msg": "gone"}', ("cart", "FATAL", "gone")),
    ('{"time": "2026-11-15T11:59:30Z", "level": "Warning", "message": {"a": 1}}', ("key", "WARN", '{"a":1}')),
    ('time=2026-11-15T11:59:30Z level=err logger=db msg="a \\"full\\" one"', ("db", "ERROR", 'a \\"full\\" one')),
    ("2026-11-15 11:59:30 ERROR web[12]: name=x failed", ("web", "ERROR", "name=x failed")),
    ("[2026-11-15T11:59:30+00:00] [DEBUG] waiting", ("key", "DEBUG", "waiting")),
    ("2026-11-15T11:59:30Z worker: two\nlines", ("worker", "INFO", "two\nlines")),
]  # fmt: skip


def test_lines_of_many_formats_are_understood(spark: "SparkSession") -> None:
    raw = as_table(spark, [Sample("logs", "key", line) for line, _ in LINES])
    rows = service_logs.lines(raw).selectExpr("string(at) at", "service", "level", "message", "line").collect()
    assert [(row.service, row.level, row.message) for row in rows] == [expected for _, expected in LINES]
    assert [row.line for row in rows] == [line for line, _ in LINES]
    assert {row.at for row in rows} == {AT}


def test_a_line_that_tells_nothing_is_kept(spark: "SparkSession") -> None:
    raw = as_table(spark, [Sample("logs", "k", "Killed"), Sample("logs", "k", "[1, 2]")])
    rows = service_logs.lines(raw).selectExpr("string(at) at", "service", "level", "message").collect()
    when = "2026-11-15 12:00:00"  # of the record
    assert [tuple(row) for row in rows] == [(when, "k", "INFO", "Killed"), (when, "k", "INFO", "[1, 2]")]


def test_a_pattern_is_what_does_not_change(spark: "SparkSession") -> None:
    patterns = {
        "upstream 10.0.0.7:8443 timed out after 31.5 ms": "upstream <address> timed out after <n> ms",
        'user "ana" of 7c9e6679-7425-40de-944b-e07fc1f90ae7': "user <text> of <id>",
        "block deadbeef01 of facade": "block <id> of facade",
    }
    rows = spark.createDataFrame([(message,) for message in patterns], "message string")
    found = rows.select(service_logs.pattern(rows.message).alias("pattern")).collect()
    assert [row.pattern for row in found] == list(patterns.values())


@pytest.mark.parametrize(("least", "levels"), [("warning", ["WARN", "ERROR", "FATAL"]), ("fatal", ["FATAL"])])
def test_levels_are_ordered(least: str, levels: list[str]) -> None:
    assert list(service_logs.levels_from(least)) == levels
    with pytest.raises(ValueError, match="unknown level"):
        service_logs.levels_from("loud")


def test_rates_alerts_and_the_lake_have_every_line_once(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path
) -> None:
    topic, lake = broker.topic(partitions=2), str(tmp_path / "lake")
    samples = made(made_up, 1500, 100)

    def run(to: str, keep: str | None) -> None:
        running = service_logs.logs(
            [topic],
            to=to,
            lake=keep,
            alert_at=8,
            bootstrap=broker.bootstrap,
            checkpoint=str(tmp_path / to),
            once=True,
            spark=spark,
        )
        assert running.wait()

    feed(broker, samples[:1000], {"logs": topic})
    run("restarted", lake)
    forget_the_last_commit(tmp_path / "restarted")
    feed(broker, samples[1000:1400], {"logs": topic})
    run("restarted", lake)
    run("clean", None)
    assert results(broker, "restarted-rates") == results(broker, "clean-rates")
    assert results(broker, "restarted-alerts") == results(broker, "clean-alerts")
    rates = results(broker, "clean-rates")
    worst = max(rates, key=lambda one: float(one["error_rate"]))
    assert worst["service"] == "payments" and worst["lines"] == sum(
        worst[level] for level in ("debug", "info", "warn", "error", "fatal")
    )
    patterns = {one["pattern"] for one in results(broker, "clean-alerts")}
    assert patterns == {
        "card service answered <n> to payment <id>",
        "upstream <address> timed out after <n> ms",
    }

    feed(broker, samples[1400:], {"logs": topic})  # not in the lake: found in the log
    found = service_logs.search(
        lake, topics=[topic], text="CARD service", level="error", bootstrap=broker.bootstrap, spark=spark
    ).collect()
    expected = Counter(json.loads(sample.value)["message"] for sample in samples if "card service" in sample.value)
    assert Counter(row.message for row in found) == expected
    assert [row.at for row in found] == sorted(row.at for row in found)
    late = service_logs.search(
        lake,
        topics=[topic],
        service="mail",
        since=NOON + timedelta(minutes=2),
        bootstrap=broker.bootstrap,
        spark=spark,
    )
    assert late.count() == sum(sample.key == "mail" for sample in samples[1200:])
