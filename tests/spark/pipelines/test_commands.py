"""`levada pipeline` as a user types it: what it prints, keeps and refuses.

Commands run in this process, on the Spark that the tests share; one is a process of its own, to be interrupted.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from tests.spark.support.feeding import feed, made, results
from tests.support.broker import free_port
from tests.support.svg import Drawing
from tests.support.waiting import until

from levada.cli.main import run
from levada.pipelines.flows import samples
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT_S = 120
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pipeline(
    spark: "SparkSession",
    broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Command:
    """`levada pipeline ...` in an empty directory: its code, and what it writes to both outputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEVADA_BOOTSTRAP", broker.bootstrap)
    monkeypatch.setenv("LEVADA_PIPELINES", str(tmp_path / "runs"))
    monkeypatch.setenv("NO_COLOR", "1")

    def typed(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(["pipeline", *words])
        output = capfd.readouterr()
        assert "Traceback" not in output.err
        return code, output.out, output.err

    return typed


@pytest.fixture
def readings(broker: EmbeddedBroker) -> str:
    topic = broker.topic()
    feed(broker, made(samples.devices, 600, 100), {"readings": topic})
    return topic


def test_a_run_ends_with_all_there_was_and_is_listed(pipeline: Command, broker: EmbeddedBroker, readings: str) -> None:
    code, _, expected = pipeline("run", "devices", "--topic", readings, "--window", "10 seconds", "--to", "d", "--once")
    assert code == 0 and "pipeline devices has processed all records" in expected
    assert "the last windows are still open" in expected
    progress = [line for line in expected.splitlines() if line.startswith("batch ")]
    assert len(progress) == len(set(progress)) >= 1  # each batch is told once
    assert {one["device"] for one in results(broker, "d-statistics")} >= {"device-0000", "device-0059"}
    _, out, _ = pipeline("list", "-o", "jsonl")
    (row,) = map(json.loads, out.splitlines())
    assert (row["name"], row["state"], row["lag"]) == ("devices", "finished", 0)
    _, out, _ = pipeline("status", "devices")
    assert "window: 10 seconds" in out
    assert pipeline("stop", "devices")[0] == 1
    code, _, expected = pipeline("run", "activity", "--topic", readings, "--name", "devices")
    assert code == 1 and "devices is the name of a run of devices" in expected
    code, _, expected = pipeline("run", "devices", "--topic", readings, "--to", "other", "--once")
    assert code == 1 and "--name" in expected
    assert "started with other arguments (to was d; window was 10 seconds)" in expected
    there = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
    assert not [name for name in there if name.startswith("other")]
    _, out, _ = pipeline("status", "devices")
    assert "window: 10 seconds" in out and "failed: run devices was started with other arguments" in out
    assert pipeline("forget", "devices")[0] == 1  # it cannot ask
    assert pipeline("forget", "devices", "--yes")[0] == 0
    assert pipeline("status", "devices")[0] == 4


def test_a_topic_goes_to_a_lake_and_comes_back(
    pipeline: Command, broker: EmbeddedBroker, readings: str, tmp_path: Path
) -> None:
    lake, again = str(tmp_path / "lake"), broker.topic()
    assert pipeline("run", "archive", "--topic", readings, "--to", lake, "--once")[0] == 0
    other = ["--topic", readings, "--to", str(tmp_path / "other"), "--format", "delta", "--once"]
    assert pipeline("run", "archive", *other)[0] == 0  # under the same name: a lake knows itself where it ends
    query = "SELECT count(*) n FROM history"
    for place in (lake, str(tmp_path / "other")):
        code, out, _ = pipeline("run", "history", "--topic", readings, "--lake", place, "--sql", query)
        assert code == 0 and "|600|" in out
    ask = ["run", "history", "--topic", readings, "--lake", lake, "--sql", query, "--to"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    for place, code in (("result", 0), ("result", 0), ("mine", 1), ("lake", 1), ("lake/result", 1)):
        assert (place, pipeline(*ask, str(tmp_path / place))[0]) == (place, code)
    assert os.listdir(tmp_path / "mine") == ["notes"] and "result" not in os.listdir(lake)
    (tmp_path / "result" / "notes").touch()
    assert pipeline(*ask, str(tmp_path / "result"))[0] == 1 and (tmp_path / "result" / "notes").exists()
    assert pipeline("run", "replay", "--topic", readings, "--lake", lake, "--to", again)[0] == 0
    assert len(broker.records(again)) == 600
    _, _, expected = pipeline("run", "history", "--topic", readings, "--lake", lake, "--sql", "SELECT x FROM history")
    assert re.search(r"error: .*`x` cannot be resolved.*\(line 1, position 7\)$", expected.strip().splitlines()[-1])
    report = ["report", "devices", "--topic", readings, "--lake", lake]
    code, _, expected = pipeline(*report, "--chart", "d.png")
    assert code == 2 and "'d.png' must end in .svg" in expected and "starting Spark" not in expected
    code, out, expected = pipeline(*report, "--chart", "d.svg", "--chart", "d.html")
    assert code == 0 and out.startswith("Measures:\n") and "Most often silent: none" in out
    assert Drawing((tmp_path / "d.svg").read_text()).ids("panel-0") and str(tmp_path / "d.svg") in expected
    assert "Plotly.newPlot" in (tmp_path / "d.html").read_text() and str(tmp_path / "d.html") in expected
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "d.html",
        "d.svg",
        "lake",
        "mine",
        "other",
        "result",
        "runs",
    ]  # nothing of Spark's


def test_lines_are_searched_by_level_and_time(pipeline: Command, broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    feed(broker, made(samples.service_logs, 300, 100), {"logs": topic})
    code, out, _ = pipeline(
        "search", "--topic", topic, "--level", "error", "--since", "2026-11-15T12:00:20Z", "-o", "jsonl"
    )
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and found
    assert all(row["level"] == "ERROR" and row["at"] >= "2026-11-15 12:00:20" for row in found)


def test_a_query_that_fails_at_work_says_why(pipeline: Command, readings: str) -> None:
    query = f"SELECT value, raise_error('too hot') AS e FROM `{readings}`"
    code, _, expected = pipeline("sql", query, "--to", "never", "--once")
    assert code == 1 and expected.strip().endswith("error: pipeline sql-never failed: too hot")
    _, out, _ = pipeline("status", "sql-never")
    assert "failed: pipeline sql-never failed: too hot" in out


def test_a_query_without_a_topic_is_printed(pipeline: Command, readings: str) -> None:
    """As a table or JSON, bounded, and no run of it remains."""
    query = (
        f"SELECT measure, count(*) AS n, string(null) AS missing FROM `{readings}` GROUP BY measure ORDER BY measure"
    )
    code, out, _ = pipeline("sql", query, "-o", "json")
    rows = json.loads(out)
    assert code == 0 and sum(row["n"] for row in rows) == 600
    assert all(row["missing"] is None for row in rows)
    code, out, expected = pipeline("sql", query, "--limit", "1")
    assert code == 0 and len(out.splitlines()) == 2
    assert out.splitlines()[0].split() == ["MEASURE", "N", "MISSING"]
    assert "there are more than 1 rows" in expected
    code, out, expected = pipeline("sql", f"SELECT nosuch FROM `{readings}`")
    assert (code, out) == (1, "") and "`nosuch` cannot be resolved" in expected
    assert json.loads(pipeline("list", "-o", "json")[1]) == []


def test_a_query_that_spark_refuses_leaves_runs_alone(pipeline: Command, readings: str) -> None:
    query = f"SELECT device FROM `{readings}`"
    assert pipeline("sql", query, "--to", "devices-seen", "--once")[0] == 0
    _, before, _ = pipeline("status", "sql-devices-seen", "-o", "json")
    assert json.loads(before)["state"] == "finished"
    for words in (
        [f"SELECT nosuch FROM `{readings}`", "--to", "devices-seen", "--once"],
        [query, "--to", "devices-seen", "--schema", f"{readings}=device int", "--once"],
    ):
        assert pipeline("sql", *words)[0] == 1
        _, after, _ = pipeline("status", "sql-devices-seen", "-o", "json")
        assert {**json.loads(after), "seconds_ago": 0} == {**json.loads(before), "seconds_ago": 0}
    assert pipeline("sql", f"SELECT nosuch FROM `{readings}`", "--to", "new", "--once")[0] == 1
    assert pipeline("status", "sql-new")[0] == 4


WRONG: list[tuple[list[str], int, str]] = [
    (["run", "device"], 2, "no such pipeline: device; did you mean devices?"),
    (["run", "devices", "--topic", "nosuch"], 4, "no such topic: nosuch"),
    (["run", "devices", "--gap", "soon"], 2, "'soon' is not a duration"),
    (["run", "devices", "--driver-memory", "lots"], 2, "'lots' is not an amount of memory"),
    (["report", "devices", "--conf", "fs.s3a.endpoint=x"], 2, "'fs.s3a.endpoint' is not a setting of Spark"),
    (["run", "devices", "--name", "a/b"], 1, "cannot be the name of a run"),
    (
        ["run", "devices", "--topic", "READINGS", "--option", "nosuch=1"],
        1,
        "error: there is no option nosuch\n",
    ),
    (
        ["run", "archive", "--topic", "READINGS", "--to", "/proc/lake", "--once", "--name", "n"],
        1,
        "/proc/lake",
    ),
    (
        ["run", "replay", "--topic", "t", "--lake", "x", "--to", "t", "--from", "noon"],
        2,
        "'noon' is not a time",
    ),
    (["run", "replay", "--topic", "t", "--lake", "./no", "--to", "t"], 1, "there is no lake at ./no"),
    (["run", "history", "--topic", "READINGS", "--lake", "./no"], 1, "there is no lake at ./no"),
    (["report", "devices", "--topic", "READINGS", "--lake", "./no"], 1, "there is no lake at ./no"),
    (["search", "--topic", "READINGS", "--lake", "./no"], 1, "there is no lake at ./no"),
    (["search", "--topic", "READINGS", "--level", "loud"], 2, "'loud' is not one of"),
    (["sql", "SELECT a FROM t", "--to", "x"], 4, "no such topic: t"),
    (["status", "nosuch"], 4, "there is no run of the name nosuch"),
]


def test_what_is_wrong_is_reported_in_a_sentence(pipeline: Command, readings: str) -> None:
    for words, code, expected in WRONG:
        ended, _, output = pipeline(*(readings if word == "READINGS" else word for word in words))
        assert (ended, expected in output) == (code, True), f"{words}: {ended} {output}"
        assert "no lake" not in expected or "starting Spark" not in output
    wrong = ["--schema", f"{readings}=a strin"]
    ended, _, output = pipeline("sql", f"SELECT a FROM `{readings}`", "--to", "x", *wrong)
    assert ended == 1 and "'a strin' is not a list of columns" in output
    nobody = f"127.0.0.1:{free_port()}"
    ended, _, output = pipeline("run", "devices", "-b", nobody)
    assert ended == 3 and f"cannot connect to {nobody}" in output and "starting Spark" not in output


def test_what_can_be_checked_is_refused_before_spark_starts(pipeline: Command, readings: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("of somebody else")
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    archive = ["archive", "--topic", readings, "--to"]
    for words, expected in [
        ([*archive, "file"], f"cannot create a lake at file: {tmp_path}/file is a file, and a lake is a directory"),
        ([*archive, "file/below"], f"{tmp_path}/file is a file, and a lake is a directory"),
        (
            [*archive, "table", "--format", "parquet"],
            "table is a lake in the format delta and cannot change to parquet",
        ),
        ([*archive, "lake", "--option", "valueformat2=json"], "there is no option valueformat2"),
        ([*archive, "lake", "--option", "valueFormat=xml"], "option valueFormat: "),
        (
            ["replay", "--topic", readings, "--lake", "table", "--to", "t", "--option", "delivery=x"],
            "option delivery: ",
        ),
        (["history", "--topic", readings, "--lake", "table", "--option", "nosuch=1"], "there is no option nosuch"),
        (["devices", "--topic", readings, "--option", "maxOffsetsPerTrigger=x"], "option maxOffsetsPerTrigger: "),
    ]:
        code, _, output = pipeline("run", *words)
        assert (code, expected in output, "starting Spark" in output) == (1, True, False), f"{words}: {code} {output}"


def interruptible(*words: str) -> "subprocess.Popen[str]":
    """`levada pipeline ...` as a process of its own, with a Spark of its own."""
    command = [str(Path(sys.executable).parent / "levada"), "pipeline", *words]
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True
    )


def test_ctrl_c_ends_a_run_and_there_is_no_second_one_of_it(pipeline: Command, readings: str, tmp_path: Path) -> None:
    with interruptible("run", "devices", "--topic", readings) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline()]
        assert lines[0].startswith("starting Spark for devices")
        code, _, expected = pipeline("run", "devices", "--topic", readings)
        assert code == 1 and "pipeline devices is already running" in expected
        while not lines[-1].startswith("batch "):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all that are in it
        _, rest = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    lines = [*"".join(lines[1:]).splitlines(), *rest.splitlines()]
    output = [line for line in lines if not line.startswith(("batch ", "the first batch takes"))]
    assert output == [
        "pipeline devices is running; to stop it: Ctrl-C, or levada pipeline stop devices",
        "stopping ...",
        "pipeline devices has stopped",
    ]
    _, out, _ = pipeline("status", "devices", "-o", "json")
    assert json.loads(out)["state"] == "stopped"
    assert os.listdir(tmp_path) == ["runs"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_abandons_the_start_of_spark(pipeline: Command, readings: str, number: signal.Signals) -> None:
    """It is acknowledged while standard error still goes to Spark's log; the JVM does not outlive the command."""
    with interruptible("run", "devices", "--topic", readings) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("starting Spark for devices")
        until(lambda: "org.apache.spark.deploy.SparkSubmit" in " ".join(commands(process.pid)))
        os.kill(process.pid, number)
        _, rest = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, rest.splitlines()) == (0, ["stopping ...", "pipeline devices has stopped"])
    until(lambda: commands(process.pid) == [], lambda: commands(process.pid), timeout_s=5.0)
    _, out, _ = pipeline("status", "devices", "-o", "json")
    assert json.loads(out)["state"] == "stopped"


def commands(session: int) -> list[str]:
    """The command lines of the processes of a session, which its first process has started."""
    listed = subprocess.run(["ps", "-ww", "-o", "args=", "-s", str(session)], capture_output=True, text=True)
    return [line for line in listed.stdout.splitlines() if not line.endswith("<defunct>")]
