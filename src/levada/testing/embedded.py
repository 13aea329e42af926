"""A broker on a thread of the test process: the real server on real sockets, its data in a temporary directory.

The server's loop runs on the thread; every method submits its work to it and waits, so that tests are plain
functions. Methods access the broker's components directly and not over the wire: injected faults affect only the
clients of a test.
"""

import asyncio
import concurrent.futures
import difflib
import itertools
import re
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self, TypeVar
from uuid import uuid4

from levada.api.registry import handlers
from levada.broker.faults import Fault, Faults
from levada.broker.partition.partition import Partition
from levada.client.producer.partitioner import partition_for_key
from levada.config.broker import BrokerConfig
from levada.config.topic import TopicConfig
from levada.core.cluster.controller import CreateTopic
from levada.errors import ErrorCode
from levada.loop import new_event_loop
from levada.model import ConsumerRecord
from levada.server import Server
from levada.testing.cleanup import delete_added, topics_and_groups
from levada.testing.records import POLL_S, append, describe, read_committed
from levada.wire.batches import Record

T = TypeVar("T")

TIMEOUT_S = 30.0  # for anything a broker does on its own machine; a timeout is a bug of the broker
WAIT_S = 10.0  # for what the code under test does
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "levada.metrics.listener": "",
    "group.initial.rebalance.delay.ms": "0",  # tests start all members at once
    "offsets.topic.num.partitions": "5",  # faster to create than Kafka's 50
    "log.retention.check.interval.ms": "86400000",  # records of tests have any timestamps: none expires
}


class EmbeddedBroker:
    """One broker in this process, from `start` to `stop`; as a context manager, for the length of a block."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.faults = Faults()
        self._settings = SETTINGS | dict(settings or {})
        self._numbers = itertools.count(1)
        self._thread = threading.Thread(target=self._run, name="levada", daemon=True)
        self._started: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, Server]]
        self._started = concurrent.futures.Future()
        self._stopping = asyncio.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker; it serves requests when this returns."""
        self._thread.start()
        try:
            self._started.result(TIMEOUT_S)
        except Exception:
            self._thread.join(TIMEOUT_S)
            raise

    def stop(self) -> None:
        """Stop the broker as SIGTERM would, and remove its data."""
        loop, _ = self._started.result()
        loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(TIMEOUT_S)

    @property
    def bootstrap(self) -> str:
        """The value of `bootstrap.servers` for clients."""
        _, server = self._started.result()
        return server.bootstrap

    def topic(self, name: str | None = None, partitions: int = 1, **configs: object) -> str:
        """Create a topic, with a name that no other topic has unless one is given; returns the name.

        `retention_ms=1000` sets `retention.ms`.
        """
        broker, settings = self._server.broker, settings_by_kafkas_names(configs)
        TopicConfig.check(settings)
        if name is None:
            names = (f"topic-{number}" for number in self._numbers)
            name = next(one for one in names if one not in broker.image.topics)
        self._wait(broker.controller.submit(CreateTopic(name, uuid4(), partitions, configs=settings)))
        return name

    def produce(
        self,
        topic: str,
        *values: bytes | str | None,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] = (),
        timestamp: int | None = None,
    ) -> list[ConsumerRecord]:
        """Append a record for each value, in one batch; returns the records as they are stored.

        The key selects the partition as in Kafka's clients; without a key it is the first. Raises KafkaError where the
        broker refuses the batch, and TypeError for a key, value or header that is not bytes, text or None.
        """

        pairs = headers.items() if isinstance(headers, Mapping) else headers
        encoded = tuple((name, _bytes(f"header {name}", value)) for name, value in pairs)
        key_bytes = _bytes("key", key)
        contents = [_bytes("value", value) for value in values]

        async def on_loop() -> list[ConsumerRecord]:
            partitions = self._partitions(topic)
            index = partition
            if index is None:
                index = 0 if key_bytes is None else partition_for_key(key_bytes, len(partitions))
            if not 0 <= index < len(partitions):
                raise ValueError(f"topic {topic!r} has {len(partitions)} partitions, none with number {index}")
            now_ms = self._server.broker.clock.now_ms()
            fields = (now_ms if timestamp is None else timestamp, key_bytes)
            records = [Record(0, *fields, content, encoded) for content in contents]
            return await append(partitions[index], records, now_ms)

        return self._wait(on_loop())

    def records(self, topic: str) -> list[ConsumerRecord]:
        """Every committed record of a topic, by partition and offset, as a read_committed consumer gets them."""
        return self._call(lambda: self._records(topic))

    def wait_for(self, topic: str, count: int, timeout_s: float = WAIT_S) -> list[ConsumerRecord]:
        """Wait until a topic has `count` committed records, or more; returns `records`. TimeoutError.

        The topic need not exist yet. In an async test: `await asyncio.to_thread(levada.wait_for, topic, count)`.
        """
        _check_no_running_loop()
        deadline = time.monotonic() + timeout_s
        ends: list[tuple[int, int]] | None = None
        records: list[ConsumerRecord] = []

        def has_come() -> bool:
            nonlocal ends, records
            former, ends = ends, self._ends(topic)
            if ends != former:
                records = [] if ends is None else self._records(topic)
            return ends is not None and len(records) >= count

        while not self._call(has_come):
            if time.monotonic() >= deadline:
                raise TimeoutError(self._call(lambda: self._missing(topic, count, records, timeout_s)))
            time.sleep(POLL_S)
        return records

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The offsets that a group has committed, by topic and partition."""

        def read() -> dict[tuple[str, int], int]:
            groups = self._server.broker.groups
            if not groups.exists:
                return {}
            return {
                topic_partition: value.offset for topic_partition, value in groups.shard(group).ready.offsets.of(group)
            }

        return self._call(read)

    def fail_next(self, api: str, error: ErrorCode | str, times: int = 1) -> None:
        """Respond to the next request of an API with an error, without handling it."""
        code = _error_code(error) if isinstance(error, str) else error
        self._inject(api, Fault(error=code), times)

    def delay(self, api: str, seconds: float, times: int = 1) -> None:
        """Delay the next request of an API before it is handled."""
        self._inject(api, Fault(delay_s=seconds), times)

    def drop(self, api: str, times: int = 1) -> None:
        """Close the connection of the next request of an API, without a response."""
        self._inject(api, Fault(drop=True), times)

    @contextmanager
    def cleanup(self) -> Iterator[None]:
        """Delete, at the end of the block, the topics and groups that were added in it, and drop its faults."""
        broker = self._server.broker
        before = self._call(lambda: topics_and_groups(broker))
        try:
            yield
        finally:
            self._call(self.faults.clear)
            self._wait(delete_added(broker, before))

    @property
    def _server(self) -> Server:
        return self._started.result()[1]

    def _log_dirs(self) -> AbstractContextManager[str]:
        """The value of `log.dirs`, while the broker runs."""
        return tempfile.TemporaryDirectory(prefix="levada-")

    def _new_server(self, config: BrokerConfig) -> Server:
        return Server(config, self.faults)

    def _run(self) -> None:
        with self._log_dirs() as log_dirs, asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self._serve(log_dirs))

    async def _serve(self, log_dirs: str) -> None:
        try:
            config, without_effect = BrokerConfig.load({"log.dirs": log_dirs} | self._settings)
            for text in without_effect:
                warnings.warn(text, stacklevel=1)
            server = self._new_server(config)
            await server.start()
            await server.opened()
        except Exception as error:  # noqa: BLE001 (it is raised again in `start`)
            self._started.set_exception(error)
            return
        self._started.set_result((asyncio.get_running_loop(), server))
        await self._stopping.wait()
        await server.stop()

    def _call(self, function: Callable[[], T]) -> T:
        """Run a function on the broker's thread."""

        async def on_loop() -> T:
            return function()

        return self._wait(on_loop())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        loop, _ = self._started.result()
        return asyncio.run_coroutine_threadsafe(work, loop).result(TIMEOUT_S)

    def _inject(self, api: str, fault: Fault, times: int) -> None:
        key = _api_key(api)
        self._call(lambda: self.faults.add(key, fault, times))

    def _partitions(self, topic: str) -> list[Partition]:
        broker = self._server.broker
        topics = broker.image.topics
        if topic not in topics:
            raise ValueError(f"no such topic: {topic}{_did_you_mean(topic, topics)}")
        return [broker.partitions[topic, index] for index in range(len(topics[topic].partitions))]

    def _records(self, topic: str) -> list[ConsumerRecord]:
        return [record for partition in self._partitions(topic) for record in read_committed(partition)]

    def _ends(self, topic: str) -> list[tuple[int, int]] | None:
        """Log start and last stable offsets; None while the topic does not exist or is not open."""
        broker = self._server.broker
        count = len(broker.image.topics[topic].partitions) if topic in broker.image.topics else 0
        if not count or any((topic, index) not in broker.partitions for index in range(count)):
            return None
        return [(one.log_start_offset, one.last_stable_offset) for one in self._partitions(topic)]

    def _missing(self, topic: str, count: int, records: list[ConsumerRecord], timeout_s: float) -> str:
        """Why `wait_for` fails, with what is there."""
        topics = self._server.broker.image.topics
        if self._ends(topic) is None:
            return (
                f"topic {topic!r} does not exist after {timeout_s:g} s; topics: {', '.join(sorted(topics)) or 'none'}"
            )
        text = f"topic {topic!r} has {len(records)} of {count} committed records after {timeout_s:g} s"
        if undecided := sum(one.high_watermark - one.last_stable_offset for one in self._partitions(topic)):
            text += f"; {undecided} offsets are behind the start of an open transaction"
        return f"{text}:\n{describe(records)}" if records else text


