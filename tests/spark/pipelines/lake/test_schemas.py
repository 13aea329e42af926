"""Schemas of a lake: what can be merged is merged, nothing is lost, and what cannot is refused before it is written."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pyarrow.dataset import dataset
from tests.spark.support.lakes import archive_once, fill, fill_json, typed

from levada.pipelines.errors import LakeError
from levada.pipelines.lake.history import history
from levada.pipelines.lake.lake import open_lake
from levada.pipelines.lake.replay import replay
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMS = pytest.mark.parametrize("form", ["parquet", "delta"])
NARROW, WIDE = "a INT, s STRUCT<x: INT>", "a INT, s STRUCT<x: INT, y: STRING>, b STRING, l ARRAY<STRUCT<z: INT>>"


def narrow(number: int) -> dict[str, Any]:
    return {"a": number, "s": {"x": number}}


def wide(number: int) -> dict[str, Any]:
    return {"a": number, "s": {"x": number, "y": f"y{number}"}, "b": f"b{number}", "l": [{"z": number}]}


def listing(lake: Path) -> set[str]:
    return {str(path.relative_to(lake)) for path in lake.rglob("*")}


@FORMS
def test_a_column_that_came_later_is_never_lost(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, form: str
) -> None:
    """Old and new files are merged into one; a run with the old schema goes on after that."""
    lake, topic, again = tmp_path / "lake", broker.topic(), broker.topic(retention_ms=-1)
    added = [narrow(0), wide(1), wide(2), narrow(3)]
    for value, schema in zip(added, [NARROW, WIDE, WIDE, NARROW], strict=True):
        fill_json(broker, topic, [value])
        archive_once(spark, broker, lake, topic, lake_format=form, files_max=2, retention_ms=0, **typed(schema))
    assert len(list(lake.glob("topic=*/date=*/*.parquet"))) == 2
    fill_json(broker, topic, [wide(4)])  # in the log only
    for log_schema in (WIDE, NARROW):
        rows = history(topic, str(lake), bootstrap=broker.bootstrap, spark=spark, **typed(log_schema))
        found = {row.offset: json.loads(row.v) for row in rows.selectExpr("offset", "to_json(value) v").collect()}
        assert [found[number] for number in range(4)] == added
        assert found[4] == (wide(4) if log_schema == WIDE else narrow(4))
    if form == "delta":
        values = DeltaTable(lake).to_pyarrow_table(columns=["value"])["value"].to_pylist()
        assert sorted((value["a"], value["b"]) for value in values) == [
            (number, value.get("b")) for number, value in enumerate(added)
        ]
    assert replay(topic, str(lake), again, bootstrap=broker.bootstrap, spark=spark).wait(300)
    assert [json.loads(record.value or b"") for record in broker.records(again)] == added


def test_numbers_may_become_wider(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    lake, topic = tmp_path / "lake", broker.topic()
    for schema, value in [("i INT, f FLOAT", 1), ("i BIGINT, f DOUBLE", 1 << 40), ("i BIGINT, f DOUBLE", 2)]:
        fill_json(broker, topic, [{"i": value, "f": value + 0.5}])
        archive_once(spark, broker, lake, topic, files_max=2, retention_ms=0, **typed(schema))
    assert len(list(lake.glob("topic=*/date=*/*.parquet"))) == 1
    rows = history(topic, str(lake), bootstrap=broker.bootstrap, spark=spark, **typed("i INT, f FLOAT"))
    found = rows.orderBy("offset").selectExpr("value.*").collect()
    assert [tuple(row) for row in found] == [(1, 1.5), (1 << 40, (1 << 40) + 0.5), (2, 2.5)]


def test_readers_of_files_merge_their_schemas(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    """As docs/lakes.md says; without that they take the schema of one file."""
    lake, topic = tmp_path / "lake", broker.topic()
    for schema, value in ((NARROW, narrow(0)), (WIDE, wide(1))):
        fill_json(broker, topic, [value])
        archive_once(spark, broker, lake, topic, **typed(schema))
    path = f"{lake}/topic={topic}"
    files = dataset(path, partitioning="hive")
    each = [file.physical_schema for file in files.get_fragments()]
    merged = pa.unify_schemas([*each, files.schema], promote_options="permissive")
    rows = dataset(path, schema=merged, partitioning="hive").to_table().sort_by("offset").to_pylist()
    assert [row["value"]["b"] for row in rows] == [None, "b1"]
    assert {row["date"] for row in rows} == {"2025-10-09"}
    by_spark = spark.read.option("mergeSchema", "true").parquet(path).selectExpr("value.b")
    assert {row.b for row in by_spark.collect()} == {None, "b1"}


@pytest.mark.parametrize(
    ("form", "old", "new", "message"),
    [
        ("parquet", "a STRING", "a INT", "value.a .*STRING.*INT"),
        ("parquet", None, "a INT", "value .*BINARY.*STRUCT<a: INT>.*without valueFormat"),
        ("delta", "a INT", "a BIGINT", "value.a .*INT.*BIGINT.*Delta"),
    ],
)
def test_what_cannot_be_merged_is_refused_before_anything_is_written(
    spark: "SparkSession",
    broker: EmbeddedBroker,
    tmp_path: Path,
    form: str,
    old: str | None,
    new: str | None,
    message: str,
) -> None:
    lake, topic = tmp_path / "lake", broker.topic()
    before, after = (typed(schema) if schema else {} for schema in (old, new))
    fill_json(broker, topic, [{"a": 1, "s": {"x": 1}}])
    archive_once(spark, broker, lake, topic, lake_format=form, **before)
    kept = listing(lake)
    fill_json(broker, topic, [{"a": 2, "s": {"x": 1}}])
    with pytest.raises(LakeError, match=message):
        archive_once(spark, broker, lake, topic, **after)
    assert listing(lake) == kept
    archive_once(spark, broker, lake, topic, **before)
    assert history(topic, str(lake), bootstrap=broker.bootstrap, spark=spark, **before).count() == 2


def test_topics_of_a_parquet_lake_have_their_own_schemas(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """History names the options that it needs to read both lake and log."""
    lake, orders, lines = str(tmp_path / "lake"), broker.topic(), broker.topic()
    fill_json(broker, orders, [{"a": 1}])
    fill(broker, lines, 0, 3)
    archive_once(spark, broker, lake, orders, **typed("a INT"))
    with pytest.warns(UserWarning, match=r"value is \S+(?: INT>)? in one topic .* in another; read .* by itself"):
        archive_once(spark, broker, lake, lines)
    rows = history(orders, lake, bootstrap=broker.bootstrap, spark=spark, **typed("a INT"))
    assert [row.value.a for row in rows.collect()] == [1]
    assert history(lines, lake, bootstrap=broker.bootstrap, spark=spark).count() == 3
    with pytest.raises(LakeError, match=r"value is STRUCT<a: INT> in the lake .*valueFormat"):
        history(orders, lake, bootstrap=broker.bootstrap, spark=spark)
    with pytest.raises(LakeError, match=r"value is BINARY in the lake .*from_json"):
        history(lines, lake, bootstrap=broker.bootstrap, spark=spark, **typed("a INT"))


def test_malformed_values_are_kept_and_replayed(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    lake, topic, again = tmp_path / "lake", broker.topic(), broker.topic(retention_ms=-1)
    fill(broker, topic, 0, 2)
    fill_json(broker, topic, [{"a": 1}])
    archive_once(spark, broker, lake, topic, **typed("a INT"))
    rows = history(topic, str(lake), bootstrap=broker.bootstrap, spark=spark, **typed("a INT"))
    found = rows.orderBy("offset").selectExpr("string(malformed) m", "value.a").collect()
    assert [tuple(row) for row in found] == [("v0", None), ("v1", None), (None, 1)]
    assert replay(topic, str(lake), again, bootstrap=broker.bootstrap, spark=spark).wait(300)
    assert [record.value for record in broker.records(again)] == [b"v0", b"v1", b'{"a":1}']


JSON_KEYS = {"keyFormat": "json", "keySchema": "id INT"}
AVRO_LONGS = {"keyFormat": "avro", "keySchema": '"long"', "valueFormat": "avro", "valueSchema": '"long"'}


@pytest.mark.parametrize(
    ("options", "records", "sent"),
    [
        (JSON_KEYS, [(b'{"id": 7}', b"a"), (b"oops", b"b"), (None, b"c")], [(b'{"id":7}', b"a"), (b"oops", b"b")]),
        (AVRO_LONGS, [(b"\x0e", b"\x10"), (b"\xff", b"\x12"), (None, b"\xff")], [(b"7", b"8"), (b"\xff", b"9")]),
    ],
)
def test_typed_keys_are_replayed(
    spark: "SparkSession",
    broker: EmbeddedBroker,
    tmp_path: Path,
    options: dict[str, Any],
    records: list[tuple[bytes | None, bytes]],
    sent: list[tuple[bytes, bytes]],
) -> None:
    """Malformed keys and null as they were; plain types of Avro as text."""
    lake, topic, again = tmp_path / "lake", broker.topic(), broker.topic(retention_ms=-1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(30) == 0
    archive_once(spark, broker, lake, topic, **options)
    assert replay(topic, str(lake), again, bootstrap=broker.bootstrap, spark=spark).wait(300)
    assert [(record.key, record.value) for record in broker.records(again)] == [*sent, records[-1]]


def test_an_older_parquet_lake_goes_on(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Its commits have no schemas, and its files may have several."""
    lake, topic = tmp_path / "lake", broker.topic()
    for number, (value, schema) in enumerate([(narrow(0), NARROW), (wide(1), WIDE)]):
        fill_json(broker, topic, [value])
        archive_once(spark, broker, lake, topic, **typed(schema))
        assert len(list(lake.glob("topic=*/date=*/*.parquet"))) == number + 1
    for path in (lake / "_levada" / "commits").glob("*.json"):
        content = json.loads(path.read_text())
        del content["schemas"], content["time_ms"]
        path.write_text(json.dumps(content))
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def found() -> list[Any]:
        rows = history(topic, str(lake), bootstrap=broker.bootstrap, spark=spark, **typed(NARROW))
        return [json.loads(row.v) for row in rows.orderBy("offset").selectExpr("to_json(value) v").collect()]

    assert found() == [narrow(0), wide(1)]
    fill_json(broker, topic, [narrow(2)])
    archive_once(spark, broker, lake, topic, files_max=2, retention_ms=0, **typed(NARROW))
    assert len(list(lake.glob("topic=*/date=*/*.parquet"))) == 1
    assert found() == [narrow(0), wide(1), narrow(2)]


