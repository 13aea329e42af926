"""The one shape between the log and Spark: columns of Arrow, and what may be asked of rows before they become some.

The decoder and its plain twin both speak it, so that they can be held against each other.
"""

from typing import Any, NamedTuple

import pyarrow as pa

# Exactly as Spark has the type of its headers column, so that nothing is converted.
HEADERS_TYPE: Any = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
TIMESTAMP_MIN = -(1 << 63)
TIMESTAMP_MAX = (1 << 63) - 1


class Columns(NamedTuple):
    """Records as columns of one length, ordered by offset."""

    key: Any  # pyarrow.BinaryArray, nullable
    value: Any  # pyarrow.BinaryArray, nullable
    offset: Any  # pyarrow.Int64Array
    timestamp: Any  # pyarrow.Int64Array, milliseconds since 1970
    timestamp_type: Any  # pyarrow.Int8Array: 0 CreateTime, 1 LogAppendTime
    headers: (
        Any | None
    )  # pyarrow.ListArray of struct<key: string, value: binary>, never null; None if not wanted

    @property
    def rows(self) -> int:
        """How many records these are."""
        return len(self.offset)


class Filter(NamedTuple):
    """Rows that are wanted: those to which all of it applies; evaluated while records are scanned."""

    key: bytes | None = None  # None: any key
    headers: tuple[tuple[str, bytes], ...] = ()  # each must be among the record's headers
    timestamp_from: int = TIMESTAMP_MIN  # milliseconds, inclusive
    timestamp_to: int = TIMESTAMP_MAX  # exclusive
