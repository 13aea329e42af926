"""`levada pipeline sql`: what is refused without Spark, and leaves earlier runs as they were."""

import json
from pathlib import Path

import pytest
from tests.support.shell import Shell

from levada.pipelines.runs.progress import Progress
from levada.pipelines.runs.run import Run

QUERY = "SELECT shop FROM orders"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An earlier run of QUERY to `shops`."""
    run = Run(str(tmp_path), "sql-shops")
    with run.hold("sql", {"query": QUERY}, 1):
        run.record(Progress(rows=7), "finished", 2)
    checkpoint = Path(run.checkpoint)
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text("{}")
    arguments = {
        "query": QUERY,
        "to": "shops",
        "watermarks": {},
        "mode": "append",
        "schemas": {"orders": "shop string"},
    }
    (checkpoint / "levada-run.json").write_text(json.dumps(arguments))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["SELECT shop FROM ordrs", "--to", "shops"], 4, "no such topic: ordrs; did you mean orders?"),
        (["DROP TABLE orders", "--to", "shops"], 1, "only queries can be run"),
        (["select 1", "--to", "shops"], 1, "the query reads no topic; name one after FROM"),
        (["SELECT upper('a') AS shop UNION SELECT 'b'"], 1, "the query reads no topic"),
        (["SELECT shop FROM orders", "--to", "orders"], 1, "the query reads orders, the topic of its results"),
        (["SELECT shop FROM orders", "--to", "bad name"], 1, "'bad name' cannot be the"),
        (["SELECT amount FROM orders", "--to", "shops"], 1, f"other arguments (query was {QUERY})"),
        ([QUERY, "--to", "shops", "--mode", "update"], 1, "(mode was append)"),
        ([QUERY, "--to", "shops", "--name", "a/b"], 1, "cannot be the name of a run"),
        ([QUERY, "--to", "shops", "-o", "json"], 2, "--limit and -o are for a query without --to"),
        (["SELECT shop FROM ordrs"], 4, "no such topic: ordrs"),
        ([QUERY, "--key", "shop"], 2, "--key needs --to"),
        ([QUERY, "--name", "x"], 2, "--name needs --to"),
    ],
)  # fmt: skip
def test_a_query_is_refused_before_spark_starts(
    shell: Shell, home: Path, words: list[str], code: int, message: str
) -> None:
    shell("topic", "create", "orders")
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    refused = shell("pipeline", "sql", *words, environment={"LEVADA_PIPELINES": str(home)})
    assert (refused.code, refused.out) == (code, "")
    assert message in refused.err and "starting Spark" not in refused.err
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


def test_no_broker_is_refused_before_spark_starts(home: Path) -> None:
    refused = Shell("127.0.0.1:1")("pipeline", "sql", QUERY, "--to", "x", "--home", str(home))
    assert refused.code == 3
    assert "starting Spark" not in refused.err
