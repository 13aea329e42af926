"""The comparison of two states: intervals of medians and the table of ratios."""

import random
from statistics import median

from bench.against import interval, show
from bench.quick import ROWS


def test_the_interval_of_few_rounds_is_all_of_them() -> None:
    assert interval([1.1, 0.9, 1.0]) == (0.9, 1.1)


def test_the_interval_holds_the_true_median_as_often_as_it_claims() -> None:
    chance = random.Random(1)
    held = 0
    for _ in range(1_000):
        low, high = interval([chance.lognormvariate(0, 0.1) for _ in range(20)])
        held += low <= 1.0 <= high
    assert 940 <= held <= 990


def test_the_interval_narrows_with_more_rounds() -> None:
    chance = random.Random(1)
    ratios = [chance.lognormvariate(0, 0.1) for _ in range(400)]
    few, many = interval(ratios[:20]), interval(ratios)
    assert many[1] - many[0] < few[1] - few[0]
    assert many[0] < median(ratios) < many[1]


def test_a_row_shows_both_costs_and_the_median_of_the_ratios_of_rounds() -> None:
    row = ROWS[0]
    text = show([row], {row.key: [(10.0, 11.0), (20.0, 22.0), (10.0, 12.0)]}, "v1")
    assert "| 10 us/request | 12 us/request | +10.0% | +10.0% to +20.0% |" in text
    assert "| broker CPU | v1 | this tree |" in text
