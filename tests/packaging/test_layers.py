"""Import contracts of pyproject.toml hold, and find breaches."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
LINT = Path(sys.executable).with_name("lint-imports")


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    command = [str(LINT), "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    return subprocess.run(command, cwd=root, env={"PYTHONPATH": str(root / "src")}, capture_output=True, text=True)


def test_the_layers_hold() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("core/sly.py", "from levada.broker import faults"),
        ("core/sly.py", "import time"),
        ("wire/sly.py", "import asyncio"),
        ("wire/sly.py", "from levada.core import producers"),
        ("storage/sly.py", "from levada import net"),
        ("storage/sly.py", "import kio.schema.produce.v9"),
        ("sly/__init__.py", "from levada import model"),
    ],
)
def test_a_breach_is_found(tmp_path: Path, module: str, line: str) -> None:
    """A copy of the packages with one sly import must fail, also a new package without a place."""
    for package in sorted({path.parent for path in (ROOT / "src").rglob("*.py")}):
        (tmp_path / package.relative_to(ROOT)).mkdir(parents=True)
        (tmp_path / package.relative_to(ROOT) / "__init__.py").touch()
    for path in (ROOT / "src").rglob("*.py"):
        (tmp_path / path.relative_to(ROOT)).touch()
    sly = tmp_path / "src" / "levada" / module
    sly.parent.mkdir(exist_ok=True)
    sly.write_text(line + "\n")
    result = lint(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "sly" in result.stdout
