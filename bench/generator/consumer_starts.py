"""From the creation of a consumer to its first record, one consumer after the other, each in its own group.

The raw client sends the requests of every client, on two connections, and nothing else: this is the broker's part.
librdkafka waits by itself between its steps, 150 ms in all with any broker, so its rows say little about brokers.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from confluent_kafka import Consumer

from bench.generator import coordinator_requests as coordination
from bench.generator import wire
from bench.generator.coordinator_requests import Reader
from bench.generator.groups import REBALANCE_MS, SESSION_MS
from bench.generator.outcome import Meter, Outcome, run_module

EARLIEST = -2
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class StartLoad:
    """So many starts of a `client`: raw, librdkafka, or librdkafka-848 for the consumer protocol."""

    port: int = 0
    topic: str = ""
    pid: int = 0
    client: str = "raw"
    times: int = 1


def raw(load: StartLoad, group: str) -> float:
    """Everything from connecting to a record, as a client does it; when it had the record. Then it leaves."""
    versions = wire.request(wire.API_VERSIONS, 0, b"", flexible=False)
    with wire.connect(load.port) as to_leader, wire.connect(load.port) as to_coordinator:
        wire.call(to_leader, versions)
        topic_id = wire.found_topic_id(wire.call(to_leader, wire.metadata(load.topic)))
        if topic_id is None:
            raise wire.BrokerError(f"topic {load.topic} is unknown")
        found = wire.call(to_leader, coordination.find_coordinator(group, coordination.GROUP))
        _check("FindCoordinator", coordination.plain_error(found))
        wire.call(to_coordinator, versions)
        metadata, member_id = coordination.subscription([load.topic]), ""
        for _ in range(2):
            frame = coordination.join_group(group, member_id, SESSION_MS, REBALANCE_MS, metadata)
            joined = coordination.joined(wire.call(to_coordinator, frame))
            member_id = joined.member_id
        _check("JoinGroup", joined.error)
        mine = {member_id: coordination.assignment(load.topic, [0], b"")}
        frame = coordination.sync_group(group, member_id, joined.generation, mine)
        _check("SyncGroup", coordination.synced(wire.call(to_coordinator, frame))[0])
        response = wire.call(to_coordinator, coordination.offset_fetch(group, load.topic, 1))
        offset = coordination.fetched_offsets(response)[0]
        if offset < 0:
            offset = _first_offset(wire.call(to_leader, _list_offsets(load.topic)))
        fetch, _, offset_at = wire.fetch(topic_id, 1 << 20, 500)
        wire.I64.pack_into(fetch, offset_at, offset)
        records = wire.call(to_leader, bytes(fetch))
        _check("Fetch", wire.fetch_error(records))
        if wire.read_varint(records, wire.FETCH_RECORDS_AT)[0] <= wire.BATCH_HEADER_BYTES:
            raise wire.BrokerError("a Fetch of a stored record gave none")
        had_record = time.perf_counter()
        wire.call(to_coordinator, coordination.leave_group(group, member_id))
    return had_record


def _check(api: str, error: int) -> None:
    if error:
        raise wire.BrokerError(f"{api} failed with error {error}")


def _list_offsets(topic: str) -> bytes:
    body = wire.I32.pack(-1) + wire.I32.pack(1) + wire.string(topic) + wire.I32.pack(1)
    return wire.request(wire.LIST_OFFSETS, 1, body + wire.I32.pack(0) + wire.I64.pack(EARLIEST), flexible=False)


def _first_offset(response: bytes) -> int:
    reader = Reader(response, 8)
    reader.string()
    reader.take(wire.I64)  # one partition, its index
    _check("ListOffsets", reader.take(wire.I16))
    reader.take(wire.I64)
    return reader.take(wire.I64)


def _librdkafka(protocol: str) -> Callable[[StartLoad, str], float]:
    def start(load: StartLoad, group: str) -> float:
        consumer = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{load.port}",
                "group.id": group,
                "auto.offset.reset": "earliest",
                "group.protocol": protocol,
            }
        )
        consumer.subscribe([load.topic])
        message = consumer.poll(TIMEOUT_S)
        if message is None or message.error():
            raise wire.BrokerError(f"no record came: {message.error() if message else 'for too long'}")
        had_record = time.perf_counter()
        consumer.close()
        return had_record

    return start


CLIENTS: dict[str, Callable[[StartLoad, str], float]] = {
    "raw": raw,
    "librdkafka": _librdkafka("classic"),
    "librdkafka-848": _librdkafka("consumer"),
}


def _outcome(load: StartLoad) -> Outcome:
    """The seconds are those until the records; the CPU time is also that of leaving."""
    start, taken = CLIENTS[load.client], []
    meter = Meter(load.pid)
    for number in range(load.times):
        started = time.perf_counter()
        taken.append(start(load, f"{load.topic}-{number}") - started)
    return meter.outcome(sum(taken), len(taken), 0, taken)


def first_consumer(port: int) -> float:
    """Seconds that the first consumer of a fresh broker takes: it also waits until there is a topic for its offsets."""
    topic = "first"
    wire.create_topic(port, topic, 1)
    wire.produce_one(port, topic)
    started = time.perf_counter()
    return CLIENTS["librdkafka"](StartLoad(port, topic), topic) - started


def run(load: StartLoad) -> Outcome:
    """In a process of its own, once there is a coordinator."""
    coordination.await_coordinator(load.port, load.topic, coordination.GROUP)
    return run_module("bench.generator.consumer_starts", asdict(load))


if __name__ == "__main__":
    print(_outcome(StartLoad(**json.loads(sys.argv[1]))).to_json())
