"""Checks the topics of a writer and counts their partitions; loads no numpy and pyarrow, as the driver uses it too."""

from functools import partial
from typing import TYPE_CHECKING

from levada.client.retry import RetryPolicy
from levada.spark import blocking

if TYPE_CHECKING:
    from levada.client.client import Client

_checked: set[tuple[object, str]] = set()  # bootstrap servers and topics


def partition_count(client: "Client", topic: str, policy: RetryPolicy) -> int:
    """The number of partitions of a topic; a KafkaError with advice if it does not exist."""
    return blocking.call(client, partial(_partitions, client, topic), policy)


def check_topic(client: "Client", topic: str, policy: RetryPolicy) -> None:
    """Raise before any task runs if no broker responds, or the topic (if not empty) does not exist.

    A process checks once, so that micro-batches do not wait for it; tasks find what changes later.
    """
    key = (tuple(client.bootstrap), topic)
    if key in _checked:
        return
    blocking.connect(client, policy)
    if topic:
        partition_count(client, topic, policy)
    _checked.add(key)


async def _partitions(client: "Client", topic: str) -> int:
    return len((await client.topic(topic, refresh=True)).partitions)
