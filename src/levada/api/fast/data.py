"""The fast paths of Produce and Fetch: a connection repeats a request except for its records or its offset.

A request that the connection's cache does not hold is decoded and stored.
"""

from levada.api.data.fetch import FETCH, begin
from levada.api.data.parked_produce import PRODUCE
from levada.api.data.produce import append
from levada.api.registry import FastPath, fast_path
from levada.broker.broker import Broker
from levada.broker.partition.partition import READ_COMMITTED
from levada.errors import KafkaError
from levada.net.connection import Connection
from levada.wire.fast import fetch as fetch_codec
from levada.wire.fast import produce as produce_codec
from levada.wire.fast.fetch import NO_EPOCH


@fast_path("produce", produce_codec.VERSIONS)
def produce_fast_path() -> FastPath:
    """Append the records of a Produce."""

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
            cache = connection.caches[PRODUCE] = produce_codec.produce_cache()
        request = produce_codec.read_cached(cache, view, position, stop, version)
        append(broker, connection, view, request, version, correlation_id)
        return True

    return produce


@fast_path("fetch", fetch_codec.VERSIONS)
def fetch_fast_path() -> FastPath:
    """Respond to a Fetch, or leave it to the general path of `levada.api.data.fetch`."""

    def fetch(
        broker: Broker,
        connection: Connection,
        view: memoryview,
        position: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        cache = connection.caches.get(FETCH)
        if cache is None:
            cache = connection.caches[FETCH] = fetch_codec.fetch_cache()
        found = fetch_codec.read_cached(cache, view, position, stop, version)
        if found is None:
            request = fetch_codec.read_request(view, position, stop, version)
            if not request.rack or not broker.replication.selects_replicas:
                fetch_codec.store(cache, view, position, stop, version, request)
        else:
            cached, offset = found
            if _respond(broker, connection, cached, offset, correlation_id):
                return True
            request = cached.at(offset)
        begin(broker, connection, request, version, correlation_id)
        return True

    return fetch


def _respond(
    broker: Broker, connection: Connection, cached: fetch_codec.CachedFetch, offset: int, correlation_id: int
) -> bool:
    """Respond to a request if its min.bytes are there; False leaves everything else to `begin`."""
    committed = cached.isolation_level == READ_COMMITTED
    try:
        partition = broker.route(cached.topic, cached.partition, cached.version)
        partition.check_leader_epoch(cached.leader_epoch)
        if cached.last_fetched_epoch not in (NO_EPOCH, partition.leader_epoch):
            return False  # the log may diverge from what the consumer has read
        piece = partition.read(offset, min(cached.max_bytes, broker.config.fetch_max_bytes), True, committed)
        size = piece.size
        if piece.cold or size < cached.min_bytes or not size:
            return False
        aborted = partition.transactions.aborted(offset, size) if committed else None
    except KafkaError:
        return False
    partition.bytes_out += size
    offsets = (partition.high_watermark, partition.last_stable_offset, partition.log.log_start_offset)
    connection.respond(cached.write_response(correlation_id, *offsets, piece.views, size, aborted), size)
    return True
