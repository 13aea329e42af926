"""kafka-python: the oldest client written in Python alone."""

import uuid
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, ClassVar

with warnings.catch_warnings():  # its schemas are read by a deprecated function
    warnings.simplefilter("ignore")
    import kafka
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
    from kafka.errors import KafkaError

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


class KafkaPython:
    """kafka-python's producer, consumer and admin."""

    name: ClassVar[str] = "kafka-python"
    lacks: ClassVar[frozenset[str]] = frozenset({"sends_any_topic_name", "null_headers"})

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        self._producers: dict[tuple[str, str, bool], KafkaProducer] = {}

    def version(self) -> str:
        return str(kafka.__version__)

    def close(self) -> None:
        for producer in self._producers.values():
            producer.close()
        self._admin.close()

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: dict[str, str] | None = None,
    ) -> None:
        with _errors():
            self._admin.create_topics([NewTopic(topic, partitions, replication_factor, topic_configs=configs)])

    def delete_topic(self, topic: str) -> None:
        with _errors():
            self._admin.delete_topics([topic])

    def create_partitions(self, topic: str, total: int) -> None:
        with _errors():
            self._admin.create_partitions({topic: total})

    def list_topics(self) -> set[str]:
        return set(self._admin.list_topics())

    def describe_topic(self, topic: str) -> Topic:
        (described,) = self._admin.describe_topics([topic])
        if described["error_code"]:
            raise ClientError(as_kafka_name(described["error_code"]))
        return Topic(len(described["partitions"]), as_topic_id(described["topic_id"]))

    def describe_cluster(self) -> Cluster:
        described = self._admin.describe_cluster()
        brokers = tuple((node["broker_id"], node["host"], node["port"]) for node in described["brokers"])
        return Cluster(described["cluster_id"], described["controller_id"], brokers)

    def describe_configs(self, topic: str) -> dict[str, Config]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        with _errors():
            entries = self._admin.describe_configs([resource], config_filter="all")["topic"][topic]
        return {name: Config(entry["value"], _source(entry)) for name, entry in entries.items()}

    def alter_configs(self, topic: str, configs: dict[str, str]) -> None:
        with _errors():
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs)
            reply = self._admin.alter_configs([resource], raise_on_unknown=False)["topic"][topic]
        if reply != "OK":  # kafka-python gives the error as a text: "[Error 40] InvalidConfigurationError: ..."
            raise ClientError(as_kafka_name(int(reply.split("]")[0].removeprefix("[Error "))), reply)

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
        with _errors():
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=partition,
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            producer.flush(WAIT_S)
            done = [future.get(WAIT_S) for future in futures]
        return [metadata.offset for metadata in done] if acks != "0" else []

    def _producer(self, codec: str, acks: str, idempotent: bool) -> KafkaProducer:
        key = codec, acks, idempotent
        if key not in self._producers:
            self._producers[key] = KafkaProducer(
                bootstrap_servers=self._bootstrap,
                compression_type=None if codec == "none" else codec,
                acks=acks if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                max_block_ms=int(WAIT_S * 1000),
                linger_ms=20,
            )
        return self._producers[key]

    def consume(self, topic: str, count: int, offset: int = EARLIEST, partition: int = 0) -> list[Record]:
        place = TopicPartition(topic, partition)
        with self._consumer() as consumer, _errors():
            consumer.assign([place])
            if offset == EARLIEST:
                consumer.seek_to_beginning(place)
            else:
                consumer.seek(place, offset)
            records: list[Record] = []
            while len(records) < count:
                batches = consumer.poll(timeout_ms=int(WAIT_S * 1000), max_records=count - len(records))
                if not batches:
                    raise ClientError("NO_ANSWER", f"{len(records)} of {count} records came")
                records += [_record(message) for message in batches[place]]
        return records

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        with self._consumer() as consumer, _errors():
            return consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        place = TopicPartition(topic, partition)
        with self._consumer() as consumer, _errors():
            found = consumer.offsets_for_times({place: timestamp})[place]
        return None if found is None else found.offset

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        with _errors():
            self._admin.delete_records({TopicPartition(topic, partition): before})

    @contextmanager
    def _consumer(self) -> Iterator[Any]:
        settings = {
            "bootstrap_servers": self._bootstrap,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
        }
        with closing(KafkaConsumer(group_id=None, **settings)) as consumer:
            yield consumer


def as_topic_id(value: Any) -> str:
    return str(value if isinstance(value, uuid.UUID) else uuid.UUID(value))


def _source(entry: dict[str, Any]) -> str:
    source = entry["config_source"]
    return SOURCES[source] if isinstance(source, int) else str(source)


def _record(message: Any) -> Record:
    return Record(message.value, message.key, as_headers(message.headers), message.timestamp, message.offset)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        code = getattr(error, "errno", None)
        raise ClientError(type(error).__name__ if code is None else as_kafka_name(code), str(error)) from error
