"""A pipeline whose broker, topic or lake is refused before Spark starts, and the options that `status` shows."""

from pathlib import Path

from tests.support.shell import Shell

from levada.pipelines.runs.progress import Progress
from levada.pipelines.runs.run import Run


def test_a_refused_start_changes_no_run(shell: Shell, tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "runs"))
    archive = ("pipeline", "run", "archive", *home, "--to", str(tmp_path / "lake"), "--topic")
    missing = shell(*archive, "nope")
    assert missing.code == 4 and "no such topic: nope" in missing.err and "starting Spark" not in missing.err
    assert shell("pipeline", "list", *home, "-o", "json").json() == []

    run = Run(str(tmp_path / "runs"), "archive")
    with run.hold("archive", {"topic": "orders", "option": ["valueFormat=json"]}, 1):
        run.record(Progress(rows=7), "finished", 2)
    before = run.status()
    assert Shell("127.0.0.1:1")(*archive, "nope").code == 3
    assert run.status() == before
    shown = shell("pipeline", "status", "archive", *home)
    assert "topic: orders" in shown.out and "option: valueFormat=json" in shown.out


def test_a_missing_lake_names_the_pipeline_that_makes_one(shell: Shell, tmp_path: Path) -> None:
    shell("topic", "create", "orders")
    lake = tmp_path / "lake"
    missing = shell("pipeline", "run", "history", "--topic", "orders", "--lake", str(lake), "--home", str(tmp_path))
    assert missing.code == 1
    assert missing.err.splitlines()[-2:] == [
        f"error: there is no lake at {lake}",
        f"  try: levada pipeline run archive --topic TOPIC --to {lake}",
    ]
