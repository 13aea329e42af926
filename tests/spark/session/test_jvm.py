"""The JVM that a session starts ends when its start is interrupted."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from pyspark import java_gateway

from levada.spark.session.jvm import jvm_killed_at_interrupt


def test_a_signal_while_the_process_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start_and_interrupt(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(*arguments, **options))
        os.kill(os.getpid(), signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(java_gateway, "Popen", start_and_interrupt)
    gateway: Any = java_gateway
    with pytest.raises(KeyboardInterrupt), jvm_killed_at_interrupt():
        gateway.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (process,) = started
    assert process.returncode == -signal.SIGKILL
    assert gateway.Popen is start_and_interrupt
