"""devices: statistics, highest values and spells of many devices, over batches and streams."""

import json
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.support.feeding import as_table, feed, forget_the_last_commit, made, results
from tests.support.svg import Drawing

from levada.pipelines.flows import devices
from levada.pipelines.flows.samples import Sample
from levada.pipelines.flows.samples import devices as made_up
from levada.pipelines.reports.panels import Ranges
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Five minutes of sixty devices."""
    return made(made_up, 1500, 200)


@pytest.fixture(scope="module")
def taken(spark: "SparkSession", samples: list[Sample]) -> "DataFrame":
    return devices.readings(as_table(spark, samples)).cache()


def values(samples: list[Sample], **asked: str) -> list[float]:
    events: list[dict[str, Any]] = [json.loads(sample.value) for sample in samples]
    return [event["value"] for event in events if asked.items() <= event.items()]


def test_statistics_are_those_of_the_readings(taken: "DataFrame", samples: list[Sample]) -> None:
    rows = devices.statistics(taken, "1 hour").where("device = 'device-0007'").collect()
    assert len(rows) == 3
    for row in rows:
        expected = values(samples, device="device-0007", measure=row.measure)
        assert (row.readings, row.least, row.greatest) == (len(expected), min(expected), max(expected))
        assert row.mean == pytest.approx(fmean(expected), abs=0.001)


def test_the_highest_come_first(taken: "DataFrame", samples: list[Sample]) -> None:
    rows = devices.highest(taken, "1 hour", 3).where("measure = 'flow'").collect()
    (row,) = rows
    found = [one.value for one in row.devices]
    assert found == sorted(found, reverse=True) and len(found) == 3
    assert found[0] == max(values(samples, measure="flow"))


def test_a_gap_ends_a_spell(spark: "SparkSession") -> None:
    seconds = (0, 10, 20, 200, 210)
    samples = [
        Sample("readings", "a", json.dumps({"at": f"2026-11-15T12:{s // 60:02d}:{s % 60:02d}Z", "value": 1.0}))
        for s in seconds
    ]
    samples += [Sample("readings", "b", '{"value": "hot"}'), Sample("readings", "b", "rubbish")]
    rows = devices.spells(devices.readings(as_table(spark, samples)), "1 minute").orderBy("from").collect()
    assert [(row.device, row.readings, row.seconds) for row in rows] == [("a", 3, 20.0), ("a", 2, 10.0)]


def test_a_batch_done_again_changes_nothing(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, samples: list[Sample]
) -> None:
    topic = broker.topic(partitions=2)

    def run(to: str) -> None:
        running = devices.devices(
            [topic],
            to=to,
            window="30 seconds",
            gap="1 minute",
            bootstrap=broker.bootstrap,
            checkpoint=str(tmp_path / to),
            once=True,
            spark=spark,
        )
        assert running.wait()

    feed(broker, samples[:900], {"readings": topic})
    run("restarted")
    forget_the_last_commit(tmp_path / "restarted")
    feed(broker, samples[900:], {"readings": topic})
    run("restarted")
    run("clean")
    for what in ("statistics", "highest", "spells"):
        assert results(broker, f"restarted-{what}") == results(broker, f"clean-{what}")
    assert len(results(broker, "clean-highest")) == 3 * 9  # of ten half minutes, the last is not over


def test_a_report_finds_the_hot_ones(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, samples: list[Sample]
) -> None:
    topic = broker.topic()
    feed(broker, samples, {"readings": topic})
    found = devices.report([topic], bootstrap=broker.bootstrap, spark=spark, top=4, gap="13 seconds")
    measures, peaks, silences = found.tables
    assert [row[0] for row in measures.rows] == ["flow", "humidity", "temperature"]
    assert sum(row[1] for row in measures.rows) == len(samples)
    assert all(measure == "temperature" and value > 40 and far > 3 for _, measure, value, far in peaks.rows)
    assert silences.rows == []  # each device is heard of every twelve seconds
    drawing = Drawing(Path(found.write(str(tmp_path / "devices.svg"))).read_text())
    assert len(drawing.ids("panel-[0-2]-range")) == 3 and len(drawing.ids("panel-3-bar-.*")) == 4
    ranges = [panel for panel in found.panels if isinstance(panel, Ranges)]
    for (measure, _, _, least, greatest), panel in zip(measures.rows, ranges, strict=True):
        assert measure in panel.title
        _, *extremes = zip(*panel.values.values(), strict=True)
        assert (min(extremes[0]), max(extremes[1])) == (least, greatest)


def test_a_report_of_many_measures_draws_some_of_them(spark: "SparkSession", broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    values = [
        {"at": "2026-11-15T12:00:00Z", "measure": f"measure-{number:02}", "value": number} for number in range(20)
    ]
    values.append({"measure": "broken", "value": "NaN"})
    feed(broker, [Sample("readings", "a", json.dumps(value)) for value in values], {"readings": topic})
    found = devices.report([topic], bootstrap=broker.bootstrap, spark=spark)
    assert len([panel for panel in found.panels if isinstance(panel, Ranges)]) == devices.CHARTS_MAX
    assert found.note == "the charts show 12 of 20 measures" and len(found.tables[0].rows) >= 20
