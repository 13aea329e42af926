"""The tutorial runs from top to bottom, and its notebook is the same text."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools.notebook import NOTEBOOK, TUTORIAL, notebook


def test_the_notebook_is_the_tutorial() -> None:
    """If not: python -m tools.notebook"""
    assert json.loads(NOTEBOOK.read_text()) == notebook(TUTORIAL.read_text())


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(TUTORIAL)], cwd=tmp_path, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = map(int, re.findall(r"^(\d+) records", done.stdout, re.MULTILINE))
    assert 0 < first < second
    assert re.search(r"^page-views +[0-9,]+ +[0-9,]+$", done.stdout, re.MULTILINE)
    assert (tmp_path / "activity.svg").exists()
