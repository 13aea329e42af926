"""The examples of pipelines run against a real broker and print what they document.

They share one Spark, whose start would be most of their time.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.broker import BrokerThread

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
FEED = str(EXAMPLES / "feed.py")
FOLLOW = ("activity/follow.py", "devices/follow.py", "logs/follow.py", "lake/keep.py")
ONE_BY_ONE = """
import runpy, sys
for path in sys.argv[1:]:
    print("===", path, flush=True)
    runpy.run_path(path, run_name="__main__")
"""
TIMEOUT_S = 240


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each example prints, after the feeds that it asks for."""
    folder = tmp_path_factory.mktemp("examples")
    with BrokerThread(folder / "data") as server:
        environment = os.environ | {
            "LEVADA_BOOTSTRAP": server.bootstrap,
            "LEVADA_PIPELINES": str(folder / "runs"),
            "PYTHONIOENCODING": "utf-8",
        }

        def run(*arguments: str) -> str:
            done = subprocess.run(
                [sys.executable, *arguments],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        for stream in ("activity", "devices", "logs"):
            assert run(FEED, stream, "--count", "3000", "--rate", "200") == "3,000 events sent\n"
        printed = run("-c", ONE_BY_ONE, *(str(EXAMPLES / name) for name in FOLLOW))
    parts = re.split(rf"^=== {re.escape(str(EXAMPLES))}/(.*)\n", printed, flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert sorted(found) == sorted(FOLLOW)
    charts = {path.name for path in folder.glob("*.svg")}
    return found | {"charts": ", ".join(sorted(charts))}


def test_activity_is_followed_and_reported(printed: dict[str, str]) -> None:
    text = printed["activity/follow.py"]
    assert re.search(r"lag 0", text) and text.count('"views":') >= 3  # windows that are over, with their pages
    assert re.search(r"^page-views +[\d,]+ +[\d,]+$", text, re.MULTILINE)
    assert "Sessions:" in text and printed["charts"] == "activity.svg, devices.svg"


def test_devices_raise_alarms(printed: dict[str, str]) -> None:
    assert re.search(r"^\| ?device-\d+ ?\| +\d+ ?\|$", printed["devices/follow.py"], re.MULTILINE)


def test_logs_give_alerts_and_are_found(printed: dict[str, str]) -> None:
    text = printed["logs/follow.py"]
    assert '"service":"payments"' in text
    assert len(re.findall(r"\|payments\|ERROR\|upstream .* timed out after \d+ ms", text)) == 3


def test_a_lake_keeps_and_sends_again(printed: dict[str, str]) -> None:
    found = re.search(r"^sent again: (\d+) of (\d+)$", printed["lake/keep.py"], re.MULTILINE)
    assert found and found[1] == found[2] and int(found[1]) > 1000


def test_a_feed_ends_after_its_time_or_when_it_is_asked(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data") as server:
        feed = [sys.executable, "-u", FEED, "logs", "-b", server.bootstrap, "--rate", "100"]
        short = subprocess.run([*feed, "--seconds", "0.5"], capture_output=True, text=True, timeout=TIMEOUT_S)
        assert re.fullmatch(r"\d+ events sent\n", short.stdout), short.stderr
        endless = subprocess.Popen(feed, stdout=subprocess.PIPE, text=True)
        while server.call(lambda: server.partition("logs").log.log_end_offset) <= int(short.stdout.split()[0]):
            assert endless.poll() is None
        endless.send_signal(signal.SIGINT)
        assert endless.communicate(timeout=TIMEOUT_S)[0] == "ended\n" and endless.returncode == 0
