"""Produce: v13 carries topic ids where older versions carry names."""

from dataclasses import dataclass, field

from kio.schema.produce.v13 import request, response

__all__ = [
    "ProduceRequest",
    "ProduceResponse",
    "TopicProduceData",
    "TopicProduceResponse",
    "request",
    "response",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceData(request.TopicProduceData):
    name: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest(request.ProduceRequest):
    topic_data: tuple[TopicProduceData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceResponse(response.TopicProduceResponse):
    name: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse(response.ProduceResponse):
    responses: tuple[TopicProduceResponse, ...]
