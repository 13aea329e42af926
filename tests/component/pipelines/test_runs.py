"""Pipeline runs without Spark: locks, status, progress."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from levada.pipelines.errors import LakeError, RunError
from levada.pipelines.lake.lake import check_local_lake
from levada.pipelines.runs import run as run_module
from levada.pipelines.runs.progress import Progress
from levada.pipelines.runs.run import Run, all_runs

HOLDER = """
import signal, sys
from levada.pipelines.runs.progress import Progress
from levada.pipelines.runs.run import Run
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
run = Run(sys.argv[1], "orders")
with run.hold("archive", {"topic": "orders"}, 1000):
    run.record(Progress(3, 500, 12.5, 7, 0.25), "running", 2000)
    print("held", flush=True)
    signal.sigwait([signal.SIGTERM])
    run.record(Progress(4, 600, 12.5, 0, 0.25), "stopped", 3000)
"""

OF_WRONG_KINDS = [
    '{"pipeline": "archive", "pid": "7", "started_ms": 1, "options": {}, "state": 5, "at_ms": 1, "why": ""}',
    '{"pipeline": "archive", "pid": 7, "started_ms": 1, "options": [], "state": "x", "at_ms": null, "why": ""}',
    '{"pipeline": ["x"], "pid": 7, "started_ms": 1, "options": {}, "state": "x", "at_ms": 1, "why": "", "rows": "a"}',
]


@pytest.fixture
def holder(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Another process that is the run `orders`."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_run_tells_others_how_far_it_is(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    status = Run(str(tmp_path), "orders").status()
    assert status is not None
    assert (status.state, status.pipeline, status.pid) == ("running", "archive", holder.pid)
    assert status.progress == Progress(3, 500, 12.5, 7, 0.25)
    assert [one.name for one in all_runs(str(tmp_path))] == ["orders"]


def test_no_pipeline_runs_twice_under_one_name(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with (
        pytest.raises(RunError, match="is already running"),
        Run(str(tmp_path), "orders").hold("archive", {}, 5000),
    ):
        pytest.fail("two hold it")


def test_a_run_ends_when_it_is_asked(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    run = Run(str(tmp_path), "orders")
    assert run.stop(30.0)
    status = run.status()
    assert status is not None and status.state == "stopped" and status.progress.rows == 600
    with pytest.raises(RunError, match="is not running"):
        run.stop(1.0)


def test_a_killed_run_is_not_taken_for_a_live_one(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    run = Run(str(tmp_path), "orders")
    status = run.status()
    assert status is not None and status.state == "killed" and not run.is_running()
    with run.hold("archive", {}, 9000):
        assert run.is_running()


def test_a_run_begins_while_others_ask_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks whether it runs holds its lock for a moment, and is not taken for a run."""
    run = Run(str(tmp_path), "orders")
    with run.hold("archive", {}, 1):
        pass
    asks = Run(str(tmp_path), "orders")._lock(fcntl.LOCK_SH)
    assert asks is not None and not run.is_running()
    monkeypatch.setattr(run_module, "time", SimpleNamespace(sleep=lambda _: os.close(asks)))
    with run.hold("archive", {}, 2):
        assert run.is_running()


def test_a_run_begins_while_its_former_self_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(str(tmp_path), "orders")
    with run.hold("archive", {}, 1):
        pass
    forgets = run._exclusive_lock()
    assert forgets is not None

    def removed(_: float) -> None:
        shutil.rmtree(run.directory)
        os.close(forgets)

    monkeypatch.setattr(run_module, "time", SimpleNamespace(sleep=removed))
    with run.hold("replay", {}, 2):
        assert run.is_running()


def test_a_name_belongs_to_one_pipeline(tmp_path: Path) -> None:
    run = Run(str(tmp_path), "orders")
    with run.hold("archive", {}, 1):
        pass
    with pytest.raises(RunError, match="another name with --name"), run.hold("replay", {}, 2):
        pytest.fail("its checkpoint is of another pipeline")


def test_a_start_that_fails_leaves_what_was_known(tmp_path: Path) -> None:
    run = Run(str(tmp_path), "orders")
    with run.hold("sql", {"query": "SELECT shop"}, 1):
        run.record(Progress(rows=141), "finished", 2)
    with run.hold("sql", {"query": "SELECT shpo"}, 3):
        run.record_failed_start("no column shpo", 4)
    status = run.status()
    assert status is not None and status.options == {"query": "SELECT shop"} and status.progress.rows == 141
    assert (status.state, status.error, status.started_ms, status.progress_ms) == (
        "failed",
        "no column shpo",
        1,
        4,
    )


