"""A broker for each load, and a table of all measurements at the end.

A load fails only on wrong results; whether a goal is met says the table, since it depends on the machine.
`SECONDS=10 make load` shortens the long ones; such a run is not recorded.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench.brokers import Broker, Levada
from bench.report import DOCS
from tests.load import figures
from tests.load.figures import Report

FULL_S = 60.0
SECONDS = float(os.environ.get("SECONDS", FULL_S))


class Ordinary(Levada):
    """With Kafka's default delay of a group's first rebalance, in which all its members come."""

    initial_rebalance_delay_ms = 3_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Fresh, so that its memory tells of one load."""
    one = Ordinary(tmp_path)
    try:
        one.start()
        yield one
    finally:
        one.remove()


@pytest.fixture
def report() -> Callable[[str], Report]:
    """A place for the figures of a load, by its title."""
    return Report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """All figures, in one table."""
    if not figures.ALL:
        return
    terminalreporter.write_line("")
    terminalreporter.write_line(figures.markdown())
    if os.environ.get("RECORD") and SECONDS >= FULL_S and exitstatus == 0:
        figures.record()
        terminalreporter.write_line(f"\nrecorded in {figures.RECORD} and {DOCS}")
