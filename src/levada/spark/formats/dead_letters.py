"""Values that are not of the format they should have: to a topic of their own, with where they came from.

They are sent by the task that reads them, so a task that is tried again sends them again: at least once.
"""

from typing import TYPE_CHECKING, Any

from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.spark import blocking
from levada.spark.formats.columns import Columns
from levada.spark.read.options import ReadOptions

if TYPE_CHECKING:
    from levada.client.client import Client

TOPIC, PARTITION, OFFSET = "levada.source.topic", "levada.source.partition", "levada.source.offset"


def send_dead_letters(options: ReadOptions, place: TopicPartition, columns: Columns, bad: Any) -> None:
    """Send the records of which `bad` is true; all are stored when this returns."""
    client, topic = blocking.client(options.bootstrap, **options.client_options()), options.dead_letter_topic
    try:
        blocking.run(_send(client, topic, place, columns, bad))
    except KafkaError as error:
        is_missing = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        detail = f"it does not exist; create it: levada topic create {topic}" if is_missing else error.detail
        why = f"option deadLetterTopic: nothing can be written to {topic}: {detail}"
        raise KafkaError(error.code, why) from None


async def _send(client: "Client", topic: str, place: TopicPartition, columns: Columns, bad: Any) -> None:
    keys, values = columns.key.filter(bad).to_pylist(), columns.value.filter(bad).to_pylist()
    offsets, times = columns.offset.filter(bad).to_pylist(), columns.timestamp.filter(bad).to_pylist()
    assert columns.headers is not None, "read with headers, so that they are kept"
    headers = columns.headers.filter(bad).to_pylist()
    stored = []
    await client.topic(topic)  # a producer would make one that is not there
    async with client.producer() as producer:
        for key, value, offset, timestamp, own in zip(keys, values, offsets, times, headers, strict=True):
            origin = [
                (TOPIC, place.topic.encode()),
                (PARTITION, str(place.partition).encode()),
                (OFFSET, str(offset).encode()),
            ]
            kept = [(header["key"], header["value"]) for header in own]
            stored.append(
                await producer.send(topic, value, key=key, headers=kept + origin, timestamp=timestamp)
            )
        await producer.flush()
    for answer in stored:
        await answer
