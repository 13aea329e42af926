"""The accumulator: which batch a record joins."""

import asyncio

from levada.client.metadata import PartitionInfo, TopicInfo
from levada.client.producer.accumulator import RecordAccumulator
from levada.wire.batches import Record

TOPIC = TopicInfo("orders", None, False, (PartitionInfo(0, 1, 0, (1,), (1,), (), 0),), 0)
RECORD = Record(0, 0, None, b"value", ())


def test_a_batch_that_was_sent_takes_no_more_records() -> None:
    """A retry must carry the same records: the broker compares the first and the last sequence number."""

    async def main() -> list[int]:
        accumulator = RecordAccumulator(linger_ms=5, batch_bytes=1000, buffer_bytes=10_000, delivery_timeout_ms=1000)
        queue = accumulator.queue_for(TOPIC, None, None, 100)
        accumulator.append(queue, RECORD, 100)
        accumulator.append(queue, RECORD, 100)
        failed = queue.batches.popleft()
        failed.attempts += 1
        queue.batches.appendleft(failed)  # as the sender does before a retry
        accumulator.append(queue, RECORD, 100)
        return [len(batch.records) for batch in queue.batches]

    assert asyncio.run(main()) == [2, 1]
