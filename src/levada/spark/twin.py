"""The decoder in plain Python, one object for each record: the oracle of the compiled one, and nothing else."""

from collections.abc import Sequence

import pyarrow as pa

from levada.errors import KafkaError
from levada.spark.batch_walk import Walk, corrupt
from levada.spark.columns import HEADERS_TYPE, TIMESTAMP_MAX, TIMESTAMP_MIN, Columns, Filter
from levada.wire.batches import Record, decode


def decode_chunk(
    data: memoryview,
    start: int,
    end: int,
    aborted: Sequence[tuple[int, int]] = (),
    want_headers: bool = True,
    where: Filter | None = None,
) -> tuple[Columns, int]:
    """As `levada.spark.decoding.decode_chunk`, without a limit."""
    where = where or Filter()
    walk = Walk(data, start, end, aborted)
    rows: list[Record] = []
    types: list[int] = []
    for position, header in walk:
        try:
            records = decode(data[position : position + header.size])
        except KafkaError as error:
            raise corrupt(header.base_offset, error.detail) from None
        for record in records:
            if not header.base_offset <= record.offset <= header.last_offset:
                raise corrupt(header.base_offset, "the offset of a record is outside its batch")
            if not TIMESTAMP_MIN <= record.timestamp <= TIMESTAMP_MAX:
                raise corrupt(header.base_offset, "the timestamp of a record is beyond all times")
            if start <= record.offset < end and _is_wanted(record, where):
                rows.append(record)
                types.append(header.timestamp_type)
    columns = Columns(
        pa.array([row.key for row in rows], pa.binary()),
        pa.array([row.value for row in rows], pa.binary()),
        pa.array([row.offset for row in rows], pa.int64()),
        pa.array([row.timestamp for row in rows], pa.int64()),
        pa.array(types, pa.int8()),
        pa.array([_pairs(row) for row in rows], HEADERS_TYPE) if want_headers else None,
    )
    return columns, walk.next_offset


def _is_wanted(record: Record, where: Filter) -> bool:
    return (
        (where.key is None or record.key == where.key)
        and all(header in record.headers for header in where.headers)
        and where.timestamp_from <= record.timestamp < where.timestamp_to
    )


def _pairs(record: Record) -> list[dict[str, object]]:
    return [{"key": name, "value": value} for name, value in record.headers]