@contextmanager
def broker(**settings: object) -> Iterator[EmbeddedBroker]:
    """A broker for the length of a block; `num_partitions=3` sets `num.partitions`."""
    with EmbeddedBroker(settings_by_kafkas_names(settings)) as own:
        yield own


def settings_by_kafkas_names(settings: Mapping[str, object]) -> dict[str, str]:
    """`retention_ms=1000` as Kafka has it: names with dots, values as text."""
    return {
        name.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }


def _api_key(api: str) -> int:
    """The key of an API by its name, written `ListOffsets` or `list_offsets`."""
    keys = {handler.name: handler.api_key for handler in handlers().values()}
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api).lower()
    if name in keys:
        return keys[name]
    raise ValueError(f"no such API: {api}{_did_you_mean(name, keys)}")


def _error_code(name: str) -> ErrorCode:
    """An error by Kafka's name."""
    if name in ErrorCode.__members__:
        return ErrorCode[name]
    raise ValueError(f"no such error: {name}{_did_you_mean(name, ErrorCode.__members__)}")


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def _bytes(name: str, content: Any) -> bytes | None:
    if content is None or isinstance(content, str):
        return None if content is None else content.encode()
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    hint = "; write several values one after another: levada.produce(topic, b'a', b'b')" if name == "value" else ""
    raise TypeError(f"levada.produce: a {name} is bytes, text or None, not {type(content).__name__}{hint}")


def _check_no_running_loop() -> None:
    """A wait on the thread of an event loop keeps the loop from doing what is waited for."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("wait_for blocks the event loop; use: await asyncio.to_thread(levada.wait_for, topic, count)")
