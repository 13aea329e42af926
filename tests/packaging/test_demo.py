"""The demo runs to its end and loses nothing, through the broker and through Spark."""

import os
import re
import signal
import subprocess
import sys

import pytest
from tests.packaging.conftest import Demo
from tests.support.demo import DEMO
from tests.support.svg import Drawing


@pytest.mark.slow
@pytest.mark.xdist_group("readme")
def test_the_demo_sums_up_and_ends_cleanly(demo: Demo) -> None:
    folder, process = demo
    assert process.returncode == 0, process.stdout + process.stderr
    assert "bootstrap.servers=127.0.0.1:" in process.stdout
    assert re.search(r"events sent, [0-9,]+ received: nothing lost", process.stdout)
    assert re.search(r"events sent, [0-9,]+ counted by Spark: nothing lost", process.stdout)
    (chart,) = re.findall(r"^chart: (.+)$", process.stdout, re.MULTILINE)
    assert Drawing((folder / chart).read_text()).ids("panel-0-line-.*")
    (page,) = re.findall(r"^page: (\S+)", process.stdout, re.MULTILINE)
    assert "Plotly.newPlot" in (folder / page).read_text()
    assert "The broker stopped cleanly" in process.stdout
    assert process.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_stays_until_it_is_stopped(number: int) -> None:
    """KEEP=1; and its broker ends with it, by either signal."""
    environment = {**os.environ, "DEMO_SECONDS": "1", "DEMO_RATE": "100", "KEEP": "1"}
    with subprocess.Popen(
        [sys.executable, str(DEMO)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        lines = iter(process.stdout.readline, "Ctrl-C ends it.\n")
        (bootstrap,) = re.findall(r"bootstrap\.servers=(\S+)", "".join(lines))
        command = [sys.executable, "-m", "levada", "topic", "list", "-q", "-b", bootstrap]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert {"ads", "clicks", "page-views", "scrolls", "searches"} <= set(listed.stdout.split())
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
        assert "The broker stopped cleanly" in rest
