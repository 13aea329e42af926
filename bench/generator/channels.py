"""The connections of the load generator: producers, sequential and random readers, and readers of the end of a log.

Frames are built once, several go out with one `send`, and a response is only checked for an error and counted.
That keeps the generator far below the CPU of any broker. Fetched bytes are copied out of the socket as any
consumer must do: dropping them in the kernel would flatter a broker that sends by `sendfile`.
"""

import random
import select
import socket
import time
from collections import deque
from dataclasses import dataclass

from crc32c import crc32c

from bench.generator import wire

IN_FLIGHT_BYTES = 256 << 10  # a connection keeps about this much under way, at least Kafka's five requests
IN_FLIGHT_REQUESTS = 64
GROUP_BYTES = 64 << 10  # sent with one system call
SCRATCH = bytearray(1 << 20)
FETCH_HEAD_BYTES = 4 + wire.FETCH_RECORDS_AT + 4  # all of an empty response, and the records' length of any
FRAME_SIZE = wire.I32.unpack_from
ERROR_CODE = wire.I16.unpack_from


@dataclass(frozen=True, slots=True)
class Load:
    """One load. It ends after `seconds` or when every producer has sent `requests_max`."""

    port: int = 0
    topic: str = ""
    pid: int = 0  # of the broker, whose CPU is read around the load
    partitions: int = 1
    producers: int = 0  # connections
    readers: int = 0  # sequential reads of what is there, over and over
    seekers: int = 0  # reads of what is there, each from a random offset
    tailers: int = 0  # readers of the end of the log, partition by partition
    records: int = 1  # a batch
    value_bytes: int = 100
    idempotent: bool = False
    depth: int = 0  # requests in flight a connection; 0 chooses
    fetch_bytes: int = 1 << 20
    stored_batches: int = 0  # a partition, for readers
    seconds: float = 3.0
    requests_max: int = 1 << 62  # a producer
    bytes_per_second: float = 0.0  # 0: as fast as it goes


class Channel:
    """One non-blocking connection; the rest of a partial send waits for the socket."""

    __slots__ = ("bytes", "in_flight", "latencies", "pending", "poller", "requests", "sent", "sock")

    def __init__(self, port: int, poller: select.epoll) -> None:
        self.sock = wire.connect(port)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.sock.setblocking(False)
        self.poller = poller
        self.pending: memoryview | None = None
        self.in_flight = 0
        self.requests = self.bytes = 0
        self.sent: deque[tuple[int, float]] = deque()  # (first request after the group, when it was sent)
        self.latencies: list[float] = []
        poller.register(self.sock, select.EPOLLIN)

    def send(self, frame: bytes | bytearray | memoryview) -> None:
        try:
            done = self.sock.send(frame)
        except BlockingIOError:
            done = 0
        if done < len(frame):
            self.pending = memoryview(frame)[done:]
            self.poller.modify(self.sock, select.EPOLLIN | select.EPOLLOUT)

    def resume(self) -> None:
        rest, self.pending = self.pending, None
        if rest is not None:
            self.poller.modify(self.sock, select.EPOLLIN)
            self.send(rest)

    def receive(self) -> None:
        raise NotImplementedError

    def fill(self) -> None:
        """Send what the pipeline has room for."""
        raise NotImplementedError


