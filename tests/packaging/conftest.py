"""One run of the demo for the tests of its output."""

import os
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

import pytest
from tests.support.demo import run_demo


class Demo(NamedTuple):
    """The demo after its end, and the folder in which it ran."""

    folder: Path
    process: "CompletedProcess[str]"


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """Tests that use it have the mark `xdist_group("readme")`, so that they run in one process."""
    folder = tmp_path_factory.mktemp("demo")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DEMO", "KAFKA", "KEEP"))}
    return Demo(folder, run_demo(folder, inherited | {"NO_COLOR": "1"}))