def test_the_first_start_may_fail(tmp_path: Path) -> None:
    run = Run(str(tmp_path), "orders")
    with run.hold("sql", {"query": "SELECT shpo"}, 1):
        run.record_failed_start("no column shpo", 2)
    status = run.status()
    assert status is not None and (status.state, status.options) == ("failed", {"query": "SELECT shpo"})


def test_a_refused_start_keeps_a_checkpoint_without_its_files(tmp_path: Path) -> None:
    """Damaged files are removed by hand, and the next start goes on from the checkpoint."""
    run = Run(str(tmp_path), "orders")
    os.makedirs(run.checkpoint)
    with run.hold("archive", {}, 1):
        run.restore()
    assert os.path.exists(run.checkpoint) and run.status() is None


def test_a_start_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    run = Run(str(tmp_path), "orders")
    with run.hold("sql", {"query": "SELECT shop"}, 1):
        run.record(Progress(rows=141), "finished", 2)
    before = run.status()
    again = Run(str(tmp_path), "orders")
    with again.hold("sql", {"query": "SELECT shpo"}, 3):
        again.restore()
    assert before is not None and again.status() == before
    first = Run(str(tmp_path), "new")
    with first.hold("sql", {"query": "SELECT shpo"}, 1):
        first.restore()
    assert [one.name for one in all_runs(str(tmp_path))] == ["orders"] and not Path(first.directory).exists()


def test_a_run_is_forgotten_unless_it_runs(tmp_path: Path) -> None:
    run = Run(str(tmp_path), "orders")
    with run.hold("archive", {}, 1), pytest.raises(RunError, match="levada pipeline stop orders"):
        Run(str(tmp_path), "orders").forget()
    run.forget()
    assert run.status() is None and not list(tmp_path.iterdir())
    with run.hold("replay", {}, 2):  # the name is free
        pass


@pytest.mark.parametrize("file", ["run.json", "progress.json"])
@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"pipeline": "archive"}', *OF_WRONG_KINDS])
def test_a_damaged_run_hides_no_others(tmp_path: Path, file: str, text: str) -> None:
    runs = {name: Run(str(tmp_path), name) for name in ("damaged", "well")}
    for run in runs.values():
        with run.hold("archive", {}, 1):
            run.record(Progress(1, 5), "running", 2)
    (tmp_path / "damaged" / file).write_text(text)
    (tmp_path / "a-file").write_text("of somebody else")
    damaged, well = all_runs(str(tmp_path))
    assert (damaged.state, well.state) == ("damaged", "killed") and f"{file} is damaged" in damaged.error
    held = runs["damaged"].hold("archive", {}, 3)
    if file == "run.json":  # the checkpoint may be of another pipeline
        with pytest.raises(RunError, match="remove that file"), held:
            pytest.fail("nobody knows what it was")
    else:
        with held:
            assert runs["damaged"].status() != damaged


def test_a_run_whose_process_is_not_known_is_not_ended(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    (tmp_path / "orders" / "run.json").write_text("{}")
    with pytest.raises(RunError, match="process id is unknown"):
        Run(str(tmp_path), "orders").stop(1.0)
    assert holder.poll() is None


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "x" * 101, "a b"])
def test_names_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match="cannot be the name of a run"):
        Run(str(tmp_path), name)


def test_what_an_older_run_wrote_is_still_read(tmp_path: Path) -> None:
    """It knew of fewer things."""
    run = Run(str(tmp_path), "orders")
    with run.hold("archive", {}, 1):
        pass
    path = tmp_path / "orders" / "progress.json"
    status = json.loads(path.read_text())
    del status["open_rows"], status["query"]
    path.write_text(json.dumps(status))
    assert [one.progress for one in all_runs(str(tmp_path))] == [Progress()]


def test_a_lake_that_is_not_on_this_disk_is_missed_without_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with pytest.raises(LakeError, match="there is no lake at"):
        check_local_lake(str(tmp_path))
    check_local_lake("hdfs:/lake")  # only Spark can say
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    check_local_lake(str(tmp_path))  # it may be a path of HDFS
    monkeypatch.delenv("HADOOP_CONF_DIR")
    (tmp_path / "_delta_log").mkdir()
    check_local_lake(str(tmp_path))
