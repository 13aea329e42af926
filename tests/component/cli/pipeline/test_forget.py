"""`levada pipeline forget`: one run by its name, or all that ended long ago."""

from pathlib import Path

import pytest
from tests.support.shell import Shell

from levada.clock import SystemClock
from levada.pipelines.runs.progress import Progress
from levada.pipelines.runs.run import Run, all_runs

DAY_MS = 24 * 3_600_000


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Runs that ended 100, 40 and 2 days ago."""
    for days in (100, 40, 2):
        run = Run(str(tmp_path), f"ended-{days}")
        with run.hold("archive", {}, 1):
            run.record(Progress(rows=7), "stopped", SystemClock().now_ms() - days * DAY_MS)
    return tmp_path


def forget(home: Path, *words: str) -> tuple[int | None, str, set[str]]:
    """Forget runs: exit code, notices, and the runs that are left."""
    ended = Shell("127.0.0.1:1")("pipeline", "forget", *words, "--home", str(home))
    return ended.code, ended.err, {run.name for run in all_runs(str(home))}


def test_runs_that_ended_long_ago_are_forgotten(home: Path) -> None:
    running = Run(str(home), "running")
    with running.hold("archive", {}, 1):
        running.record(Progress(), "running", 1)
        code, notices, left = forget(home, "--older-than", "30", "--yes")
    assert code == 0 and left == {"ended-2", "running"}
    assert notices.splitlines() == ["run ended-100 is forgotten", "run ended-40 is forgotten"]


def test_a_killed_run_is_forgotten_only_by_its_name(home: Path) -> None:
    """It may have waited for records for days, and was killed just now."""
    killed = Run(str(home), "killed")
    with killed.hold("archive", {}, 1):
        killed.record(Progress(), "running", 1)
    assert forget(home, "--older-than", "3", "--yes")[::2] == (0, {"ended-2", "killed"})
    assert forget(home, "killed", "--yes") == (0, "run killed is forgotten\n", {"ended-2"})


def test_nothing_is_forgotten_without_a_choice(home: Path) -> None:
    everything = {"ended-2", "ended-40", "ended-100"}
    assert forget(home, "--older-than", "30")[::2] == (1, everything)  # it cannot ask
    assert forget(home, "--older-than", "300", "--yes")[::2] == (0, everything)
    assert forget(home)[::2] == (2, everything)
    assert forget(home, "ended-2", "--older-than", "1")[::2] == (2, everything)
    assert forget(home, "ended-2", "--yes")[::2] == (0, everything - {"ended-2"})
