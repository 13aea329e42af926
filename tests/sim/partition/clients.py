"""Simulated producers: up to five batches in flight, retries in order, a record of acknowledgements."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from levada.core.partition.producer_state import SEQUENCE_MAX
from levada.model import Codec
from levada.wire import batches

IN_FLIGHT_MAX = 5

Identity = tuple[int, int, int]  # producer id, epoch, base sequence: of each at most one batch may be in the log


@dataclass(slots=True)
class Batch:
    """What a client wants to have stored."""

    data: bytes
    count: int
    max_timestamp: int
    identity: Identity | None  # None without idempotence
    goal: int = -1  # acknowledged once the high watermark is here; -1 until a broker took it


@dataclass(slots=True)
class Producer:
    """One client. With id -1 it is not idempotent and retries nothing."""

    producer_id: int
    epoch: int = 0
    sequence: int = 0
    in_flight: list[Batch] = field(default_factory=list)  # oldest first

    def next_batch(self, random: Random, now_ms: int) -> Batch | None:
        """A new batch, unless too many are waiting for their answer."""
        if self.producer_id >= 0 and len(self.in_flight) >= IN_FLIGHT_MAX:
            return None
        count = random.choice((1, 1, 2, 5))
        records = list(_records(random, count, now_ms))
        idempotent = self.producer_id >= 0
        data = batches.encode(
            records,
            codec=random.choice((Codec.NONE, Codec.NONE, Codec.LZ4)),
            producer_id=self.producer_id,
            producer_epoch=self.epoch if idempotent else -1,
            base_sequence=self.sequence if idempotent else -1,
        )
        newest = max(record.timestamp for record in records)
        batch = Batch(bytes(data), count, newest, None)
        if idempotent:
            batch.identity = (self.producer_id, self.epoch, self.sequence)
            self.sequence = (self.sequence + count) & SEQUENCE_MAX
            self.in_flight.append(batch)
        return batch

    def start_over(self) -> None:
        """After OUT_OF_ORDER_SEQUENCE_NUMBER: give up what is in flight and go on in a new epoch."""
        self.epoch += 1
        self.sequence = 0
        self.in_flight.clear()


def _records(random: Random, count: int, now_ms: int) -> Iterator[batches.Record]:
    for number in range(count):
        timestamp = now_ms + random.randint(-50, 5)
        value = random.randbytes(random.choice((3, 20, 200, 700)))
        yield batches.Record(number, timestamp, random.choice((None, b"key")), value, ())
