"""Runs the demo as a user does; one that takes too long is interrupted, with its broker and pipeline."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"
TIMEOUT_S = 500  # a demo that hangs; it takes minutes on a busy machine, and pytest ends after 600 s
ENDING_S = 60


def run_demo(folder: Path, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run the demo to its end."""
    command = [sys.executable, str(DEMO)]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.communicate(timeout=ENDING_S)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
