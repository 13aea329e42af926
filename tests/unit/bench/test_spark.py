"""The benchmark on Spark: stored batches are valid and of their size, ratios follow from measurements."""

from typing import Any

import pytest
from bench.spark import report as spark_report
from bench.spark.rows import LARGE, SHAPES, SKEWED, WIDE, growth_key, rows, stored_rows
from bench.spark.sides import Shape, batches, starting_offsets

from levada.wire.batches import decode


def side(rate: float) -> dict[str, Any]:
    figures = {"requests_per_s": rate, "cpu_us_per_request": 0.2, "generator_cores": 1.5, "others": 0.1}
    return {**figures, "p50_ms": 2e8 / rate, "p99_ms": 3e8 / rate, "bottleneck": "all cores busy"}


def found(levada: float) -> dict[str, Any]:
    """As a run leaves it, with half a million rows a second of the stock connector."""
    measured = {
        row.key: {
            "title": row.title,
            "metric": row.metric,
            "errors": {},
            "levada": side(levada),
            "stock": side(600_000),
            "kafka": side(500_000),
        }
        for row in rows(1)
    }
    about = {"when": "then", "revision": "r", "kafka": "4.3.1", "connector": "4.2.0", "spark": "4.3.0"}
    return {**about, "machine": {"cores": "2"}, "minutes": 9.0, "rows": measured}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_stored_batches_have_values_of_their_size(shape: Shape) -> None:
    data, count = batches(shape)[3]
    records = decode(memoryview(data))
    assert len(records) == count
    assert {len(record.value or b"") for record in records} == {shape.value_bytes}
    assert len(data) < (6_000 if shape.codec else 20_000)


def test_batches_of_large_values_have_one_record_and_are_few() -> None:
    made = batches(LARGE)
    assert {count for _, count in made} == {1} and sum(len(data) for data, _ in made) < 40 << 20


def test_partitions_share_the_records() -> None:
    assert sum(WIDE.shares()) == pytest.approx(1) and len(WIDE.shares()) == 200
    assert sum(SKEWED.shares()) == pytest.approx(1) and SKEWED.shares()[0] == 0.9


def test_the_last_rows_are_taken_from_all_partitions() -> None:
    assert starting_offsets([900, 50, 50], 100) == [810, 45, 45]
    assert starting_offsets([10, 10, 10], 5) == [7, 9, 9]
    assert starting_offsets([4, 3], 7) == [0, 0]


def test_enough_is_stored_for_every_row() -> None:
    assert stored_rows(1)[SHAPES["100"]] == 4_000_000
    assert stored_rows(0.5)[SHAPES["1k"]] == 500_000


def test_goals_are_met_or_missed() -> None:
    kept, missed = spark_report.markdown(found(1_200_000)), spark_report.markdown(found(400_000))
    assert "16 of 16 goals met" in kept and "Other processes used 10% of the cores" in kept
    assert "missed" not in kept
    assert "2 of 16 goals met" in missed
    assert "rate ≥ 2 x: **missed**, 0.80 x; ≥ 1,000,000/s: **missed**" in missed


def test_rows_that_cost_more_the_more_there_are_are_reported() -> None:
    grown = found(1_200_000)
    grown["rows"][growth_key("copy", 16)]["levada"] = side(600_000)
    assert "a row at 16 x ≤ 1.15 x of one at 1 x: **missed**, 2.00 x" in spark_report.growth_table(grown)


def test_a_side_that_failed_has_no_ratio() -> None:
    broken = found(1_200_000)
    del broken["rows"]["write-100"]["kafka"]
    broken["rows"]["write-100"]["errors"] = {"kafka": "no"}
    assert "| failed |  |  | rate ≥ 1.5 x: not measured |" in spark_report.rows_table(broken)
