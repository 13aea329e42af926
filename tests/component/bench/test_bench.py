"""The benchmarks' arithmetic: reports follow from what was measured."""

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench import chart, fault_runs, large_topics, machine, overhead, report, results, start_times
from bench.brokers import Levada, alone
from bench.generator import loads, relay, wire
from bench.generator.latency import Latency
from bench.generator.outcome import Outcome
from bench.rows import ROWS, Goal, Row, small
from bench.run import measure_row
from tests.load import figures
from tests.support.svg import Drawing

pytestmark = pytest.mark.slow


def outcome(*, seconds: float = 2.0, broker: float = 1.8, generator: float = 0.4, idle: float = 0.4) -> Outcome:
    return Outcome(
        seconds=seconds,
        requests=100_000,
        bytes=200_000_000,
        latency={"p50_ms": 0.2, "p99_ms": 0.5, "p999_ms": 1.0},
        broker=machine.Usage(broker / 2, broker / 2),
        generator=machine.Usage(generator, 0.0),
        idle=idle,
        steal=0.0,
    )


def found(*, kafka_fails: bool = False) -> dict[str, Any]:
    """As a run with three of the rows leaves it."""
    rows: dict[str, Any] = {}
    for row in (row for row in ROWS if row.key in ("one-8", "latency", "txn-1")):
        sides: dict[str, Any] = {}
        for name in ("levada", "kafka"):
            figures = results.figures(outcome(broker=0.5 if name == "levada" else 2.5))
            rounds = {"p99_ms": [0.2, 0.5, 0.3] if name == "levada" else [0.5, 0.5, 1.0]}
            sides[name] = {**figures, "bottleneck": results.bottleneck(figures), "rounds": rounds}
        about_row = {"title": row.title, "metric": row.metric, "cost": row.cost, "errors": {}}
        also = {"also": row.also} if row.also else {}
        rows[row.key] = about_row | also | sides
    if kafka_fails:
        del rows["one-8"]["kafka"]
        rows["one-8"]["errors"] = {"kafka": "no"}
    memory = {
        "rss_idle_mb": 30.0,
        "rss_anon_idle_mb": 20.0,
        "rss_loaded_mb": 60.0,
        "rss_anon_loaded_mb": 40.0,
    }
    starts = {
        "levada": {"start_s": 0.2, "first_record_s": 0.4},
        "kafka": {"start_s": 4.0, "first_record_s": 1.0},
    }
    process = {name: {**start, **memory} for name, start in starts.items()}
    about = {"cores": "2", "cpu": "x"}
    return {
        "when": "then",
        "revision": "r",
        "kafka": "4.3.1",
        "machine": about,
        "rows": rows,
        "process": process,
        "relay": {"p50_ms": 0.1, "p99_ms": 0.2, "p999_ms": 0.3},
    }


def test_cpu_is_counted_per_request_and_megabyte() -> None:
    figures = results.figures(outcome())
    assert figures["requests_per_s"] == 50_000
    assert figures["mb_per_s"] == 100
    assert figures["cpu_us_per_request"] == pytest.approx(18)
    assert figures["cpu_us_per_mb"] == pytest.approx(9_000)
    assert figures["user_us_per_mb"] + figures["system_us_per_mb"] == pytest.approx(9_000)


def test_the_relay_forwards_every_message() -> None:
    forwarded = relay.run(Latency(messages=50, warm_up=10))
    assert forwarded.requests == 50
    assert 0 < forwarded.latency["p50_ms"] <= forwarded.latency["p99_ms"]


@pytest.mark.parametrize(
    ("broker", "generator", "idle", "others", "limit"),
    [
        (0.95, 0.3, 0.3, 0.0, "the broker"),
        (0.3, 0.95, 0.3, 0.0, "the load generator"),
        (1.5, 0.4, 0.02, 0.03, "all cores busy"),
        (0.4, 0.3, 0.6, 0.0, "waiting for each other"),
        (0.9, 0.3, 0.05, 0.35, "other processes"),
    ],
)
def test_a_row_names_its_limit(broker: float, generator: float, idle: float, others: float, limit: str) -> None:
    row = {"broker_cores": broker, "generator_cores": generator, "idle": idle, "others": others}
    assert results.bottleneck(row).startswith(limit)


def test_goals_are_bounds_on_ratios() -> None:
    assert Goal("mb_per_s", at_least=1.5).is_met(1.5)
    assert not Goal("mb_per_s", at_least=1.5).is_met(1.49)
    assert Goal("cpu_us_per_mb", at_most=0.6).is_met(0.6)
    assert not Goal("cpu_us_per_mb", at_most=0.6).is_met(0.61)


def test_the_report_says_what_was_met_and_what_was_missed() -> None:
    text = report.markdown(found(), found())
    assert "CPU ≤ 0.3 x: met" in text
    assert "rate ≥ 3 x: **missed**, 1.00 x" in text
    assert "the lower bound here: 0.10 / 0.20 / 0.30 ms" in text
    assert "start ≤ 0.125 x: met" in text
    assert "Against the run of then" in text


