"""Fetch: v13 carries topic ids where older versions carry names."""

from dataclasses import dataclass, field

from kio.schema.fetch.v18 import request, response

__all__ = [
    "FetchRequest",
    "FetchResponse",
    "FetchTopic",
    "FetchableTopicResponse",
    "ForgottenTopic",
    "request",
    "response",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic(request.FetchTopic):
    topic: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTopic(request.ForgottenTopic):
    topic: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(request.FetchRequest):
    topics: tuple[FetchTopic, ...]
    forgotten_topics_data: tuple[ForgottenTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchableTopicResponse(response.FetchableTopicResponse):
    topic: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse(response.FetchResponse):
    responses: tuple[FetchableTopicResponse, ...]
