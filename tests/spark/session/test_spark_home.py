"""Spark's Python processes start from what pip compiled."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from levada.spark.session.spark_home import linked_spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE = Path(pyspark.__file__).parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_home_is_made_once(cache: Path) -> None:
    home = linked_spark_home()
    assert home is not None and Path(home).is_relative_to(cache)
    assert (Path(home) / "jars").resolve() == (PACKAGE / "jars").resolve()
    inner = Path(home) / "python" / "lib" / "pyspark.zip" / "pyspark"
    assert inner.resolve() == PACKAGE.resolve()
    assert {path.name for path in inner.parent.parent.iterdir()} == {
        path.name for path in (PACKAGE / "python" / "lib").iterdir()
    }
    made = os.stat(home).st_ino
    assert linked_spark_home() == home and os.stat(home).st_ino == made
    assert [path.name for path in (cache / "levada").iterdir()] == [Path(home).name]


def test_what_the_user_set_stays(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert linked_spark_home() is None


def test_where_nothing_can_be_written_spark_starts_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert linked_spark_home() is None


def test_workers_import_compiled_files(spark: "SparkSession") -> None:
    def where(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [pyspark.__file__], "there": [os.path.exists(pyspark.__file__)]})

    (row,) = spark.range(1).coalesce(1).mapInArrow(where, "file string, there boolean").collect()
    assert row.there, row.file
