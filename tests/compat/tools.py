"""Runs Kafka's own command line tools."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.downloads import Unavailable, must_be_had
from tests.support.kafka_jars import java

TIMEOUT_S = 120
DUMP_LOG_SEGMENTS = "org.apache.kafka.tools.DumpLogSegments"


def run_tool(main: str, *arguments: str, stdin: str = "", fails: bool | None = False, stderr: bool = False) -> str:
    """What a tool prints; it must end with 0, or with `fails=True` with another code, or with `None` with any."""
    try:
        command = java(main, *arguments)
    except Unavailable as error:
        must_be_had("Kafka's tools", error)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    output = done.stdout + done.stderr
    assert fails in (None, done.returncode != 0), f"{main} ended with {done.returncode}: {output}"
    return output if stderr else done.stdout


def dump_log_segments(files: Sequence[Path], *options: str) -> str:
    return run_tool(DUMP_LOG_SEGMENTS, *options, "--files", ",".join(map(str, files)), stderr=True)
