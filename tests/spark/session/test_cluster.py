"""Executors in processes of their own: local-cluster, and a standalone master and worker."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.support import cluster_program, submit_program
from tests.spark.support.feeds import Feeds
from tests.spark.support.standalone import BIN, standalone_cluster, with_java
from tests.support.downloads import Unavailable, must_be_had, run

from levada.testing import EmbeddedBroker

ROOT = Path(__file__).resolve().parents[3]
ROWS = 200
KERNELS = "import levada.spark.kernels.decode, levada.spark.kernels.encode, levada.spark.kernels.walk"
DONE_S = 540  # a program takes half a minute; much more if other work has all cores


def filled_topic(broker: EmbeddedBroker) -> str:
    """A topic with ROWS records in each of two partitions."""
    topic = broker.topic(partitions=2)
    for partition in range(2):
        Feeds(broker).produce(topic, range(partition * ROWS, (partition + 1) * ROWS), partition)
    return topic


def run_on(master: str, broker: EmbeddedBroker, folder: Path) -> dict[str, int]:
    """What the program says of a topic with known records."""
    command = [sys.executable, cluster_program.__file__, master, broker.bootstrap, filled_topic(broker), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DONE_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_two_executors_on_one_machine(broker: EmbeddedBroker, tmp_path: Path) -> None:
    found = run_on("local-cluster[2,1,1024]", broker, tmp_path)
    assert found == {"batch": 2 * ROWS, "stream": 2 * ROWS, "executors": 2}


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone_cluster(tmp_path_factory.mktemp("standalone")) as address:
        yield address


def test_a_cluster_of_separate_processes(standalone: str, broker: EmbeddedBroker, tmp_path: Path) -> None:
    found = run_on(standalone, broker, tmp_path)
    assert found == {"batch": 2 * ROWS, "stream": 2 * ROWS, "executors": 1}


class Environment:
    """A virtual environment with what Levada needs in a task; Levada's wheel; both together as an archive."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.python = folder, folder / "env" / "bin" / "python"
        uv = [sys.executable, "-m", "uv"]
        run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)], folder)
        (wheel,) = folder.glob("levada-*.whl")
        self.zip = wheel.rename(folder / "levada.zip")
        run([*uv, "venv", "-q", "--python", sys.executable, "env"], folder)
        install = [*uv, "pip", "install", "-q", "--python", str(self.python), "-c", "requirements/dev.txt"]
        run([*install, "-r", "requirements/core.txt", "fastavro", "numba", "pyarrow"], ROOT)

    def archive(self) -> Path:
        """The environment with Levada and its compiled kernels."""
        (installed,) = (self.folder / "env" / "lib").glob("python3*/site-packages")
        run([sys.executable, "-m", "zipfile", "-e", str(self.zip), str(installed)], self.folder)
        run([str(self.python), "-c", KERNELS], self.folder)
        run(["tar", "-C", "env", "--use-compress-program", "gzip -1", "-cf", "env.tar.gz", "."], self.folder)
        return self.folder / "env.tar.gz"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    try:
        return Environment(tmp_path_factory.mktemp("environment"))
    except Unavailable as reason:
        must_be_had("an environment for executors", reason)


def submit(master: str, broker: EmbeddedBroker, folder: Path, python: str, *flags: str) -> dict[str, object]:
    """The result of the program under `spark-submit`, with workers of this Python."""
    copy = broker.topic()
    own = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    variables |= {"PYSPARK_PYTHON": python}
    settings = ["spark.driver.host=127.0.0.1", "spark.executor.memory=512m", "spark.cores.max=2"]
    command = [str(BIN / "spark-submit"), "--master", master, *flags]
    command += [word for setting in settings for word in ("--conf", setting)]
    command += [submit_program.__file__, broker.bootstrap, filled_topic(broker), copy]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DONE_S, cwd=folder, env=with_java(variables))
    assert done.returncode == 0, done.stdout + done.stderr[-5_000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    assert (found["read"], len(broker.records(copy))) == (2 * ROWS, 2 * ROWS)
    return found


def test_executors_get_the_package_with_py_files(
    standalone: str, broker: EmbeddedBroker, environment: Environment, tmp_path: Path
) -> None:
    """Their Python has the dependencies. Spark finds no data source in such files: `session()` registers it."""
    found = submit(standalone, broker, tmp_path, str(environment.python), "--py-files", str(environment.zip))
    assert "levada.zip" in str(found["executor"])


def test_executors_get_a_whole_environment_with_archives(
    standalone: str, broker: EmbeddedBroker, environment: Environment, tmp_path: Path
) -> None:
    archive = environment.archive()
    (tmp_path / "env").symlink_to(archive.parent / "env")  # the driver plans with the Python of the same path
    found = submit(standalone, broker, tmp_path, "./env/bin/python", "--archives", f"{archive}#env")
    assert "/work/app-" in str(found["executor"])
