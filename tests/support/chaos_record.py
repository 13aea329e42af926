"""Records whole runs of `make chaos` and `make chaos-spark`, those with CHAOS=full in which every test passed."""

import os

import pytest
from bench import fault_runs


def record_chaos(target: str, reporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """Call at the end of a pytest run with these tests only."""
    passed = reporter.stats.get("passed", [])
    if os.environ.get("CHAOS") != "full" or exitstatus != 0 or len(passed) < reporter._numcollected:
        return
    seconds = sum(report.duration for report in passed)
    fault_runs.record(target, int(os.environ.get("SEED", "1")), seconds, f"all {len(passed)} tests")
    reporter.write_line(f"recorded in {fault_runs.RECORD} and {fault_runs.DOCS}")
