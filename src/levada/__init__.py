"""Levada, a message broker in Python that speaks Kafka's wire protocol.

`levada.Client` and what it raises are loaded on first use, so that importing a part costs no more than that part.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from levada.errors import ErrorCode, KafkaError
    from levada.model import ConsumerRecord, TopicPartition
    from levada.net.client import Client
    from levada.net.connection import ConnectionFailed, RequestTimedOut
    from levada.net.consumer import Consumer
    from levada.net.fencing import MemberFenced, ProducerFenced
    from levada.net.prepared import PreparedTransaction
    from levada.net.producer import Producer, RecordMetadata

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
    "Client": "levada.net.client",
    "ConnectionFailed": "levada.net.connection",
    "Consumer": "levada.net.consumer",
    "ConsumerRecord": "levada.model",
    "ErrorCode": "levada.errors",
    "KafkaError": "levada.errors",
    "MemberFenced": "levada.net.fencing",
    "PreparedTransaction": "levada.net.prepared",
    "Producer": "levada.net.producer",
    "ProducerFenced": "levada.net.fencing",
    "RecordMetadata": "levada.net.producer",
    "RequestTimedOut": "levada.net.connection",
    "TopicPartition": "levada.model",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'levada' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
