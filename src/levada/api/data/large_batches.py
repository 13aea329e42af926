"""A Produce with large batches whose records a thread checks, or recompresses (compression.type), as topics demand.

Small batches are checked and recompressed on the event loop, by `Partition.append`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, TypeAlias

from levada.api.data.parked_produce import Append, ParkedProduce, Prepare
from levada.broker.broker import Broker
from levada.broker.partition.validation import ValidationRules
from levada.errors import ErrorCode, KafkaError
from levada.model import Codec
from levada.net.connection import Connection
from levada.wire.batches import (
    CODEC_MASK,
    DECODED_BYTES_MAX,
    HEADER_BYTES,
    MAGIC,
    Record,
    crc_is_valid,
    iterate,
    read_header,
)
from levada.wire.compression import DecompressedTooLargeError
from levada.wire.fast.produce import ProduceRequest

YIELD_RECORDS: Final = 100  # decoded in a thread before the event loop may take the GIL
COPIED_BYTES_MAX: Final = 1 << 20  # with the GIL
RATIO_MAX: Final = 64  # records may decompress to so many times max.message.bytes

CheckedRules: TypeAlias = Mapping[tuple[bytes, int], ValidationRules]  # by topic and partition of their batches
NOT_CHECKED: Final[CheckedRules] = {}
Failures: TypeAlias = list[tuple[bytes, int, KafkaError]]
Fail: TypeAlias = Callable[[bytes, int, KafkaError], None]  # with topic and partition of an invalid batch


def park_and_prepare(
    broker: Broker,
    connection: Connection,
    view: memoryview,
    request: ProduceRequest,
    version: int,
    append: Append,
    fail: Fail,
    began: float | None,
) -> None:
    """Check and recompress all batches that need it, `fail` those that are invalid, then `append` the others.

    `append` gets the rules that were checked: a topic may have others by then.
    """
    rules: dict[tuple[bytes, int], ValidationRules] = {}
    for topic, index, _, _ in request.partitions:
        try:
            rules[topic, index] = broker.route(topic, index, version).rules
        except KafkaError as error:
            fail(topic, index, error)
    routed = request._replace(partitions=[part for part in request.partitions if part[:2] in rules])
    parked = ParkedProduce(broker, connection, view, routed, partial(append, checked=rules), began)
    failures: Failures = []
    limit_bytes = broker.config.socket_request_max_bytes
    now_ms = broker.clock.now_ms()

    def work() -> tuple[memoryview, ProduceRequest]:
        return _prepared(parked.view, parked.request, rules, now_ms, limit_bytes, failures)

    def done(result: Prepare) -> None:
        for failure in failures:
            fail(*failure)
        parked.resume(result)

    broker.run_in_thread(work, done)


def _prepared(
    view: memoryview,
    request: ProduceRequest,
    rules: CheckedRules,
    now_ms: int,
    limit_bytes: int,
    failures: Failures,
) -> tuple[memoryview, ProduceRequest]:
    """Return the valid batches with the codecs of their topics: at most as many bytes as a request may have."""
    valid, size, is_changed = [], 0, False
    for topic, index, start, end in request.partitions:
        received = view[start:end]
        try:
            batch = _prepare(rules[topic, index], received, now_ms)
            if size + len(batch) > limit_bytes:
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "the recompressed batches exceed a request")
        except KafkaError as error:
            failures.append((topic, index, error.without_traceback()))  # its frames refer to large buffers
            continue
        size += len(batch)
        is_changed |= batch is not received
        valid.append((topic, index, start, end, batch))
    if not is_changed:
        return view, request._replace(partitions=[part[:4] for part in valid])
    batches, parts = bytearray(), []
    for topic, index, _, _, batch in valid:
        at = len(batches)
        batches += batch
        parts.append((topic, index, at, len(batches)))
    return memoryview(batches), request._replace(partitions=parts)


def _prepare(rules: ValidationRules, batch: memoryview, now_ms: int) -> memoryview:
    """Check the records of a batch, and return it with the codec of its topic; an invalid batch is left to `append`.

    Raises CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, and InvalidRecordsError.
    """
    if not HEADER_BYTES <= len(batch) <= rules.message_bytes_max:
        return batch
    header = read_header(batch)
    codec = header.attributes & CODEC_MASK
    if header.size != len(batch) or header.magic != MAGIC or codec > Codec.ZSTD or not crc_is_valid(batch):
        return batch
    limit_bytes = min(RATIO_MAX * rules.message_bytes_max, DECODED_BYTES_MAX)
    is_late = header.max_timestamp - now_ms > rules.after_max_ms
    recompression = rules.recompression
    try:
        if rules.checks_records or is_late or header.record_count >= len(batch):
            records = iterate(batch, limit_bytes, copied_bytes_max=COPIED_BYTES_MAX)
            rules.check_records(_yielding_the_gil(records), now_ms)
        if recompression is None or codec == recompression.codec:
            return batch
        return recompression.in_thread(batch, limit_bytes)
    except DecompressedTooLargeError as error:  # producers split a batch that is too large, and retry a corrupt one
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, error.detail) from None


def _yielding_the_gil(records: Iterable[Record]) -> Iterator[Record]:
    for index, record in enumerate(records, start=1):
        if index % YIELD_RECORDS == 0:
            time.sleep(0)  # else the event loop gets the GIL 5 ms after each time that it releases it
        yield record
