"""Writes results of the Spark connectors as Markdown into docs/benchmarks.md."""

from collections.abc import Iterator
from typing import Any

from bench import results
from bench.report import DOCS, number, others, put_between_markers, table, times, verdict
from bench.spark.rows import GROWING, GROWTH, READ_ROWS_PER_S, growth_key, is_growth, rows

SIDES = {"levada": "Levada", "stock": "stock on Levada", "kafka": "stock on Kafka"}
GOALS = {row.key: row.goals for row in rows(1)}
FLOORS = {"read-100": READ_ROWS_PER_S}
FLAT = 1.15  # the cost of a row at the largest size may be so much of that at the smallest
MARK = "spark"


def value_of(row: dict[str, Any], side: str) -> str:
    figures = row.get(side)
    if figures is None:
        return "failed" if side in row["errors"] else ""
    if row["metric"] == "p50_ms":
        return f"{number(figures['p50_ms'])} / {number(figures['p99_ms'])} ms"
    return f"{number(figures[row['metric']])}/s"


def against(row: dict[str, Any], side: str, other: str) -> float | None:
    """A ratio of main figures."""
    pair = {"levada": row.get(side), "kafka": row.get(other)}
    return results.ratio(pair, row["metric"])


def spark_us(figures: dict[str, Any]) -> float:
    """CPU of Spark's JVM and Python workers for a row."""
    return float(figures["generator_cores"] / figures["requests_per_s"] * 1e6)


def cost_of(row: dict[str, Any], side: str) -> str:
    figures = row.get(side)
    if figures is None:
        return ""
    return f"{number(spark_us(figures))} + {number(figures['cpu_us_per_request'])}"


def summary(row: dict[str, Any]) -> str:
    """One line for the progress."""
    shown = (f"{title} {value_of(row, side)}" for side, title in SIDES.items() if side in row)
    return f"{'; '.join(shown)}; {times(against(row, 'levada', 'kafka'))}"


def verdicts(key: str, row: dict[str, Any]) -> Iterator[tuple[str, bool | None]]:
    """The goals of a row in words, and whether each is met."""
    for goal in GOALS.get(key, ()):
        ratio = results.ratio(row, goal.metric)
        yield verdict(goal, ratio), None if ratio is None else goal.is_met(ratio)
    if key in FLOORS and "levada" in row:
        rate, floor = row["levada"]["requests_per_s"], FLOORS[key]
        yield f"≥ {number(floor)}/s: {'met' if rate >= floor else '**missed**'}", rate >= floor


def growth_verdicts(found: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """By kind of job: whether a row costs the same however many there are."""
    for kind in GROWING:
        first, last = (found["rows"].get(growth_key(kind, size), {}).get("levada") for size in (1, 16))
        if first and last:
            ratio = first["requests_per_s"] / last["requests_per_s"]
            words = "met" if ratio <= FLAT else "**missed**"
            yield kind, f"a row at 16 x ≤ {FLAT} x of one at 1 x: {words}, {ratio:.2f} x", ratio <= FLAT


def rows_table(found: dict[str, Any]) -> str:
    lines = [
        (
            row["title"],
            *(value_of(row, side) for side in SIDES),
            times(against(row, "levada", "kafka")),
            times(against(row, "stock", "kafka")),
            "; ".join(words for words, _ in verdicts(key, row)),
        )
        for key, row in found["rows"].items()
        if not is_growth(key)
    ]
    head = ("rows", *SIDES.values(), "Levada : stock on Kafka", "stock: on Levada : on Kafka", "goal")
    return table(head, lines)


def costs_table(found: dict[str, Any]) -> str:
    lines = [
        (
            row["title"],
            *(cost_of(row, side) for side in SIDES),
            row.get("levada", {}).get("bottleneck", ""),
            row.get("kafka", {}).get("bottleneck", ""),
        )
        for key, row in found["rows"].items()
        if row["metric"] != "p50_ms" and not is_growth(key)
    ]
    head = ("us of CPU a row: Spark + broker", *SIDES.values(), "Levada's limit", "stock's limit on Kafka")
    return table(head, lines)


def growth_table(found: dict[str, Any]) -> str:
    verdict_of = {kind: words for kind, words, _ in growth_verdicts(found)}
    lines = []
    for kind in GROWING:
        for size in GROWTH:
            row = found["rows"].get(growth_key(kind, size), {})
            if "levada" in row:
                shown = (number(1e6 / row["levada"]["requests_per_s"]), number(spark_us(row["levada"])))
                lines.append((row["title"], *shown, verdict_of.get(kind, "") if size == GROWTH[-1] else ""))
    return table(("growth, Levada", "us a row", "us of Spark's CPU a row", "goal"), lines)


def markdown(found: dict[str, Any]) -> str:
    about = ", ".join(f"{name} {value}" for name, value in found["machine"].items())
    met = [met for key, row in found["rows"].items() for _, met in verdicts(key, row) if met is not None]
    met += [met for _, _, met in growth_verdicts(found)]
    parts = [
        f"{found['when']}, revision {found['revision']}, Spark {found['spark']} with 2 cores, the stock connector "
        f"{found['connector']}, Apache Kafka {found['kafka']}; {about}.",
        f"{sum(met)} of {len(met)} goals met; {found['minutes']:.0f} minutes. Latencies are p50 / p99." + others(found),
        rows_table(found),
        costs_table(found),
        growth_table(found),
    ]
    return "\n\n".join(parts)


def publish(found: dict[str, Any]) -> None:
    """Writes the tables between the markers of the page."""
    put_between_markers(DOCS, markdown(found), MARK)
