"""Writes the rows of a task: joins small Arrow batches, groups them by topic, encodes and sends them."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from levada.client.data import ProducerIdentity
from levada.clock import SystemClock
from levada.errors import ErrorCode, KafkaError
from levada.model import Codec
from levada.spark.blocking import run
from levada.spark.formats.encoder import (
    InvalidRow,
    ProducerIdAndEpoch,
    Rows,
    StickyPartition,
    assign_partitions,
    encode_rows,
)
from levada.spark.registry.writing import column_encoders
from levada.spark.write.options import ColumnError, WriteOptions
from levada.spark.write.sender import Sender
from levada.spark.write.topics import partition_count

if TYPE_CHECKING:
    from levada.client.client import Client

PIECE_BYTES = 1 << 20  # encoded at once; a larger Arrow batch is encoded by itself, which saves a copy
PARTITION_BYTES = 16 << 10  # encoded at once for each partition, if there are many,
PIECE_BYTES_MAX = 16 << 20  # up to this
PIECE_ROWS = 100_000

# What a user can do about an error of the broker.
ADVICE = {
    ErrorCode.MESSAGE_TOO_LARGE: "a record or batch is larger than max.message.bytes of the topic: raise that, or "
    "lower option kafka.batch.size if single records are small",
    ErrorCode.INVALID_RECORD: "the topic rejects a record; a compacted topic needs keys",
    ErrorCode.INVALID_TIMESTAMP: "the column timestamp is further from now than message.timestamp.before.max.ms or "
    "message.timestamp.after.max.ms of the topic allow",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "the user has no permission to write to it",
}


class RowWriter:
    """Writes the Arrow batches of one task with one producer, in a transaction if it has a transactional id."""

    def __init__(
        self, client: "Client", options: WriteOptions, columns: tuple[str, ...], producer: ProducerIdentity
    ) -> None:
        self._client = client
        self._options = options
        self._columns = columns
        self._encoders = column_encoders(options) if options.formats else []
        self._codec = Codec[options.compression.upper()]
        self._clock = SystemClock()
        self._counts: dict[str, int] = {}  # partitions by topic
        self._sticky: dict[str, StickyPartition] = {}
        self._sequences: dict[str, dict[int, int]] = {}
        _, producer_id, epoch = producer
        self._identity = ProducerIdAndEpoch(producer_id, epoch, transactional=bool(producer.transactional_id))
        self._sender = run(_create_sender(client, producer, options))
        self.rows = 0

    @property
    def has_sent(self) -> bool:
        """Whether a broker may have received any of it."""
        return self._sender.has_sent

    def write(self, batches: Iterable[Any]) -> None:
        """Write all rows; they are stored when this returns."""
        try:
            for piece in pieces(batches, self._piece_bytes):
                self.rows += piece.num_rows
                for topic, part in self._by_topic(piece):
                    self._write(topic, part)
            run(self._sender.flush())
        except BaseException as failure:
            run(self._sender.stop())
            if isinstance(failure, KafkaError) and not isinstance(failure, InvalidRow) and failure.code in ADVICE:
                failure.add_note(ADVICE[failure.code])
            raise

    def _piece_bytes(self) -> int:
        """How much to encode at once, so that record batches are not small in a topic of many partitions."""
        return min(max(PIECE_BYTES, PARTITION_BYTES * max(self._counts.values(), default=1)), PIECE_BYTES_MAX)

    def _by_topic(self, piece: Any) -> Iterator[tuple[str, Any]]:
        if self._options.topic:
            yield self._options.topic, piece
            return
        column = piece.column("topic")
        if column.null_count:
            raise ColumnError("a row has no topic: its column topic is null, and option topic is not set")
        names = pc.unique(column).to_pylist()
        for name in names:
            yield name, piece if len(names) == 1 else piece.filter(pc.equal(column, name))

    def _write(self, topic: str, piece: Any) -> None:
        if not piece.num_rows:
            return
        columns = {name: piece.column(name) for name in self._columns}
        for encoder in self._encoders:
            columns[encoder.column] = encoder.encode(topic, columns[encoder.column])
        rows = Rows(
            columns.get("key"),
            columns["value"],
            columns.get("headers"),
            columns.get("timestamp"),
            columns["partition"].cast(pa.int32()) if "partition" in columns else None,
        )
        count = self._counts.get(topic)
        if count is None:
            policy, create = self._options.retry_policy, self._options.creates_topics
            count = self._counts[topic] = partition_count(self._client, topic, policy, create=create)
            self._sticky[topic] = StickyPartition()
            self._sequences[topic] = {}
        partitions = assign_partitions(rows, count, self._sticky[topic])
        batches = list(
            encode_rows(
                rows,
                partitions,
                now_ms=self._clock.now_ms(),
                codec=self._codec,
                max_batch_bytes=self._options.batch_bytes,
                identity=self._identity,
                sequences=self._sequences[topic],
            )
        )
        run(self._sender.send(topic, batches))


def pieces(batches: Iterable[Any], piece_bytes: Callable[[], int]) -> Iterator[Any]:
    """Join Spark's small Arrow batches into larger ones; column names in lower case."""
    gathered: list[Any] = []
    size = rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        gathered.append(batch)
        size += batch.nbytes
        rows += batch.num_rows
        if size >= piece_bytes() or rows >= PIECE_ROWS:
            yield _join(gathered)
            gathered, size, rows = [], 0, 0
    if gathered:
        yield _join(gathered)


def _join(batches: list[Any]) -> Any:
    names = [name.lower() for name in batches[0].schema.names]
    if len(batches) == 1:
        return batches[0].rename_columns(names)
    columns = [pa.concat_arrays([batch.column(index) for batch in batches]) for index in range(len(names))]
    return pa.RecordBatch.from_arrays(columns, names=names)


async def _create_sender(client: "Client", producer: ProducerIdentity, options: WriteOptions) -> Sender:
    return Sender(client, producer.transactional_id or None, delivery_timeout_ms=options.delivery_timeout_ms)
