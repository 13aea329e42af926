"""Transactions a second: raw producers that write, end and write again, each on a connection and partition of its own.

In version 2 (KIP-890), which the Java client of Kafka 4 speaks, the broker adds partitions by itself and every end
raises the producer's epoch; librdkafka and others speak version 1 and add partitions first. Where a broker says that
the transaction before is still being ended, the producer asks again after 20 ms, as the Java client does.
"""

import asyncio
import json
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from crc32c import crc32c

from bench.generator import coordinator_requests as coordination
from bench.generator import dialogue, wire
from bench.generator.coordinator_requests import CONCURRENT_TRANSACTIONS, NONE
from bench.generator.dialogue import Dialogue
from bench.generator.outcome import Meter, Outcome, run_module

BATCH_BYTES = 16 << 10  # of the Java producer
VALUE_BYTES = 100
TIMEOUT_MS = 60_000
AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class TransactionLoad:
    """Transactions of so many records of 100 bytes by so many producers."""

    port: int = 0
    topic: str = ""
    pid: int = 0
    name: str = "bench"  # their transactional ids begin with it
    producers: int = 1
    partitions: int = 1
    size: int = 1
    version: int = 2
    seconds: float = 3.0
    rate: float = 0.0  # transactions a second of all producers together; 0: as fast as responses come
    abort_every: int = 0  # so many transactions, one is aborted; 0: none


