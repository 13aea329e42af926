"""Commands and programs of the pages on Spark run in order, with the output shown there."""

import io
import json
import os
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.support.feeds import TIMEOUT_S, Feeds

from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[3]
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
ADDRESS = "127.0.0.1:9092"
BINARIES = str(Path(sys.executable).parent)


def blocks(page: str) -> list[tuple[str, str]]:
    """Kind and content of every block, in reading order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def shell(command: str, address: str) -> str:
    environment = os.environ | {
        "LEVADA_BOOTSTRAP": address,
        "PATH": f"{BINARIES}:{os.environ['PATH']}",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        ["bash", "-c", command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}"
    return done.stdout


@pytest.mark.parametrize(
    ("page", "folder", "programs"), [("spark.md", "/tmp/sales", 5), ("spark_writing.md", "/tmp/groceries", 3)]
)
def test_the_page_says_what_happens(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, page: str, folder: str, programs: int
) -> None:
    names: dict[str, Any] = {}
    printed = ""
    ran = 0
    for kind, content in blocks(page):
        text = content.replace(ADDRESS, broker.bootstrap).replace(folder, str(tmp_path))
        if kind == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                assert shell(command, broker.bootstrap) == shown
        elif kind == "python":
            output = io.StringIO()
            with redirect_stdout(output):
                exec(compile(text, page, "exec"), names)
            printed = output.getvalue().strip()
            ran += 1
        else:
            assert printed == content.strip()
    assert ran >= programs and names["spark"] is spark
    for _, content in blocks(page):
        for topic in re.findall(r"^created (\S+) \(", content, re.MULTILINE):
            Feeds(broker).delete(topic)


def test_the_example_shows_totals(
    spark: "SparkSession", broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic(partitions=2)
    for user, amount in (("ann", 2.5), ("ann", 1.5), ("bob", 3)):
        Feeds(broker).produce(topic, [json.dumps({"user": user, "amount": amount})], timestamp=60_000)
    Feeds(broker).produce(topic, ["oops"], partition=1, timestamp=60_000)
    monkeypatch.setattr(sys, "argv", ["totals", "-b", broker.bootstrap, "--topic", topic, "--once"])
    output = io.StringIO()
    with redirect_stdout(output):
        runpy.run_path(str(EXAMPLES / "spark_totals.py"), run_name="__main__")
    rows = [re.findall(r"[^|]+", line) for line in output.getvalue().splitlines() if "|1970" in line]
    found = [[part.strip() for part in row] for row in rows]
    minute = "1970-01-01 00:01:00"
    assert found == [[minute, "NULL", "0", "NULL"], [minute, "ann", "2", "4.0"], [minute, "bob", "1", "3.0"]]
