"""Encodes and decodes transaction markers: the control records that end a transaction in a partition.

A marker is a control batch of one record. It takes an offset like any other record; consumers never return it.
"""

from struct import Struct
from typing import NamedTuple

from levada.wire.batches import CONTROL_BIT, TRANSACTIONAL_BIT, decode, encode_key_values

ABORT = 0
COMMIT = 1
MARKER_ATTRIBUTES = CONTROL_BIT | TRANSACTIONAL_BIT

_KEY = Struct(">hh")  # version, type
_VALUE = Struct(">hi")  # version, coordinator epoch
_VERSION = 0


class Marker(NamedTuple):
    """A transaction marker: commit or abort, and the epoch of the coordinator that wrote it."""

    committed: bool
    coordinator_epoch: int

    def key_and_value(self) -> tuple[bytes, bytes]:
        """Encode the key and value of the marker's record."""
        control_type = COMMIT if self.committed else ABORT
        return _KEY.pack(_VERSION, control_type), _VALUE.pack(_VERSION, self.coordinator_epoch)


def encode_marker(marker: Marker, producer_id: int, producer_epoch: int, timestamp: int) -> bytearray:
    """Encode the control batch that ends a producer's transaction."""
    return encode_key_values([marker.key_and_value()], timestamp, producer_id, producer_epoch, MARKER_ATTRIBUTES)


def decode_marker(batch: memoryview) -> Marker | None:
    """Decode the marker of a control batch; None for control records of other types."""
    for record in decode(batch):
        return read_marker(record.key, record.value)
    return None


def read_marker(key: bytes | None, value: bytes | None) -> Marker | None:
    """Read the marker from a control record; None for other types. Later versions only append fields."""
    if key is None or value is None or len(key) < _KEY.size or len(value) < _VALUE.size:
        return None
    _, control_type = _KEY.unpack_from(key)
    if control_type not in (ABORT, COMMIT):
        return None
    _, coordinator_epoch = _VALUE.unpack_from(value)
    return Marker(control_type == COMMIT, coordinator_epoch)