class Part:
    """One Produce of a transaction: a frame in which producer, sequence and number are set anew each time."""

    __slots__ = ("_batch", "_number_at", "_sequence", "error_at", "frame")

    def __init__(self, load: TransactionLoad, target: "Target", records: int, sequence: int) -> None:
        batch = wire.batch(records, VALUE_BYTES, attributes=wire.TRANSACTIONAL)
        frame, batch_at, self.error_at = coordination.transactional_produce(
            target.transactional_id,
            load.topic,
            target.topic_id,
            target.partition,
            batch,
            version_2=load.version == 2,
        )
        self.frame = bytearray(frame)
        self._batch = memoryview(self.frame)[batch_at : batch_at + len(batch)]
        self._number_at = batch.index(wire.record_value(VALUE_BYTES))
        self._sequence = sequence

    def fill(self, producer_id: int, epoch: int, first_sequence: int, number: int) -> bytes:
        """The first record holds the number of the transaction, by which a reader can tell what it sees."""
        batch = self._batch
        sequence = first_sequence + self._sequence & 0x7FFFFFFF
        wire.PRODUCER.pack_into(batch, wire.BATCH_PRODUCER_AT, producer_id, epoch, sequence)
        wire.I64.pack_into(batch, self._number_at, number)
        wire.U32.pack_into(batch, wire.BATCH_CRC_AT, crc32c(batch[wire.BATCH_CRC_FROM :]))
        return bytes(self.frame)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a producer writes, and under which name."""

    transactional_id: str
    topic_id: bytes
    partition: int


class Transactor:
    """One transactional producer."""

    __slots__ = (
        "_connection",
        "_epoch",
        "_load",
        "_number",
        "_parts",
        "_producer_id",
        "_sequence",
        "_target",
        "aborted",
        "committed",
        "latencies",
        "retries",
    )  # fmt: skip

    def __init__(self, connection: Dialogue, load: TransactionLoad, topic_id: bytes, number: int) -> None:
        self._connection = connection
        self._load = load
        self._target = Target(f"{load.name}-{number}", topic_id, number % load.partitions)
        self._number = number
        per_batch = max(1, (BATCH_BYTES - wire.BATCH_HEADER_BYTES) // (VALUE_BYTES + 8))
        self._parts = [
            Part(load, self._target, min(per_batch, load.size - done), done) for done in range(0, load.size, per_batch)
        ]
        self._producer_id = self._epoch = -1
        self._sequence = 0
        self.committed: list[int] = []  # numbers of transactions
        self.aborted: list[int] = []
        self.latencies: list[float] = []
        self.retries = 0

    @property
    def partition(self) -> int:
        return self._target.partition

    async def begin(self) -> None:
        while True:
            frame = coordination.init_producer_id(self._target.transactional_id, TIMEOUT_MS)
            response = await self._connection.request(frame)
            error, self._producer_id, self._epoch = coordination.initialized(response)
            if error == NONE:
                return
            if error not in coordination.NOT_NOW | {CONCURRENT_TRANSACTIONS}:
                raise wire.BrokerError(f"InitProducerId failed with error {error}")
            await asyncio.sleep(AGAIN_S)

    async def transact(self, number: int, since: float) -> None:
        """Write and end one transaction. Its number is unique among those of all producers."""
        load, every = self._load, self._load.abort_every
        commits = not every or number % every != every - 1
        number = number * load.producers + self._number  # unique among all producers
        if load.version < 2:
            await self._add()
        await self._write(number)
        await self._end(commits)
        self.latencies.append(time.perf_counter() - since)
        (self.committed if commits else self.aborted).append(number)

    async def _add(self) -> None:
        target = self._target
        frame = coordination.add_partition_to_txn(
            target.transactional_id, self._producer_id, self._epoch, self._load.topic, target.partition
        )
        while error := coordination.added_error(await self._connection.request(frame)):
            await self._again("AddPartitionsToTxn", error)

    async def _write(self, number: int) -> None:
        producer = (self._producer_id, self._epoch, self._sequence, number)
        while True:
            responses_pending = [self._connection.request(part.fill(*producer)) for part in self._parts]
            responses = await asyncio.gather(*responses_pending)
            errors = [
                int(wire.I16.unpack_from(response, part.error_at)[0])
                for part, response in zip(self._parts, responses, strict=True)
            ]
            if not any(errors):
                break
            await self._again("Produce", next(error for error in errors if error))
        self._sequence = self._sequence + self._load.size & 0x7FFFFFFF

    async def _end(self, commits: bool) -> None:
        version_2 = self._load.version == 2
        name, producer = self._target.transactional_id, (self._producer_id, self._epoch)
        frame = coordination.end_txn(name, *producer, commits, version_2=version_2)
        while True:
            response = await self._connection.request(frame)
            error, *producer_next = coordination.ended(response) if version_2 else (coordination.plain_error(response),)
            if error == NONE:
                break
            await self._again("EndTxn", error)
        if version_2:
            self._producer_id, self._epoch = producer_next
            self._sequence = 0

    async def _again(self, api: str, error: int) -> None:
        if error != CONCURRENT_TRANSACTIONS:
            raise wire.BrokerError(f"{api} failed with error {error}")
        self.retries += 1
        await asyncio.sleep(AGAIN_S)

    async def transact_on(self, until: float) -> None:
        numbers = count()
        while (now := time.perf_counter()) < until:
            await self.transact(next(numbers), now)

    async def transact_by_schedule(self, interval: float, first: float, until: float) -> None:
        """Each at its time, or at once where the one before took longer."""
        due, numbers = first, count()
        while due < until:
            await asyncio.sleep(due - time.perf_counter())
            await self.transact(next(numbers), time.perf_counter())
            due += interval


async def transactions(load: TransactionLoad) -> tuple[Outcome, Sequence[Transactor]]:
    """All producers at once."""
    topic_id = wire.topic_id(load.port, load.topic)
    async with dialogue.many(load.port, load.producers) as connections:
        transactors = [Transactor(connection, load, topic_id, number) for number, connection in enumerate(connections)]
        await asyncio.gather(*(transactor.begin() for transactor in transactors))
        meter, started = Meter(load.pid), time.perf_counter()
        await asyncio.gather(*_transacting(load, transactors, started))
        seconds = time.perf_counter() - started
        latencies = [latency for each in transactors for latency in each.latencies]
        outcome = meter.outcome(seconds, len(latencies), len(latencies) * load.size * VALUE_BYTES, latencies)
    return outcome, transactors


def _transacting(
    load: TransactionLoad, transactors: Sequence[Transactor], started: float
) -> list[Coroutine[Any, Any, None]]:
    until = started + load.seconds
    if not load.rate:
        return [each.transact_on(until) for each in transactors]
    interval = load.producers / load.rate
    return [
        each.transact_by_schedule(interval, started + number / load.rate, until)
        for number, each in enumerate(transactors)
    ]


def run(load: TransactionLoad) -> Outcome:
    """In a process of its own, once there is a coordinator."""
    coordination.await_coordinator(load.port, load.name, coordination.TRANSACTION)
    return run_module("bench.generator.transactions", asdict(load))


if __name__ == "__main__":
    print(dialogue.run(transactions(TransactionLoad(**json.loads(sys.argv[1]))))[0].to_json())