def test_a_row_may_show_two_figures() -> None:
    text = report.rows_table(found())
    assert "50,000/s, p99 0.5 ms" in text
    assert "1.00 x / 1.00 x (0.30 to 1.00)" in text
    assert "rate ≥ 1.5 x: **missed**, 1.00 x; p99 ≤ 0.5 x: **missed**, 1.00 x" in text


def test_a_failed_row_is_reported_and_not_judged() -> None:
    text = report.markdown(found(kafka_fails=True), None)
    assert "failed" in text
    assert "rate ≥ 3 x: not measured" in text


def test_the_readme_gets_only_its_rows() -> None:
    all_rows = found()
    text = report.short_markdown(all_rows)
    shown = [line for line in text.splitlines() if line.startswith("| ")]
    chosen = set(report.README_ROWS) & set(all_rows["rows"])
    assert chosen < set(all_rows["rows"])
    assert len(shown) == 2 + len(chosen) + len(report.README_PROCESS)


PROCESS = {"start_s": "start", "rss_anon_loaded_mb": "memory"}


def with_ratios(rate: float, latency: float, start: float) -> dict[str, Any]:
    """A run in which Levada's figures are these multiples of Kafka's."""
    changed = found()
    changed["rows"]["one-8"]["levada"]["requests_per_s"] *= rate
    changed["rows"]["latency"]["levada"]["p99_ms"] *= latency
    changed["process"]["levada"]["start_s"] = changed["process"]["kafka"]["start_s"] * start
    return changed


def test_in_the_chart_a_longer_bar_is_better_in_every_row() -> None:
    drawing = Drawing(chart.svg(with_ratios(3.0, 0.25, 0.05), ("one-8", "latency"), PROCESS))
    bars = [drawing.points(f"bar-{index}") for index in range(4)]
    kafka = drawing.points("kafka")[0][0]
    zero = min(x for x, _ in bars[0])
    lengths = [(max(x for x, _ in bar) - zero) / (kafka - zero) for bar in bars]
    assert all(min(x for x, _ in bar) == pytest.approx(zero) for bar in bars)  # the axis begins at zero, Kafka is at 1
    assert lengths == pytest.approx([3, 4, chart.RATIO_MAX, 1], abs=0.01)
    assert drawing.ids("cut-.*") == ["cut-2"] and "20.0 x, cut" in drawing.texts()
    names = ["end to end at 1,000 messages/s (p99, inverted)", "start (inverted)", "memory (inverted)", "Kafka = 1 x"]
    assert {*names, "3.00 x", "4.00 x", "1.00 x", "0 x"} <= set(drawing.texts())


def test_a_worse_row_is_shorter_than_kafkas() -> None:
    shown = chart.ratios(with_ratios(0.5, 2.0, 4.0), ("one-8", "latency"), {"start_s": "start"})
    assert list(shown.values()) == pytest.approx([0.5, 0.5, 0.25])


def test_the_chart_names_rows_that_were_not_measured() -> None:
    drawing = Drawing(chart.svg(found(kafka_fails=True), ("one-8", "latency", "new-row"), {}))
    (note,) = (text for text in drawing.texts() if "not measured" in text)
    assert note.endswith("not measured: produce one 100 B message a request, 8 connections, new-row")
    assert drawing.ids("bar-.*") == ["bar-0"]


def test_the_chart_of_the_documents_shows_the_recorded_results() -> None:
    """If not: python -m bench chart"""
    recorded = results.load_results(results.LATEST)
    assert recorded is not None
    shown = Drawing(report.CHART.read_text())
    assert shown.texts() == Drawing(report.picture(recorded)).texts()
    assert len(shown.ids("bar-.*")) == len(report.README_ROWS) + len(report.README_PROCESS) == 8
    readme = report.README.read_text()
    for row in (recorded["rows"][key]["title"] for key in report.README_ROWS):
        assert f"| {row} |" in readme and any(text.startswith(row) for text in shown.texts())


def test_only_the_place_between_the_markers_changes(tmp_path: Any) -> None:
    page = tmp_path / "page.md"
    shown = "before\n<!-- bench:begin -->\n{}\n<!-- bench:end -->\n<!-- load:begin -->\n{}\n<!-- load:end -->\n"
    page.write_text(shown.format("old", "old"))
    report.put_between_markers(page, "new")
    report.put_between_markers(page, "newer", "load")
    assert page.read_text() == shown.format("new", "newer")


def was_stopped(pid: int) -> bool:
    """Whether a child has been stopped since this was last asked."""
    _, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
    return os.WIFSTOPPED(status)


