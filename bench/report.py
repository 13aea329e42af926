"""Writes results as Markdown: every row into docs/benchmarks.md, a few into the README, a line of progress.

Only the text between the markers of a page changes.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import chart, large_topics, results
from bench.generator.outcome import ROOT
from bench.rows import LABELS, PROCESS_GOALS, ROWS, Goal

DOCS, README, CHART = ROOT / "docs" / "benchmarks.md", ROOT / "README.md", ROOT / "docs" / "benchmarks.svg"
GOALS = {row.key: row.goals for row in ROWS}
README_ROWS = ("one-8", "1K-16K-8", "fetch-1M-1", "latency", "commit-8", "txn-10")
README_PROCESS = ("start_s", "rss_anon_loaded_mb")
RELAY = "End to end at 1,000 messages/s through a process that only forwards the bytes, the lower bound here"
UNITS = {"requests_per_s": "/s", "mb_per_s": " MB/s", "average_ms": " ms"}
PROCESS_TITLES = {
    "start_s": "start to first response",
    "first_record_s": "a fresh broker's first consumer to its first record",
    "topic_list_s": "`topic list`, from the start of its process to its end",
    "fixture_s": "a pytest run with the fixture, beyond one without",
    "rss_anon_idle_mb": "anonymous memory, idle",
    "rss_anon_loaded_mb": "anonymous memory, loaded",
    "rss_idle_mb": "resident memory, idle",
    "rss_loaded_mb": "resident memory, loaded",
}


def number(value: float) -> str:
    """Three digits, no more than a measurement can mean."""
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def times(value: float | None) -> str:
    """A ratio."""
    return "" if value is None else f"{value:.2f} x"


def latencies(figures: dict[str, float]) -> str:
    """The percentiles of a latency."""
    return " / ".join(f"{figures[name]:.2f}" for name in ("p50_ms", "p99_ms", "p999_ms")) + " ms"


def value_of(row: dict[str, Any], broker: str) -> str:
    """The main figure of a row."""
    figures = row.get(broker)
    if figures is None:
        return "failed" if broker in row["errors"] else ""
    if row["metric"] == "p99_ms":
        return latencies(figures)
    also = f", {LABELS[row['also']]} {number(figures[row['also']])} ms" if "also" in row else ""
    return number(figures[row["metric"]]) + UNITS[row["metric"]] + also


def ratio_of(row: dict[str, Any]) -> str:
    """Of the main figure, of p50 and p99 where it is a latency; of a p99 with the range of the rounds."""
    shown = [row["metric"], row["also"]] if "also" in row else [row["metric"]]
    if row["metric"] == "p99_ms":
        shown = ["p50_ms", "p99_ms"]
    spread = results.ratio_range(row, "p99_ms") if "p99_ms" in shown else None
    in_rounds = f" ({spread[0]:.2f} to {spread[1]:.2f})" if spread else ""
    return " / ".join(times(results.ratio(row, name)) for name in shown) + in_rounds


def cost_of(row: dict[str, Any], broker: str) -> str:
    """CPU of the broker with its user and system parts."""
    figures = row.get(broker)
    if figures is None:
        return ""
    unit = row["cost"].removeprefix("cpu_us_per_")
    parts = (number(figures[f"{part}_us_per_{unit}"]) for part in ("user", "system"))
    return f"{number(figures[row['cost']])} us/{unit} ({' + '.join(parts)})".replace("/mb", "/MB")


def summary(row: dict[str, Any]) -> str:
    """One line for the progress."""
    sides = "; ".join(
        f"{name} {value_of(row, name)}, {cost_of(row, name)}" for name in ("levada", "kafka") if name in row
    )
    return f"{sides}; {ratio_of(row)}"


def verdict(goal: Goal, ratio: float | None) -> str:
    """Says whether a goal is met."""
    if ratio is None:
        return f"{goal}: not measured"
    return f"{goal}: {'met' if goal.is_met(ratio) else f'**missed**, {ratio:.2f} x'}"


def verdicts(key: str, row: dict[str, Any]) -> str:
    """Of all goals of a row."""
    return "; ".join(verdict(goal, results.ratio(row, goal.metric)) for goal in GOALS.get(key, ()))


def table(head: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> str:
    """In Markdown."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ("---",) * len(head), *lines))


def rows_table(found: dict[str, Any]) -> str:
    """What was done."""
    lines = [
        (row["title"], value_of(row, "levada"), value_of(row, "kafka"), ratio_of(row), verdicts(key, row))
        for key, row in found["rows"].items()
    ]
    return table(("load", "Levada", "Kafka", "Levada : Kafka", "goal"), lines)


def costs_table(found: dict[str, Any]) -> str:
    """What it cost and what was the limit."""
    lines = []
    for row in found["rows"].values():
        limits = (row.get(name, {}).get("bottleneck", "") for name in ("levada", "kafka"))
        cost = times(results.ratio(row, row["cost"]))
        lines.append((row["title"], cost_of(row, "levada"), cost_of(row, "kafka"), cost, *limits))
    head = ("load", "Levada's CPU (user + system)", "Kafka's CPU", "ratio", "Levada's limit", "Kafka's limit")
    return table(head, lines)


