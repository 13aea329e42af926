"""The fast path of Produce: requests that differ from an earlier one only in their records are not decoded again."""

from levada.api.produce import append
from levada.api.registry import FastPath, fast_path
from levada.broker.broker import Broker
from levada.net.connection import Connection
from levada.wire.fast.produce import VERSIONS, produce_cache, read_cached
from levada.wire.schema import messages

PRODUCE = messages.api_key("produce")


@fast_path("produce", VERSIONS)
def produce_fast_path() -> FastPath:
    """Every Produce takes it: one that the connection's cache does not hold is decoded and stored."""

    def produce(
        broker: Broker,
        connection: Connection,
        view: memoryview,
        position: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        cache = connection.caches.get(PRODUCE)
        if cache is None:
            cache = connection.caches[PRODUCE] = produce_cache()
        request = read_cached(cache, view, position, stop, version)
        append(broker, connection, view, request, version, correlation_id)
        return True

    return produce
