"""Data directories with missing files: the broker names what is missing and serves the rest."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import raw
from tests.support.broker import BrokerProcess

from levada.errors import ErrorCode

SETTINGS = {"log.segment.bytes": 1_000}
BATCHES = 30


def fill(server: BrokerProcess) -> None:
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("hurt", "whole")]
    with raw.Connection(server.bootstrap) as one:
        one.call("create_topics", 7, {"topics": topics, "timeout": 10_000})
        for topic in ("hurt", "whole"):
            for number in range(BATCHES):
                assert raw.produce(one, topic, raw.batch(b"%d" % number)).error_code == 0


def offsets(server: BrokerProcess, topic: str) -> list[int]:
    return [one.base_offset for one in raw.batches(server.bootstrap, topic)]


@pytest.mark.parametrize(
    ("gone", "stop"),
    [
        ("all logs", signal.SIGTERM),
        ("all logs", signal.SIGKILL),  # which may itself leave an index without its log, or no folder
        ("one log", signal.SIGTERM),
        ("the folder", signal.SIGTERM),
    ],
)
def test_what_was_taken_away_is_missed_until_it_is_back(tmp_path: Path, gone: str, stop: signal.Signals) -> None:
    """An empty log in its place would hide the loss, and give its offsets out again."""
    folder, away = tmp_path / "data" / "hurt-0", tmp_path / "away"
    away.mkdir()
    with BrokerProcess(tmp_path, SETTINGS) as server:
        fill(server)
        server.stop(signal.SIGTERM)
        if stop is signal.SIGKILL:
            server.start()
            server.stop(stop)
        logs = sorted(folder.glob("*.log"))
        assert len(logs) > 2
        taken = {"all logs": logs, "one log": logs[1:2], "the folder": [folder]}[gone]
        for path in taken:
            path.rename(away / path.name)
        for _ in range(2):  # it is not forgotten
            server.start()
            with raw.Connection(server.bootstrap) as one:
                assert raw.produce(one, "hurt", raw.batch(b"no")).error_code != ErrorCode.NONE
            assert offsets(server, "whole") == list(range(BATCHES))
            server.stop(signal.SIGTERM)
        log_text = server.log.read_text()
        assert "partition is offline" in log_text and "Traceback" not in log_text
        assert str(taken[0] if len(taken) == 1 else folder) in log_text
        for path in taken:
            (away / path.name).rename(path)
        server.start()
        assert offsets(server, "hurt") == list(range(BATCHES))


@pytest.mark.parametrize("place", ["", "below/it"])
def test_a_file_in_the_place_of_the_folder_is_reported_in_a_line(tmp_path: Path, place: str) -> None:
    file = tmp_path / "data"
    file.write_text("not a folder")
    command = [sys.executable, "-m", "levada", "start", "--data", str(file / place), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ") and str(file) in line and "not a directory" in line and "Errno" not in line
