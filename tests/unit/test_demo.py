"""The demo runs to its end and loses nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


@pytest.mark.slow
def test_the_demo_sums_up_and_ends_cleanly() -> None:
    environment = {**os.environ, "DEMO_SECONDS": "2", "DEMO_RATE": "500", "KEEP": ""}
    process = subprocess.run(
        [sys.executable, str(DEMO)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "bootstrap.servers=127.0.0.1:" in process.stdout
    assert "nothing lost" in process.stdout
    assert "The broker stopped cleanly" in process.stdout
    assert process.stderr == ""
