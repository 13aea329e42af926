"""aiokafka: the asyncio client. It runs here on a loop of its own thread, as blocking calls."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypeVar

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from tests.compat.drivers.base import (
    EARLIEST,
    SOURCES,
    WAIT_S,
    ClientError,
    Cluster,
    Config,
    Record,
    Topic,
    as_headers,
    as_kafka_name,
)

T = TypeVar("T")


class Aiokafka:
    """aiokafka's producer, consumer and admin."""

    name: ClassVar[str] = "aiokafka"
    lacks: ClassVar[frozenset[str]] = frozenset(
        {"topic_ids", "sends_any_topic_name", "knows_invalid_record", "describes_without_creating"}
    )

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True)
        self._thread.start()
        self._producers: dict[tuple[str, str, bool], AIOKafkaProducer] = {}
        self._admin = self._run(self._start_admin())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * WAIT_S)
        except KafkaError as error:
            code = getattr(error, "errno", None)
            name = type(error).__name__ if code is None else as_kafka_name(code)
            raise ClientError(name, str(error)) from error

    async def _start_admin(self) -> AIOKafkaAdminClient:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        return admin

    def version(self) -> str:
        return str(aiokafka.__version__)

    def close(self) -> None:
        for producer in self._producers.values():
            self._run(producer.stop())
        self._run(self._admin.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: dict[str, str] | None = None,
    ) -> None:
        new = NewTopic(topic, partitions, replication_factor, topic_configs=configs or {})
        reply = self._run(self._admin.create_topics([new]))
        _check(reply.topic_errors[0][1], reply.topic_errors[0][2])

    def delete_topic(self, topic: str) -> None:
        reply = self._run(self._admin.delete_topics([topic]))
        _check(reply.topic_error_codes[0][1])

    def create_partitions(self, topic: str, total: int) -> None:
        self._run(self._admin.create_partitions({topic: NewPartitions(total)}))

    def list_topics(self) -> set[str]:
        return set(self._run(self._admin.list_topics()))

    def describe_topic(self, topic: str) -> Topic:
        (described,) = self._run(self._admin.describe_topics([topic]))
        _check(described["error_code"])
        return Topic(len(described["partitions"]), None)

    def describe_cluster(self) -> Cluster:
        described = self._run(self._admin.describe_cluster())
        brokers = tuple((node["node_id"], node["host"], node["port"]) for node in described["brokers"])
        return Cluster(described["cluster_id"], described["controller_id"], brokers)

    def describe_configs(self, topic: str) -> dict[str, Config]:
        (reply,) = self._run(self._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
        code, message, _type, _name, entries = reply.resources[0]
        _check(code, message)
        return {entry[0]: Config(entry[1], SOURCES[entry[3]]) for entry in entries}

    def alter_configs(self, topic: str, configs: dict[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs)
        (reply,) = self._run(self._admin.alter_configs([resource]))
        _check(reply.resources[0][0], reply.resources[0][1])

    def produce(
        self,
        topic: str,
        records: list[Record],
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        offsets = self._run(self._produce(topic, records, partition, (codec, acks, idempotent)))
        return offsets if acks != "0" else []

    async def _produce(
        self, topic: str, records: list[Record], partition: int, settings: tuple[str, str, bool]
    ) -> list[int]:
        if settings not in self._producers:
            codec, acks, idempotent = settings
            self._producers[settings] = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                compression_type=None if codec == "none" else codec,
                acks=acks if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                linger_ms=20,
            )
            await self._producers[settings].start()
        producer = self._producers[settings]
        futures = [
            await producer.send(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=partition,
                timestamp_ms=record.timestamp,
            )
            for record in records
        ]
        done = await asyncio.wait_for(asyncio.gather(*futures), WAIT_S)
        return [0 if metadata is None else metadata.offset for metadata in done]

    def consume(self, topic: str, count: int, offset: int = EARLIEST, partition: int = 0) -> list[Record]:
        return self._run(self._consume(TopicPartition(topic, partition), count, offset))

    async def _consume(self, place: TopicPartition, count: int, offset: int) -> list[Record]:
        async with self._consumer() as consumer:
            consumer.assign([place])
            if offset == EARLIEST:
                await consumer.seek_to_beginning(place)
            else:
                consumer.seek(place, offset)
            records: list[Record] = []
            while len(records) < count:
                left = count - len(records)
                batches = await consumer.getmany(place, timeout_ms=int(WAIT_S * 1000), max_records=left)
                if not batches:
                    raise ClientError("NO_ANSWER", f"{len(records)} of {count} records came")
                records += [_record(message) for message in batches[place]]
        return records

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        async def ask() -> tuple[int, int]:
            place = TopicPartition(topic, partition)
            async with self._consumer() as consumer:
                first = await consumer.beginning_offsets([place])
                end = await consumer.end_offsets([place])
            return first[place], end[place]

        return self._run(ask())

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        async def ask() -> int | None:
            place = TopicPartition(topic, partition)
            async with self._consumer() as consumer:
                found = (await consumer.offsets_for_times({place: timestamp}))[place]
            return None if found is None else found.offset

        return self._run(ask())

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        self._run(self._admin.delete_records({TopicPartition(topic, partition): RecordsToDelete(before)}))

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, enable_auto_commit=False, auto_offset_reset="none"
        )
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()


def _check(code: int, message: str | None = None) -> None:
    if code:
        raise ClientError(as_kafka_name(code), message or "")


def _record(message: Any) -> Record:
    return Record(message.value, message.key, as_headers(message.headers), message.timestamp, message.offset)
