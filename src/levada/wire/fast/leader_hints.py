"""Encodes the leader hints of Produce and Fetch errors (KIP-951): who leads a partition, and where that broker is.

Both are tagged fields, which older clients skip.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from levada.wire.primitives import INT, encode_array_length, encode_nullable_string, encode_uvarint

_NODE_ENDPOINTS_TAG = 0
_LEADER = Struct(">iix")


class CurrentLeader(NamedTuple):
    """The leader of a partition and its epoch."""

    leader: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """Where a broker is."""

    node_id: int
    host: str
    port: int
    rack: str | None


def encode_current_leader(tag: int, leader: CurrentLeader) -> bytes:
    """Encode the tagged field of one partition."""
    return encode_tag(tag, _LEADER.pack(*leader))


def encode_node_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """Encode the tagged fields of a response: its node endpoints, if it has any."""
    if not endpoints:
        return b"\0"
    body = encode_array_length(len(endpoints), True)
    for node_id, host, port, rack in endpoints:
        body += INT.pack(node_id) + encode_nullable_string(host.encode(), True) + INT.pack(port)
        body += encode_nullable_string(None if rack is None else rack.encode(), True) + b"\0"
    return b"\1" + encode_tag(_NODE_ENDPOINTS_TAG, body)


def encode_tag(tag: int, value: bytes) -> bytes:
    """Encode one tagged field."""
    return encode_uvarint(tag) + encode_uvarint(len(value)) + value