def test_an_older_delta_table_goes_on(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Its files may have columns that the table's schema does not have."""
    lake, topic, other = tmp_path / "lake", broker.topic(), tmp_path / "as-older-versions-wrote"
    fill_json(broker, topic, [wide(0)])
    archive_once(spark, broker, other, topic, **typed(WIDE))
    (file,) = other.glob("topic=*/date=*/*.parquet")
    directory = f"topic={topic}/{file.parent.name}"
    (lake / directory).mkdir(parents=True)
    (lake / directory / "old.parquet").write_bytes(file.read_bytes())
    columns = open_lake(spark, str(other)).schema(topic)
    assert columns is not None
    columns["value"].dataType = spark.createDataFrame([], f"value STRUCT<{NARROW}>").schema["value"].dataType
    from deltalake import CommitProperties, Schema, Transaction

    table = DeltaTable.create(lake, Schema.from_json(columns.json()), partition_by=["topic", "date"])
    parts = {"topic": topic, "date": file.parent.name.removeprefix("date=")}
    action = AddAction(f"{directory}/old.parquet", file.stat().st_size, parts, 0, True, '{"numRecords": 1}')
    offsets = CommitProperties(app_transactions=[Transaction(f"levada/{topic}/0", 1), Transaction("levada/writer", 1)])
    table.create_write_transaction([action], "append", table.schema(), ["topic", "date"], commit_properties=offsets)

    def found() -> list[Any]:
        rows = history(topic, str(lake), bootstrap=broker.bootstrap, spark=spark, **typed(NARROW))
        return [json.loads(row.v) for row in rows.orderBy("offset").selectExpr("to_json(value) v").collect()]

    assert found() == [wide(0)]
    fill_json(broker, topic, [narrow(1)])
    archive_once(spark, broker, lake, topic, files_max=1, **typed(NARROW))
    assert found() == [wide(0), narrow(1)]
    assert len(DeltaTable(lake).file_uris()) == 1
