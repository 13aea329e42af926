"""A Produce with batches that a thread recompresses, since their topics have another codec (compression.type).

Small batches are recompressed on the event loop, by `Partition.append`.
"""

from collections.abc import Callable

from levada.api.data.parked_produce import Append, ParkedProduce, Prepare
from levada.broker.broker import Broker
from levada.broker.partition.recompression import Recompression
from levada.errors import ErrorCode, KafkaError
from levada.net.connection import Connection
from levada.wire.fast.produce import ProduceRequest

# Topic and partition of a batch that cannot be decompressed.
Fail = Callable[[bytes, int, KafkaError], None]
Failures = list[tuple[bytes, int, KafkaError]]


def park_and_recompress(
    broker: Broker,
    connection: Connection,
    view: memoryview,
    request: ProduceRequest,
    version: int,
    append: Append,
    fail: Fail,
    began: float | None,
) -> None:
    """Recompress all batches that need it, `fail` those that cannot be decompressed, then `append` the others."""
    parked = ParkedProduce(broker, connection, view, request, append, began)
    recompressions = [_recompression(broker, topic, index, version) for topic, index, _, _ in request.partitions]

    failures: Failures = []
    limit_bytes = broker.config.socket_request_max_bytes

    def work() -> tuple[memoryview, ProduceRequest]:
        return _recompressed(parked.view, parked.request, recompressions, limit_bytes, failures)

    def done(result: Prepare) -> None:
        for failure in failures:
            fail(*failure)
        parked.resume(result)

    broker.run_in_thread(work, done)


def _recompression(broker: Broker, topic: bytes, index: int, version: int) -> Recompression | None:
    try:
        return broker.route(topic, index, version).rules.recompression
    except KafkaError:
        return None  # `append` fails with the same error


def _recompressed(
    view: memoryview,
    request: ProduceRequest,
    recompressions: list[Recompression | None],
    limit_bytes: int,
    failures: Failures,
) -> tuple[memoryview, ProduceRequest]:
    """Return the batches with the codecs of their topics: at most as many bytes as a request may have."""
    batches = bytearray()
    parts = []
    for (topic, index, start, end), recompression in zip(request.partitions, recompressions, strict=True):
        batch = view[start:end]
        if recompression is not None:
            try:
                batch = recompression.in_thread(batch)
                if len(batches) + len(batch) > limit_bytes:
                    raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "the recompressed batches exceed a request")
            except KafkaError as error:
                failures.append((topic, index, error.without_traceback()))  # its frames refer to large buffers
                continue
        at = len(batches)
        batches += batch
        parts.append((topic, index, at, len(batches)))
    return memoryview(batches), request._replace(partitions=parts)
