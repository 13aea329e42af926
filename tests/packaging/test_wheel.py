"""The wheel alone, in an empty environment, is a working broker."""

import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]

ROOT = Path(__file__).resolve().parents[2]
DOWNLOAD_BYTES_MAX = 14_000_000  # the core stays near 10 MB; the rest is room for other Pythons and platforms


def run(*command: str | Path, stdin: str = "") -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KAFKA"))}
    result = subprocess.run(command, input=stdin, cwd="/", env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (path,) = folder.glob("levada-*.whl")
    return path


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked dependencies of the core, as an index would send them."""
    folder = tmp_path_factory.mktemp("wheels")
    lock = ROOT / "requirements" / "core.txt"
    run(sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "-r", lock, "-d", folder)
    return folder


@pytest.fixture(scope="module")
def binaries(wheel: Path, downloads: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("empty") / "venv"
    run(sys.executable, "-m", "venv", folder)
    pip = folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index"
    run(*pip, "--find-links", downloads, wheel)
    return folder / "bin"


@pytest.fixture
def bootstrap(binaries: Path, tmp_path: Path) -> Iterator[str]:
    """A broker of the installed wheel, started as a user would; it must stop cleanly on SIGTERM."""
    command = [str(binaries / "levada"), "start", "--port", "0", "--data", str(tmp_path / "data")]
    command += ["--set", "levada.metrics.listener="]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        seen = ""
        for line in process.stdout:
            seen += line
            if match := re.search(r"127\.0\.0\.1:(\d+)", line):
                break
        else:
            pytest.fail(f"the broker ended without saying where it listens:\n{seen}")
        yield match[0]
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(timeout=30) == 0, seen + rest
        assert "Traceback" not in seen + rest


def test_the_wheel_is_typed_and_holds_only_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "levada/py.typed" in names
    tops = {re.sub(r"-.*\.", ".", name.partition("/")[0]) for name in names}
    assert tops == {"levada", "levada.dist-info", "pyspark_levada"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_core_is_a_small_download(wheel: Path, downloads: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in [wheel, *downloads.iterdir()]}
    assert sum(sizes.values()) < DOWNLOAD_BYTES_MAX, sizes
    assert all(name.endswith(".whl") for name in sizes), "something must be compiled by the user"


def test_an_installed_broker_answers(binaries: Path, bootstrap: str) -> None:
    levada = binaries / "levada"
    run(levada, "topic", "create", "orders", "-b", bootstrap)
    run(levada, "produce", "orders", "-b", bootstrap, stdin="one\ntwo\n")
    assert run(levada, "consume", "orders", "-b", bootstrap, "-e") == "one\ntwo\n"
