"""`levada pipeline run archive`: what is refused before Spark starts."""

from pathlib import Path

import pytest
from tests.support.shell import Shell

from levada.cli.errors import EXIT_USAGE


@pytest.mark.parametrize("words", [("--format", "delta"), ()])
def test_a_delta_lake_is_no_table_on_the_command_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    """It would be a view that ends with the process."""
    lake = tmp_path / "lake"
    if not words:
        (lake / "_delta_log").mkdir(parents=True)
    given = ("--topic", "orders", "--to", str(lake), "--table", "orders", "--home", str(tmp_path))
    refused = Shell("127.0.0.1:1")("pipeline", "run", "archive", *given, *words)
    assert refused.code == EXIT_USAGE and refused.err.startswith("error: --table needs a Parquet lake")
