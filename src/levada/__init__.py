"""Levada, a message broker in Python that speaks Kafka's wire protocol.

`levada.Client` and what it raises are loaded on first use, so that importing a part costs no more than that part.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.client.consumer.consumer import Consumer
    from levada.client.errors import ConnectionFailed, MemberFenced, ProducerFenced, RequestTimedOut
    from levada.client.producer.accumulator import RecordMetadata
    from levada.client.producer.producer import Producer
    from levada.client.producer.transactions import PreparedTransaction
    from levada.errors import ErrorCode, KafkaError
    from levada.model import ConsumerRecord, TopicPartition

__version__ = "0.1.0"
__all__ = [
    "Client",
    "ConnectionFailed",
    "Consumer",
    "ConsumerRecord",
    "ErrorCode",
    "KafkaError",
    "MemberFenced",
    "PreparedTransaction",
    "Producer",
    "ProducerFenced",
    "RecordMetadata",
    "RequestTimedOut",
    "TopicPartition",
    "__version__",
]

_HOMES = {
    "Client": "levada.client.client",
    "ConnectionFailed": "levada.client.errors",
    "Consumer": "levada.client.consumer.consumer",
    "ConsumerRecord": "levada.model",
    "ErrorCode": "levada.errors",
    "KafkaError": "levada.errors",
    "MemberFenced": "levada.client.errors",
    "PreparedTransaction": "levada.client.producer.transactions",
    "Producer": "levada.client.producer.producer",
    "ProducerFenced": "levada.client.errors",
    "RecordMetadata": "levada.client.producer.accumulator",
    "RequestTimedOut": "levada.client.errors",
    "TopicPartition": "levada.model",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'levada' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
