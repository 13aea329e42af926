"""Tells clients of an error who leads the partition instead (KIP-951), so that they need no Metadata request."""

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from levada.broker.broker import Broker
from levada.errors import ErrorCode
from levada.model import NO_LEADER
from levada.wire.fast.leader_hints import CurrentLeader, NodeEndpoint

LEADER_CHANGED: Final = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))


def current_leader(broker: Broker, topic: bytes, index: int, by_id: bool) -> CurrentLeader | None:
    """Return the leader of a partition as a request names it; None if there is none."""
    image = broker.image
    name = image.topic_names.get(UUID(bytes=topic)) if by_id else topic.decode(errors="replace")
    found = image.topics.get(name) if name is not None else None
    if found is None or not 0 <= index < len(found.partitions):
        return None
    state = found.partitions[index]
    return None if state.leader == NO_LEADER else CurrentLeader(state.leader, state.leader_epoch)


def node_endpoints(broker: Broker, listener: str, leaders: Iterable[CurrentLeader | None]) -> list[NodeEndpoint]:
    """Return where these leaders are, as clients of a listener reach them."""
    found = []
    for node_id in dict.fromkeys(leader.leader for leader in leaders if leader is not None):
        one = broker.image.brokers.get(node_id)
        endpoint = next((at for at in one.endpoints if at.listener == listener), None) if one is not None else None
        if one is not None and endpoint is not None:
            found.append(NodeEndpoint(node_id, endpoint.host, endpoint.port, one.rack))
    return found
