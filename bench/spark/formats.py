"""Rows per second of the formats of values, without and with a schema registry: `python -m bench.spark.formats`."""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType
from tests.spark.support.schema_registry import schema_registry

from levada.spark.registry.client import Schema, SchemaRegistry
from levada.spark.registry.client import schema_registry as registry_of
from levada.spark.registry.options import ColumnFormat, RegistryConnection
from levada.spark.registry.reading import column_decoder, schema_type
from levada.spark.registry.writing import ColumnEncoder
from levada.testing import EmbeddedBroker

ROWS = 50_000
RUNS = 6
FIELDS = [{"name": "user", "type": "string"}, {"name": "n", "type": "long"}, {"name": "x", "type": "double"}]
V1 = json.dumps({"type": "record", "name": "topLevelRecord", "fields": FIELDS})
V2 = json.dumps(
    {
        "type": "record",
        "name": "topLevelRecord",
        "fields": [*FIELDS, {"name": "note", "type": ["null", "string"], "default": None}],
    }
)
TOPIC = "bench"


def rows_per_second(work: Callable[[], Any]) -> float:
    """The best of some runs, by CPU time."""
    best = float("inf")
    for _ in range(RUNS):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return ROWS / best


def column(kind: DataType) -> Any:
    values = [{"user": f"user-{number}", "n": number, "x": number / 2} for number in range(ROWS)]
    return pa.array(values, to_arrow_type(kind, timezone="UTC"))


def report(name: str, work: Callable[[], Any]) -> None:
    print(f"{name:55} {rows_per_second(work):10,.0f}", flush=True)


def avro(connection: RegistryConnection, registry: SchemaRegistry) -> None:
    plain = ColumnFormat("value", "avro", schema=V1)
    framed = plain._replace(registry=connection)
    kind = schema_type(plain, Schema("AVRO", V1))
    rows = column(kind)
    encoders = {form: ColumnEncoder(form, registers=True) for form in (plain, framed)}
    for form, encoder in encoders.items():
        report(f"avro, encode, {'registry' if form.registry else 'no registry'}", lambda: encoder.encode(TOPIC, rows))  # noqa: B023
    values = {form: encoder.encode(TOPIC, rows) for form, encoder in encoders.items()}
    registry.register(f"{TOPIC}-value", "AVRO", V2)
    newer = ColumnEncoder(framed._replace(schema=V2), registers=True).encode(TOPIC, rows)
    mixed = pa.array([value for pair in zip(values[framed], newer, strict=True) for value in pair][:ROWS], pa.binary())
    arrow = to_arrow_type(kind, timezone="UTC")
    wide = to_arrow_type(schema_type(plain, Schema("AVRO", V2)), timezone="UTC")
    same = column_decoder(framed, Schema("AVRO", V1), arrow)
    resolving = column_decoder(framed, Schema("AVRO", V2), wide)
    without = column_decoder(plain, Schema("AVRO", V1), arrow)
    report("avro, decode, no registry", lambda: without.decode(values[plain]))
    report("avro, decode, registry, written with the reader's schema", lambda: same.decode(values[framed]))
    report("avro, decode, registry, resolved to a newer schema", lambda: resolving.decode(values[framed]))
    report("avro, decode, registry, two schemas in turns", lambda: resolving.decode(mixed))


def other(name: str, connection: RegistryConnection) -> None:
    kind = schema_type(ColumnFormat("value", "avro"), Schema("AVRO", V1))
    form = ColumnFormat("value", name, registry=connection)
    rows, encoder, topic = column(kind), ColumnEncoder(form, registers=True), f"{TOPIC}-{name}"
    report(f"{name}, encode, registry", lambda: encoder.encode(topic, rows))
    values = encoder.encode(topic, rows)
    reader = registry_of(connection).version(f"{topic}-value")
    decoder = column_decoder(form, reader, to_arrow_type(schema_type(form, reader), timezone="UTC"))
    report(f"{name}, decode, registry", lambda: decoder.decode(values))


def main() -> None:
    with (
        EmbeddedBroker() as broker,
        tempfile.TemporaryDirectory() as folder,
        schema_registry(broker.bootstrap, Path(folder)) as url,
    ):
        connection = RegistryConnection((url,))
        print(f"{'':55} rows/s of CPU")
        avro(connection, registry_of(connection))
        for name in ("json", "protobuf"):
            other(name, connection)


if __name__ == "__main__":
    main()
