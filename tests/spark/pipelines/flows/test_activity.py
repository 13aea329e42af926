"""activity: counts, top pages and sessions of a website, the same however often it is stopped."""

import json
from collections import Counter
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.support.feeding import as_table, feed, forget_the_last_commit, made, results
from tests.support.svg import Drawing

from levada.pipelines.errors import PipelineError
from levada.pipelines.flows import activity
from levada.pipelines.flows.samples import Sample, website
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WINDOW_S, GAP_S = 10, 15


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """A minute and a half."""
    return made(website, 3000, 30)


@pytest.fixture(scope="module")
def happened(spark: "SparkSession", samples: list[Sample]) -> "DataFrame":
    return activity.events(as_table(spark, samples)).cache()


def moment(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["at"]).timestamp()


def test_counts_are_those_of_the_events(happened: "DataFrame", samples: list[Sample]) -> None:
    expected = Counter((moment(json.loads(sample.value)) // WINDOW_S * WINDOW_S, sample.topic) for sample in samples)
    rows = activity.counts(happened, f"{WINDOW_S} seconds").selectExpr("double(from) f", "kind", "events")
    assert {(row.f, row.kind): row.events for row in rows.collect()} == expected
    assert {kind for _, kind in expected} == set(activity.TOPICS)


def test_the_most_seen_pages_come_first(happened: "DataFrame", samples: list[Sample]) -> None:
    pages = Counter(json.loads(sample.value)["page"] for sample in samples if sample.topic == "page-views")
    (row,) = activity.top_pages(happened, "1 hour", 3).collect()
    expected = sorted(pages.items(), key=lambda item: (-item[1], item[0]))[:3]
    assert [(one.page, one.views) for one in row.pages] == expected


def test_a_session_ends_with_a_pause(happened: "DataFrame", samples: list[Sample]) -> None:
    times: dict[str, list[float]] = {}
    for sample in samples:
        times.setdefault(sample.key, []).append(moment(json.loads(sample.value)))
    expected = sum(1 + sum(later - earlier > GAP_S for earlier, later in pairwise(when)) for when in times.values())
    found = activity.sessions(happened, f"{GAP_S} seconds").collect()
    assert len(found) == expected > len(times)
    assert sum(row.events for row in found) == len(samples)
    assert all(row.views + row.searches + row.clicks <= row.events for row in found)


def test_what_is_no_event_is_left_out(spark: "SparkSession") -> None:
    strange = [
        Sample("clicks", "ana", "no JSON"),
        Sample("clicks", "", '{"visitor": "bob", "at": "not a time", "kind": "searches"}'),
        Sample("ads", "eve", '{"visitor": 7, "at": "2026-11-15T12:00:01+01:00", "page": {"no": "text"}}'),
    ]
    raw = as_table(spark, strange).selectExpr("nullif(key, binary('')) key", "* except (key)")
    rows = activity.events(raw).selectExpr("visitor", "kind", "string(at) at").collect()
    assert [tuple(row) for row in rows] == [
        ("ana", "clicks", "2026-11-15 12:00:00"),  # the time of its record
        ("bob", "searches", "2026-11-15 12:00:00"),
        ("7", "ads", "2026-11-15 11:00:01"),
    ]


def run(spark: "SparkSession", broker: EmbeddedBroker, topics: dict[str, str], to: str, folder: Path) -> None:
    running = activity.activity(
        list(topics.values()),
        to=to,
        window=f"{WINDOW_S} seconds",
        gap=f"{GAP_S} seconds",
        late="5 seconds",
        top=3,
        bootstrap=broker.bootstrap,
        checkpoint=str(folder / to),
        once=True,
        spark=spark,
        name=to,
    )
    assert running.wait()


@pytest.fixture
def topics(broker: EmbeddedBroker) -> dict[str, str]:
    return {name: broker.topic() for name in activity.TOPICS}


def test_a_restart_in_the_middle_changes_nothing(
    spark: "SparkSession",
    broker: EmbeddedBroker,
    tmp_path: Path,
    samples: list[Sample],
    topics: dict[str, str],
) -> None:
    """Stopped after half of it, a batch of it done again as after a crash, and one clean run: the same results."""
    named = [sample._replace(value=json.dumps(json.loads(sample.value) | {"kind": sample.topic})) for sample in samples]
    feed(broker, named[:1700], topics)
    run(spark, broker, topics, "restarted", tmp_path)
    assert (halfway := results(broker, "restarted-counts"))
    forget_the_last_commit(tmp_path / "restarted")
    feed(broker, named[1700:], topics)
    run(spark, broker, topics, "restarted", tmp_path)
    run(spark, broker, topics, "clean", tmp_path)
    for what in ("counts", "pages", "sessions"):
        assert results(broker, f"restarted-{what}") == results(broker, f"clean-{what}")
    counts = results(broker, "clean-counts")
    assert len(halfway) < len(counts)
    closed = {one["to"] for one in counts}
    expected = sum(
        1
        for sample in samples
        if any(window_end(json.loads(sample.value)) == datetime.fromisoformat(to).timestamp() for to in closed)
    )
    assert sum(one["events"] for one in counts) == expected > 2000
    assert all(len(one["pages"]) <= 3 for one in results(broker, "clean-pages"))


def window_end(event: dict[str, Any]) -> float:
    return (moment(event) // WINDOW_S + 1) * WINDOW_S


def test_a_report_has_tables_and_a_chart(
    spark: "SparkSession",
    broker: EmbeddedBroker,
    tmp_path: Path,
    samples: list[Sample],
    topics: dict[str, str],
) -> None:
    feed(broker, samples, topics)
    found = activity.report(list(topics.values()), bootstrap=broker.bootstrap, spark=spark, top=5)
    kinds, _, visits = found.tables
    counted = Counter(topics[sample.topic] for sample in samples)
    assert {row[0]: row[1] for row in kinds.rows} == counted
    assert visits.rows[0][0] == len({sample.key for sample in samples})
    assert f"{counted[topics['clicks']]:,}" in found.text()
    drawing = Drawing(Path(found.write(str(tmp_path / "charts" / "activity.svg"))).read_text())
    assert len(drawing.ids("panel-0-line-.*")) == len(activity.TOPICS)
    assert {"events per 2 seconds", *topics.values()} <= set(drawing.texts())
    assert "no data" in drawing.texts()  # no topic is called page-views
    page = Path(found.write(str(tmp_path / "charts" / "activity.html"))).read_text()
    assert all(f"<td>{topic}</td>" in page for topic in topics.values())


def test_a_report_of_nothing_says_so(spark: "SparkSession", broker: EmbeddedBroker, topics: dict[str, str]) -> None:
    with pytest.raises(PipelineError, match="nothing to report"):
        activity.report(list(topics.values()), bootstrap=broker.bootstrap, spark=spark)
