"""Confluent's own serializers and deserializers, and the producer that sends what they make."""

import json
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass

from levada.testing import EmbeddedBroker

# By default serializers ask the registry for associations of a topic. Apicurio has no such path and leaves about one in
# a thousand of these requests without a response; a client without a timeout waits for it for ever.
SUBJECTS = {"subject.name.strategy.type": "TOPIC"}
PROTOBUF = {"use.deprecated.format": False} | SUBJECTS
TIMEOUT_S = 10


class Confluent:
    """Confluent's clients of one registry and broker."""

    def __init__(self, url: str, broker: EmbeddedBroker) -> None:
        self.client = SchemaRegistryClient({"url": url, "timeout": TIMEOUT_S})
        self.broker = broker

    def avro(self, topic: str, schema: Any, *values: Any, field: MessageField = MessageField.VALUE) -> list[bytes]:
        return self._all(topic, field, AvroSerializer(self.client, json.dumps(schema), conf=SUBJECTS), values)

    def json(self, topic: str, schema: Any, *values: Any, field: MessageField = MessageField.VALUE) -> list[bytes]:
        return self._all(topic, field, JSONSerializer(json.dumps(schema), self.client, conf=SUBJECTS), values)

    def protobuf(
        self, topic: str, message: Descriptor, *values: Any, field: MessageField = MessageField.VALUE
    ) -> list[bytes]:
        kind = GetMessageClass(message)
        found = [kind(**value) for value in values]
        return self._all(topic, field, ProtobufSerializer(kind, self.client, PROTOBUF), found)

    def _all(self, topic: str, field: MessageField, serializer: Any, values: Any) -> list[bytes]:
        return [serializer(value, SerializationContext(topic, field)) for value in values]

    def produce(self, topic: str, *values: bytes | None, keys: Any = None) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for index, value in enumerate(values):
            producer.produce(topic, value, key=keys[index] if keys else None, partition=0)
        assert producer.flush(30) == 0

    def read_avro(self, topic: str, value: bytes | None, field: MessageField = MessageField.VALUE) -> Any:
        return AvroDeserializer(self.client, conf=SUBJECTS)(value, SerializationContext(topic, field))

    def read_json(self, topic: str, value: bytes | None, field: MessageField = MessageField.VALUE) -> Any:
        read = JSONDeserializer(None, schema_registry_client=self.client, conf=SUBJECTS)
        return read(value, SerializationContext(topic, field))

    def read_protobuf(self, topic: str, value: bytes | None, message: Descriptor) -> Any:
        read = ProtobufDeserializer(GetMessageClass(message), PROTOBUF)
        return read(value, SerializationContext(topic, MessageField.VALUE))
