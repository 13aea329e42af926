"""The README's commands run in order, with the output that it shows.

Numbers, ids and the widths of columns differ from run to run; everything else must agree. Only the port differs:
the broker takes a free one, and tools find it in LEVADA_BOOTSTRAP.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.packaging.conftest import Demo

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("readme")]

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PORT_SHOWN = "127.0.0.1:9092"
START = "levada start"
FREE_PORTS = ["--port", "0", "--set", "levada.metrics.listener=127.0.0.1:0"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def steps() -> list[tuple[str, str]]:
    """(command, output) of every console block, in reading order."""
    found: list[tuple[str, str]] = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def shape(text: str) -> list[str]:
    """The lines without what differs between two runs."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>", text)
    text = re.sub(r"(?<=cluster )[\w-]{22}", "<id>", text)
    text = re.sub(r"\d[\d.,:TZ]*", "0", text)
    lines = [re.sub(r"[\s\-─━═]+", " ", line).strip() for line in text.splitlines()]
    return [line for line in lines if line]


def environment(**more: str) -> dict[str, str]:
    """This one with our commands first in the path, and as a pipe sees them."""
    binaries = str(Path(sys.executable).parent)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA")}
    return inherited | {"PATH": f"{binaries}:{os.environ['PATH']}", "NO_COLOR": "1"} | more


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def greeting_and_address(folder: Path) -> Iterator[tuple[str, str]]:
    """The broker of `levada start`: what it said, and where it listens."""
    command = [*START.split(), *FREE_PORTS]
    with subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if "metrics" in line:
                break
        printed = "".join(lines)
        found = re.search(r"bootstrap\.servers=(\S+)", printed)
        assert found, printed
        yield printed, found[1]
        process.terminate()
        assert process.wait(timeout=30) == 0


def test_the_broker_greets_as_shown(greeting_and_address: tuple[str, str]) -> None:
    shown = dict(steps())[START]
    assert shape(greeting_and_address[0]) == shape(shown)


def test_the_commands_do_what_is_shown(folder: Path, greeting_and_address: tuple[str, str]) -> None:
    _, address = greeting_and_address
    ran = 0
    for command, shown in steps():
        if not re.match(r"levada (?!start)|.*\| levada ", command):
            continue
        result = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment(LEVADA_BOOTSTRAP=address),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert (result.returncode, shape(result.stdout)) == (0, shape(shown)), f"$ {command}\n{result.stdout}"
        ran += 1
    assert ran >= 3


def test_the_demo_says_what_is_shown(demo: Demo) -> None:
    """Lines may be left out in the README, with dots in their place; none may be made up."""
    shown = dict(steps())["make demo"]
    process = demo.process
    assert process.returncode == 0, process.stderr
    assert set(shape(shown)) - {"..."} <= set(shape(process.stdout)), process.stdout


def test_the_python_does_what_it_says(folder: Path, greeting_and_address: tuple[str, str]) -> None:
    _, address = greeting_and_address
    scripts = [block for block in blocks("python") if "def test_" not in block]
    assert scripts
    for number, script in enumerate(scripts):
        path = folder / f"script_{number}.py"
        path.write_text(script.replace(PORT_SHOWN, address))
        result = subprocess.run(
            [sys.executable, "-W", "error", path], cwd=folder, capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 0, result.stderr
        shown = re.findall(r"# prints (.*)", script)
        assert shape(result.stdout) == shape("\n".join(shown))


@pytest.mark.parametrize("document", ["README.md", "docs/testing.md"])
def test_the_tests_shown_pass(folder: Path, document: str) -> None:
    text = (ROOT / document).read_text()
    shown = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    tests = [block for block in shown if "def test_" in block]
    assert tests
    path = folder / f"test_{Path(document).stem.lower()}.py"
    path.write_text("import pytest\n\n" + "\n\n".join(tests))
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(path)]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_broker_without_pytest_does_what_is_shown() -> None:
    text = (ROOT / "docs" / "testing.md").read_text()
    (script,) = re.findall(r"^```python\n(import levada\.testing\n.*?)^```$", text, re.MULTILINE | re.DOTALL)
    command = [sys.executable, "-W", "error", "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_every_file_that_is_linked_exists() -> None:
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links {target}"


def test_every_module_that_the_documents_name_exists() -> None:
    for document in [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"]:
        for name in re.findall(r"`(?:src/levada/)?((?:[a-z]+/)*[a-z_]+\.py)`", document.read_text()):
            homes = [ROOT / "src" / "levada" / name, ROOT / name]
            assert any(home.exists() for home in homes), f"{document.name} names {name}"