def process_table(found: dict[str, Any]) -> str:
    """Start and memory."""
    goals = {goal.metric: goal for goal in PROCESS_GOALS}
    lines = []
    for metric, title in PROCESS_TITLES.items():
        values = [found["process"].get(name, {}).get(metric) for name in ("levada", "kafka")]
        unit = " s" if metric.endswith("_s") else " MB"
        ratio = results.ratio(found["process"], metric)
        goal = verdict(goals[metric], ratio) if metric in goals else ""
        shown = ("" if value is None else number(value) + unit for value in values)
        lines.append((title, *shown, times(ratio), goal))
    return table(("process", "Levada", "Kafka", "Levada : Kafka", "goal"), lines)


def overhead_table(found: dict[str, Any]) -> str:
    """What metrics and logs cost."""
    lines = []
    for row in found["overhead"].values():
        spread = f"{row['low']:+.1%} to {row['high']:+.1%}"
        costs = (f"{number(row[name])} us/request" for name in ("without_us", "with_us"))
        lines.append((row["title"], *costs, f"{row['change']:+.1%}", spread))
    head = ("broker CPU", "without metrics and logs", "with both", "change (goal: at most +2 %)", "95 %")
    return table(head, lines)


def large_topics_table(found: dict[str, Any]) -> str:
    """How long other clients wait while one works on thousands of partitions."""

    def shown(side: dict[str, Any], key: str) -> str:
        if key not in side:
            return "failed" if "error" in side else ""
        return f"{number(side[key]['longest_ms'])} ms ({number(side[key]['seconds'])} s)"

    sides = [found["large_topics"].get(name, {}) for name in ("levada", "kafka")]
    lines = [(title, *[shown(side, key) for side in sides]) for key, title in large_topics.TITLES.items()]
    return table(("longest response of other clients (and the time of the work)", "Levada", "Kafka"), lines)


def changes_table(found: dict[str, Any], previous: dict[str, Any]) -> str:
    """Ratios to Kafka then and now: what survives a change of machine and of neighbours."""
    lines = []
    for key, row in found["rows"].items():
        before = previous["rows"].get(key)
        if before is None:
            continue
        pairs = [(results.ratio(before, metric), results.ratio(row, metric)) for metric in (row["metric"], row["cost"])]
        shown = (f"{times(then)} -> {times(now)}" if then and now else "" for then, now in pairs)
        lines.append((row["title"], *shown))
    head = ("load", "figure : Kafka", "CPU : Kafka")
    return f"Against the run of {previous['when']} ({previous['revision']}):\n\n" + table(head, lines)


def others(found: dict[str, Any]) -> str:
    """How busy other processes kept the machine."""
    busy = [side["others"] for row in found["rows"].values() for side in (row.get("levada"), row.get("kafka")) if side]
    return f" Other processes used {median(busy):.0%} of the cores." if busy else ""


def markdown(found: dict[str, Any], previous: dict[str, Any] | None) -> str:
    """Everything."""
    about = ", ".join(f"{name} {value}" for name, value in found["machine"].items())
    goals = [
        (goal, results.ratio(row, goal.metric)) for key, row in found["rows"].items() for goal in GOALS.get(key, ())
    ]
    goals += [(goal, results.ratio(found["process"], goal.metric)) for goal in PROCESS_GOALS]
    met = [goal.is_met(ratio) for goal, ratio in goals if ratio is not None]
    parts = [
        f"{found['when']}, revision {found['revision']}, Apache Kafka {found['kafka']}; {about}.",
        f"{sum(met)} of {len(met)} goals met. Latencies are p50 / p99 / p99.9; after a ratio of p99 stand the least "
        f"and the greatest of the rounds; a MB is 10^6 bytes.{others(found)}",
        rows_table(found),
        costs_table(found),
        process_table(found),
    ]
    if "relay" in found:
        parts.append(f"{RELAY}: {latencies(found['relay'])} (p50 / p99 / p99.9).")
    if "overhead" in found:
        parts.append(overhead_table(found))
    if "large_topics" in found:
        parts.append(large_topics_table(found))
    if previous is not None:
        parts.append(changes_table(found, previous))
    return "\n\n".join(parts)


def short_markdown(found: dict[str, Any]) -> str:
    """For the README: a few rows, one line each."""
    rows = {key: found["rows"][key] for key in README_ROWS if key in found["rows"]}
    lines: list[tuple[str, ...]] = [
        (
            row["title"],
            value_of(row, "levada"),
            value_of(row, "kafka"),
            ratio_of(row),
            times(results.ratio(row, row["cost"])),
        )
        for row in rows.values()
    ]
    for metric in README_PROCESS:
        unit = " s" if metric.endswith("_s") else " MB"
        shown = (number(found["process"][name][metric]) + unit for name in ("levada", "kafka"))
        lines.append((PROCESS_TITLES[metric], *shown, times(results.ratio(found["process"], metric)), ""))
    return table(("load", "Levada", "Kafka", "Levada : Kafka", "broker CPU : Kafka"), lines)


def publish(found: dict[str, Any], previous: dict[str, Any] | None) -> None:
    """Writes the tables between the markers of the pages, and the chart."""
    put_between_markers(DOCS, markdown(found, previous))
    put_between_markers(README, short_markdown(found))
    CHART.write_text(picture(found))


def picture(found: dict[str, Any]) -> str:
    """The rows of the README as an SVG document."""
    return chart.svg(found, README_ROWS, {metric: PROCESS_TITLES[metric] for metric in README_PROCESS})


def put_between_markers(path: Path, text: str, mark: str = "bench") -> None:
    """Leave everything else of the page as it is."""
    begin, end = f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"
    page = path.read_text() if path.exists() else ""
    if begin in page and end in page:
        before, _, rest = page.partition(begin)
        path.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}")
