"""The fast path of Fetch: a consumer of one partition that reads on sends the same request but for the offset."""

from levada.api.fetch import begin
from levada.api.registry import FastPath, fast_path
from levada.broker.broker import Broker
from levada.broker.partition.partition import READ_COMMITTED
from levada.errors import KafkaError
from levada.net.connection import Connection
from levada.wire.fast.fetch import VERSIONS, read_request
from levada.wire.fast.prefix_cache import Repeated, Repeats
from levada.wire.schema import messages

FETCH = messages.api_key("fetch")


@fast_path("fetch", VERSIONS)
def fetch_fast_path() -> FastPath:
    """Every Fetch takes it: what the connection's cache does not know is decoded and learnt."""

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
            cache = connection.caches[FETCH] = Repeats()
        found = cache.find(view, position, stop, version)
        if found is None:
            request = read_request(view, position, stop, version)
            cache.learn(view, position, stop, version, request)
        else:
            known, offset = found
            if _read_on(broker, connection, known, offset, correlation_id):
                return True
            request = known.at(offset)
        begin(broker, connection, request, version, correlation_id)
        return True

    return fetch


def _read_on(
    broker: Broker, connection: Connection, known: Repeated, offset: int, correlation_id: int
) -> bool:
    """Respond to a request if its min.bytes are there; False leaves everything else to `begin`."""
    committed = known.isolation_level == READ_COMMITTED
    try:
        partition = broker.route(known.topic, known.partition, known.version)
        partition.check_leader_epoch(known.leader_epoch)
        piece = partition.read(offset, min(known.max_bytes, broker.config.fetch_max_bytes), True, committed)
    except KafkaError:
        return False
    size = piece.size
    if piece.cold or size < known.min_bytes or not size:
        return False
    partition.bytes_out += size
    aborted = partition.aborted(offset, size) if committed else None
    offsets = (partition.high_watermark, partition.last_stable_offset, partition.log.log_start_offset)
    connection.respond(known.write_answer(correlation_id, *offsets, piece.views, size, aborted), size)
    return True
