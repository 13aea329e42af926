"""Records a whole run of `make chaos-spark`."""

import pytest
from tests.support.chaos_record import record_chaos


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    record_chaos("make chaos-spark", terminalreporter, exitstatus)
