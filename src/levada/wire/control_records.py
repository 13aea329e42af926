"""Control records that end a transaction in a partition, in Kafka's format: commit or abort, and who wrote it.

A marker is a batch of one record. It takes an offset like any other, and readers never see it.
"""

from struct import Struct
from typing import NamedTuple

from levada.wire.batches import CONTROL_BIT, TRANSACTIONAL_BIT, decode, encode_pairs

ABORT = 0
COMMIT = 1
MARKER_ATTRIBUTES = CONTROL_BIT | TRANSACTIONAL_BIT

_KEY = Struct(">hh")  # version, type
_VALUE = Struct(">hi")  # version, coordinator epoch
_VERSION = 0


class Marker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that decided it."""

    committed: bool
    coordinator_epoch: int

    def key_and_value(self) -> tuple[bytes, bytes]:
        """The marker's record."""
        kind = COMMIT if self.committed else ABORT
        return _KEY.pack(_VERSION, kind), _VALUE.pack(_VERSION, self.coordinator_epoch)


def encode_marker(marker: Marker, producer_id: int, producer_epoch: int, timestamp: int) -> bytearray:
    """The batch that ends a producer's transaction."""
    return encode_pairs([marker.key_and_value()], timestamp, producer_id, producer_epoch, MARKER_ATTRIBUTES)


def decode_marker(batch: memoryview) -> Marker | None:
    """The marker in a control batch; None if it is a control batch of another kind."""
    for record in decode(batch):
        return read_marker(record.key, record.value)
    return None


def read_marker(key: bytes | None, value: bytes | None) -> Marker | None:
    """The marker that a control record holds. Later versions only add to the fields that are read here."""
    if key is None or value is None or len(key) < _KEY.size or len(value) < _VALUE.size:
        return None
    _, kind = _KEY.unpack_from(key)
    if kind not in (ABORT, COMMIT):
        return None
    _, coordinator_epoch = _VALUE.unpack_from(value)
    return Marker(kind == COMMIT, coordinator_epoch)
