"""What writers ask of a topic before they write to it; without numpy and pyarrow, since the driver asks as well."""

from functools import partial
from typing import TYPE_CHECKING

from levada.client.retry import RetryPolicy
from levada.errors import ErrorCode, KafkaError
from levada.spark import blocking

if TYPE_CHECKING:
    from levada.client.client import Client

_seen: set[tuple[object, str]] = set()  # brokers and topics that have answered this process


def partition_count(client: "Client", topic: str, policy: RetryPolicy) -> int:
    """How many partitions the topic has; a KafkaError that says what to do if there is none."""
    return blocking.call(client, partial(_partitions, client, topic), policy)


def look_for(client: "Client", topic: str, policy: RetryPolicy) -> None:
    """Raise what a user can mend before any task runs: no broker answers, the topic (if one is named) is not there.

    A process asks once: micro-batches must not wait for it, and what goes away later is found by tasks.
    """
    place = (tuple(client.bootstrap), topic)
    if place in _seen:
        return
    blocking.connect(client, policy)
    if topic:
        partition_count(client, topic, policy)
    _seen.add(place)


async def _partitions(client: "Client", topic: str) -> int:
    try:
        return len((await client.topic(topic, refresh=True)).partitions)
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            detail = f"topic {topic} does not exist; create it: levada topic create {topic}"
            raise KafkaError(error.code, detail) from None
        raise