@pytest.mark.parametrize("fails", [False, True])
def test_who_is_not_measured_stands_still(fails: bool, tmp_path: Path) -> None:
    """And goes on afterwards, also when a round has failed."""
    sides = [Levada(tmp_path), Levada(tmp_path)]
    measured = []

    def run(side: Levada) -> Outcome:
        (other,) = (each for each in sides if each is not side)
        deadline = time.monotonic() + 10
        while not was_stopped(other.pid):  # a signal takes a moment
            assert time.monotonic() < deadline, "both run"
        assert wire.is_serving(side.port)
        measured.append(side.name)
        if fails:
            raise wire.BrokerError("no")
        return outcome()

    try:
        for number, side in enumerate(sides):
            side.name = str(number)
            side.start()
        row = measure_row(Row("a", "b", run), sides, 2, partial(alone, sides))
        assert "".join(measured) == ("01" if fails else "0110")
        assert "".join(row["errors"]) == ("01" if fails else "")
        assert all(wire.is_serving(side.port) for side in sides)
    finally:
        for side in sides:
            side.remove()


def test_own_cpu_time_is_seen() -> None:
    used = machine.usage(os.getpid())
    assert used.total > 0
    assert machine.memory(os.getpid()).rss > 1


def test_the_figures_of_loads_are_recorded_beside_their_goals(tmp_path: Any, monkeypatch: Any) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("before\n<!-- load:begin -->\n<!-- load:end -->\nafter\n")
    monkeypatch.setattr(figures, "ALL", [])
    monkeypatch.setattr(figures, "RECORD", tmp_path / "load.json")
    monkeypatch.setattr(figures, "DOCS", page)
    load = figures.Report("2,000 commits a second")
    load.add("rate", 1_999.0, "/s", goal=-1_900.0)
    load.add("p99", 120.0, "ms", goal=100.0)
    figures.record()
    found = json.loads((tmp_path / "load.json").read_text())
    assert [(one["what"], one["value"], one["goal"]) for one in found["figures"]] == [
        ("rate", 1_999.0, -1_900.0),
        ("p99", 120.0, 100.0),
    ]
    assert found["when"] and found["machine"] and found["revision"]
    text = page.read_text()
    assert text.startswith("before\n<!-- load:begin -->\n") and text.endswith("\n<!-- load:end -->\nafter\n")
    assert "≥ 1,900 /s: met" in text and "≤ 100 ms: **missed**" in text


def test_whole_runs_with_faults_are_recorded_by_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "project_testing.md"
    page.write_text("before\n<!-- faults:begin -->\n<!-- faults:end -->\nafter\n")
    monkeypatch.setattr(fault_runs, "RECORD", tmp_path / "faults.json")
    monkeypatch.setattr(fault_runs, "DOCS", page)
    fault_runs.record("make damage", 1, 360.0, "all 1,000 starts")
    fault_runs.record("make chaos", 2, 600.0, "all 6 tests")
    fault_runs.record("make damage", 3, 366.0, "all 2,000 starts")
    found = json.loads((tmp_path / "faults.json").read_text())
    assert {target: (run["seed"], run["what"]) for target, run in found.items()} == {
        "make chaos": (2, "all 6 tests"),
        "make damage": (3, "all 2,000 starts"),
    }
    assert all(run["when"] and run["revision"] and run["machine"] for run in found.values())
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert "| 3 | 6.1 | all 2,000 starts |" in text and "1,000 starts" not in text


def test_the_cost_of_metrics_and_logs_is_that_of_two_brokers(tmp_path: Path) -> None:
    row = small("one-1", "one message a request", loads.one_message(1, seconds=0.05))
    measured = overhead.measure(tmp_path, rounds=1, rows=[row])
    assert measured["one-1"]["with_us"] > 0 and measured["one-1"]["without_us"] > 0
    text = report.markdown(found() | {"overhead": measured}, None)
    assert "| one message a request |" in text and "without metrics and logs" in text


def test_the_broker_to_compare_with_has_neither(tmp_path: Path) -> None:
    printed = {}
    for kind in (Levada, overhead.Unobserved):
        broker = kind(tmp_path)
        try:
            broker.start()
            printed[kind] = broker.log_path.read_text()
        finally:
            broker.remove()
    assert "/metrics" in printed[Levada] and "broker started" in printed[Levada]
    assert "/metrics" not in printed[overhead.Unobserved] and "broker started" not in printed[overhead.Unobserved]


def test_start_times_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_times, "RUNS", 1)
    broker = Levada(tmp_path)
    try:
        broker.start()
        times = start_times.measure(broker)
    finally:
        broker.remove()
    assert times["topic_list_s"] > 0
    run = found()
    run["process"]["levada"] |= times
    assert all(f"| {report.PROCESS_TITLES[name]} |" in report.markdown(run, None) for name in times)


def test_the_waits_of_other_clients_are_shown(tmp_path: Path) -> None:
    broker = Levada(tmp_path)
    try:
        taken = large_topics.measure_round(broker, partitions=30, topics=5)
    finally:
        broker.remove()
    assert set(taken) == set(large_topics.TITLES)
    assert all(longest_ms > 0 and seconds > 0 for longest_ms, seconds in taken.values())
    waits = {key: {"longest_ms": 12.0, "seconds": 3.0} for key in taken}
    text = report.markdown(found() | {"large_topics": {"levada": waits, "kafka": {"error": "too few files"}}}, None)
    assert all(f"| {title} | 12 ms (3 s) | failed |" in text for title in large_topics.TITLES.values())
