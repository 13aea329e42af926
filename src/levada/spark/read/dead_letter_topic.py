"""Sends values that are not of their format to the dead letter topic, with their origin in headers.

The task that reads a record sends it, so a task that is tried again sends it again: at least once.
"""

from typing import TYPE_CHECKING, Any

from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.spark import blocking
from levada.spark.read.options import ReadOptions

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.spark.formats.decoder import Columns

TOPIC, PARTITION, OFFSET = "levada.source.topic", "levada.source.partition", "levada.source.offset"


def send_dead_letters(options: ReadOptions, source: TopicPartition, columns: "Columns", bad: Any) -> None:
    """Send the records for which `bad` is true; all are stored when this returns."""
    client, topic = blocking.client(options.bootstrap, **options.client_options()), options.dead_letter_topic
    try:
        blocking.run(_send(client, topic, source, columns, bad))
    except KafkaError as error:
        is_missing = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        detail = f"it does not exist; create it with: levada topic create {topic}" if is_missing else error.detail
        why = f"option deadLetterTopic: nothing can be written to {topic}: {detail}"
        raise KafkaError(error.code, why) from None


async def _send(client: "Client", topic: str, source: TopicPartition, columns: "Columns", bad: Any) -> None:
    keys, values = columns.key.filter(bad).to_pylist(), columns.value.filter(bad).to_pylist()
    offsets, times = columns.offset.filter(bad).to_pylist(), columns.timestamp.filter(bad).to_pylist()
    assert columns.headers is not None, "rows are read with headers where there is a dead letter topic"
    headers = columns.headers.filter(bad).to_pylist()
    sent = []
    await client.topic(topic)  # a producer would create a missing topic
    async with client.producer() as producer:
        for key, value, offset, timestamp, own in zip(keys, values, offsets, times, headers, strict=True):
            origin = [
                (TOPIC, source.topic.encode()),
                (PARTITION, str(source.partition).encode()),
                (OFFSET, str(offset).encode()),
            ]
            kept = [(header["key"], header["value"]) for header in own]
            sent.append(await producer.send(topic, value, key=key, headers=kept + origin, timestamp=timestamp))
        await producer.flush()
    for acknowledged in sent:
        await acknowledged