class Producer(Channel):
    """Sends groups of equal Produce requests; an idempotent one numbers and seals each batch anew."""

    __slots__ = ("batch_bytes", "buffer", "depth", "filled", "group", "group_frame", "idempotent", "issued",
                 "limit", "per_batch", "sequence", "views")  # fmt: skip

    def __init__(self, load: Load, partition: int, topic_id: bytes, poller: select.epoll) -> None:
        super().__init__(load.port, poller)
        producer = wire.init_producer_id(load.port) if load.idempotent else (-1, -1)
        records = wire.batch(load.records, load.value_bytes, *producer)
        frame, batch_at = wire.produce(topic_id, partition, records)
        self.batch_bytes, self.per_batch, self.idempotent = len(records), load.records, load.idempotent
        self.depth = load.depth or max(5, min(IN_FLIGHT_REQUESTS, IN_FLIGHT_BYTES // len(frame)))
        paced = load.bytes_per_second > 0
        self.group = 1 if paced else max(1, min(self.depth // 2, GROUP_BYTES // len(frame)))
        self.limit = 0 if paced else load.requests_max
        self.group_frame = bytearray(frame * self.group)
        self.views = [
            memoryview(self.group_frame)[n * len(frame) :][batch_at:][: len(records)] for n in range(self.group)
        ]
        self.buffer, self.filled = memoryview(bytearray(max(1 << 12, self.depth * 256))), 0
        self.sequence = self.issued = 0

    def fill(self) -> None:
        while self.pending is None and self.in_flight + self.group <= self.depth and self.issued < self.limit:
            if self.idempotent:
                self.number()
            self.in_flight += self.group
            self.issued += self.group
            self.sent.append((self.issued, time.perf_counter()))
            self.send(self.group_frame)

    def number(self) -> None:
        sequence, step = self.sequence, self.per_batch
        for view in self.views:
            wire.I32.pack_into(view, wire.BATCH_SEQUENCE_AT, sequence)
            wire.U32.pack_into(view, wire.BATCH_CRC_AT, crc32c(view[wire.BATCH_CRC_FROM :]))
            sequence = (sequence + step) & 0x7FFFFFFF
        self.sequence = sequence

    def receive(self) -> None:
        buffer = self.buffer
        try:
            got = self.sock.recv_into(buffer[self.filled :])
        except BlockingIOError:
            return
        if not got:
            raise wire.BrokerError("the broker closed a producer's connection")
        end = self.filled + got
        at = acknowledged = 0
        while at + 4 <= end:
            (size,) = FRAME_SIZE(buffer, at)
            if at + 4 + size > end:
                break
            (error,) = ERROR_CODE(buffer, at + 4 + wire.PRODUCE_ERROR_AT)
            if error:
                raise wire.BrokerError(f"Produce failed with error {error}")
            acknowledged += 1
            at += 4 + size
        self.filled = end - at
        if at and self.filled:
            buffer[: self.filled] = bytes(buffer[at:end])
        self.count(acknowledged)

    def count(self, acknowledged: int) -> None:
        self.requests += acknowledged
        self.bytes += acknowledged * self.batch_bytes
        self.in_flight -= acknowledged
        while self.sent and self.sent[0][0] <= self.requests:
            self.latencies.append(time.perf_counter() - self.sent.popleft()[1])


class Reader(Channel):
    """One Fetch at a time, as every client does, over known batches from front to back."""

    __slots__ = ("batch_bytes", "fetched_batches", "frame", "head", "left", "offset", "offset_at",
                 "partition", "partition_at", "partitions", "per_batch", "started", "stored")  # fmt: skip

    def __init__(self, load: Load, partition: int, topic_id: bytes, poller: select.epoll) -> None:
        super().__init__(load.port, poller)
        self.per_batch, self.stored, self.partitions = load.records, load.stored_batches, load.partitions
        self.batch_bytes = len(wire.batch(load.records, load.value_bytes))
        self.fetched_batches = max(1, load.fetch_bytes // self.batch_bytes)
        fetch_bytes = self.fetched_batches * self.batch_bytes
        self.frame, self.partition_at, self.offset_at = wire.fetch(topic_id, fetch_bytes, 500)
        self.partition, self.offset = partition, 0
        self.head = b""
        self.left = 0  # bytes of the response that are still to come
        self.started = 0.0

    def fill(self) -> None:
        if not self.in_flight:
            wire.I32.pack_into(self.frame, self.partition_at, self.partition)
            wire.I64.pack_into(self.frame, self.offset_at, self.offset)
            self.in_flight = 1
            self.started = time.perf_counter()
            self.send(self.frame)

    def receive(self) -> None:
        if not self.left and not self.read_head():
            return
        if self.left:
            self.left -= self.drop(self.left)
        if not self.left:
            self.in_flight = 0
            self.requests += 1
            self.latencies.append(time.perf_counter() - self.started)

    def read_head(self) -> bool:
        """The first bytes of a response say whether it is right and how much follows; False until here."""
        try:
            self.head += self.sock.recv(FETCH_HEAD_BYTES - len(self.head))
        except BlockingIOError:
            return False
        if len(self.head) < FETCH_HEAD_BYTES:
            return False
        head, self.head = self.head, b""
        error = ERROR_CODE(head, 4 + wire.FETCH_ERROR_AT)[0] or ERROR_CODE(head, 4 + wire.FETCH_PARTITION_ERROR_AT)[0]
        if error:
            raise wire.BrokerError(f"Fetch failed with error {error}")
        self.left = 4 + FRAME_SIZE(head)[0] - len(head)
        self.advance(wire.read_varint(head, 4 + wire.FETCH_RECORDS_AT)[0] - 1)
        return True

    def drop(self, size: int) -> int:
        try:
            got = self.sock.recv_into(SCRATCH, min(size, len(SCRATCH)))
        except BlockingIOError:
            return 0
        if not got:
            raise wire.BrokerError("the broker closed a reader's connection")
        return got

    def advance(self, record_bytes: int) -> None:
        batches = record_bytes // self.batch_bytes
        if batches < 1:
            raise wire.BrokerError(f"a Fetch of stored batches gave {record_bytes} bytes")
        self.bytes += batches * self.batch_bytes
        self.offset += batches * self.per_batch
        if self.offset // self.per_batch + self.fetched_batches > self.stored:
            self.offset, self.partition = 0, (self.partition + 1) % self.partitions


class Seeker(Reader):
    """Reads each time from another offset, chosen at random among all records: the broker has to search."""

    __slots__ = ("random",)

    def __init__(self, load: Load, partition: int, topic_id: bytes, poller: select.epoll) -> None:
        super().__init__(load, partition, topic_id, poller)
        self.random = random.Random(partition)

    def advance(self, record_bytes: int) -> None:
        super().advance(record_bytes)
        self.offset = self.random.randrange((self.stored - self.fetched_batches) * self.per_batch)


class Tailer(Reader):
    """Follows one partition; a response may be empty when nothing came for a while."""

    __slots__ = ()

    def advance(self, record_bytes: int) -> None:
        batches = max(0, record_bytes) // self.batch_bytes
        self.bytes += batches * self.batch_bytes
        self.offset += batches * self.per_batch
