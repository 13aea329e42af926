"""Finds the topics of a writer, creates missing ones if the broker does so, and counts their partitions.

Loads no numpy and pyarrow, as the driver uses it too.
"""

from functools import partial
from typing import TYPE_CHECKING

from levada.client.retry import UNKNOWN_TOPIC, RetryPolicy, retry
from levada.spark import blocking

if TYPE_CHECKING:
    from levada.client.client import Client

CREATION = RetryPolicy(UNKNOWN_TOPIC, 2_000)

_checked: set[tuple[object, str]] = set()  # bootstrap servers and topics


def partition_count(client: "Client", topic: str, policy: RetryPolicy, *, create: bool) -> int:
    """The number of partitions of a topic; a KafkaError with advice if it does not exist and is not created."""
    return blocking.call(client, partial(_created if create else _partitions, client, topic), policy)


def check_topic(client: "Client", topic: str, policy: RetryPolicy, *, create: bool) -> None:
    """Raise before any task runs if no broker responds, or the topic (if not empty) does not exist and is not created.

    A process checks once, so that micro-batches do not wait for it; tasks find what changes later.
    """
    key = (tuple(client.bootstrap), topic)
    if key in _checked:
        return
    blocking.connect(client, policy)
    if topic:
        partition_count(client, topic, policy, create=create)
    _checked.add(key)


async def _created(client: "Client", topic: str) -> int:
    """Let the broker create the topic (auto.create.topics.enable); some brokers respond before they have created it."""

    async def attempt() -> int:
        await client.metadata([topic], create=True)
        return await _partitions(client, topic)

    return await retry(client, attempt, CREATION)


async def _partitions(client: "Client", topic: str) -> int:
    return len((await client.topic(topic, refresh=True)).partitions)
