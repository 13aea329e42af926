"""confluent-kafka: librdkafka, the client behind most Python, C, .NET and Ruby programs."""

import struct
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, ClassVar

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
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


class Confluent:
    """librdkafka through Confluent's Python package."""

    name: ClassVar[str] = "confluent-kafka"
    lacks: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, bootstrap: str) -> None:
        self._common: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._admin = AdminClient(self._common)
        self._producers: dict[tuple[str, str, bool], Producer] = {}

    def version(self) -> str:
        return f"{confluent_kafka.__version__} (librdkafka {confluent_kafka.libversion()[0]})"

    def close(self) -> None:
        for producer in self._producers.values():
            producer.flush(WAIT_S)

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: dict[str, str] | None = None,
    ) -> None:
        new = NewTopic(topic, partitions, replication_factor, config=configs or {})
        _wait(self._admin.create_topics([new]))

    def delete_topic(self, topic: str) -> None:
        _wait(self._admin.delete_topics([topic]))

    def create_partitions(self, topic: str, total: int) -> None:
        _wait(self._admin.create_partitions([NewPartitions(topic, total)]))

    def list_topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=WAIT_S).topics)

    def describe_topic(self, topic: str) -> Topic:
        described = _wait(self._admin.describe_topics(TopicCollection([topic])))
        high, low = (
            described.topic_id.get_most_significant_bits(),
            described.topic_id.get_least_significant_bits(),
        )
        return Topic(len(described.partitions), str(uuid.UUID(bytes=struct.pack(">qq", high, low))))

    def describe_cluster(self) -> Cluster:
        with _errors():
            described = self._admin.describe_cluster().result(WAIT_S)
        brokers = tuple((node.id, node.host, node.port) for node in described.nodes)
        return Cluster(described.cluster_id, described.controller.id, brokers)

    def describe_configs(self, topic: str) -> dict[str, Config]:
        entries = _wait(self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
        return {name: Config(entry.value, SOURCES[int(entry.source)]) for name, entry in entries.items()}

    def alter_configs(self, topic: str, configs: dict[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        _wait(self._admin.incremental_alter_configs([resource]))

    def produce(
        self,
        topic: str,
        records: list[Record],
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        producer = self._producer(codec, acks, idempotent)
        offsets: list[int] = []
        failures: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(error.code())
            else:
                offsets.append(message.offset())

        for record in records:
            with _errors():
                producer.produce(
                    topic,
                    record.value,
                    record.key,
                    partition=partition,
                    headers=list(record.headers),
                    timestamp=record.timestamp or 0,
                    on_delivery=delivered,
                )
        unsent = producer.flush(WAIT_S)
        if failures:
            raise ClientError(_name(failures[0]))
        if unsent:
            raise ClientError("NO_ANSWER", f"{unsent} records were not acknowledged")
        return offsets if acks != "0" else []

    def _producer(self, codec: str, acks: str, idempotent: bool) -> Producer:
        key = codec, acks, idempotent
        if key not in self._producers:
            own = {"compression.type": codec, "acks": acks, "enable.idempotence": idempotent, "linger.ms": 20}
            self._producers[key] = Producer(self._common | own)
        return self._producers[key]

    def consume(self, topic: str, count: int, offset: int = EARLIEST, partition: int = 0) -> list[Record]:
        with self._consumer() as consumer:
            consumer.assign([TopicPartition(topic, partition, offset)])
            records: list[Record] = []
            while len(records) < count:
                messages = consumer.consume(count - len(records), timeout=WAIT_S)
                if not messages:
                    raise ClientError("NO_ANSWER", f"{len(records)} of {count} records came")
                records += [_record(message) for message in messages]
        return records

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        with self._consumer() as consumer, _errors():
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=WAIT_S)
        return low, high

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        with self._consumer() as consumer, _errors():
            asked = TopicPartition(topic, partition, timestamp)
            (found,) = consumer.offsets_for_times([asked], timeout=WAIT_S)
        if found.error:
            raise ClientError(_name(found.error.code()))
        return found.offset if found.offset >= 0 else None  # librdkafka answers OFFSET_END past the last record

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        _wait(self._admin.delete_records([TopicPartition(topic, partition, before)]))

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        own = {"group.id": "unused", "enable.auto.commit": False, "auto.offset.reset": "error"}
        consumer = Consumer(self._common | own)
        try:
            yield consumer
        finally:
            consumer.close()


def _record(message: Any) -> Record:
    if message.error() is not None:
        raise ClientError(_name(message.error().code()), message.error().str())
    _, timestamp = message.timestamp()
    return Record(message.value(), message.key(), as_headers(message.headers()), timestamp, message.offset())


def _wait(futures: dict[Any, "Future[Any]"]) -> Any:
    (future,) = futures.values()
    with _errors():
        return future.result(WAIT_S)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise ClientError(_name(error.args[0].code()), error.args[0].str()) from error


_LOCAL_NAMES: dict[int, str] = {
    confluent_kafka.KafkaError._AUTO_OFFSET_RESET: "OFFSET_OUT_OF_RANGE",
    confluent_kafka.KafkaError._UNKNOWN_TOPIC: "UNKNOWN_TOPIC_OR_PARTITION",
    confluent_kafka.KafkaError._UNKNOWN_PARTITION: "UNKNOWN_TOPIC_OR_PARTITION",
}


def _name(code: int) -> str:
    """librdkafka's negative codes are its own; those that stand for an answer of the broker have Kafka's name."""
    if code < -1:
        return _LOCAL_NAMES.get(code, f"librdkafka {code}")
    return as_kafka_name(code)
