"""Logs: one line an event, with its fields, as text or as JSON, on stderr of the broker."""

import json
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

from tests.support.broker import BrokerProcess
from tests.support.raw import Connection


def test_a_broker_logs_json_on_stderr_and_talks_on_stdout(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"levada.log.format": "json"}) as server:
        host, _, port = server.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), 20) as one:
            one.sendall(struct.pack(">i", -1))
            assert one.recv(1) == b""
        server.stop(signal.SIGKILL)
        server.start()
        with Connection(server.bootstrap) as wire:
            assert wire.call("metadata", 12, {"topics": []}).brokers
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    (closed,) = [line for line in lines if line["event"] == "connection closed"]
    assert "socket.request.max.bytes" in closed["reason"] and closed["peer"].startswith("127.0.0.1:")


def test_logging_costs_no_start_up() -> None:
    """structlog and rich took a third of it."""
    code = "import sys, levada.server; print({'structlog', 'rich', 'prometheus_client'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
