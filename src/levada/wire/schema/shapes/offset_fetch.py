"""OffsetFetch: v10 carries topic ids where older versions carry names."""

from dataclasses import dataclass, field

from kio.schema.offset_fetch.v10 import request, response

__all__ = [
    "OffsetFetchRequest",
    "OffsetFetchRequestGroup",
    "OffsetFetchRequestTopics",
    "OffsetFetchResponse",
    "OffsetFetchResponseGroup",
    "OffsetFetchResponseTopics",
    "request",
    "response",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopics(request.OffsetFetchRequestTopics):
    name: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestGroup(request.OffsetFetchRequestGroup):
    topics: tuple[OffsetFetchRequestTopics, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest(request.OffsetFetchRequest):
    groups: tuple[OffsetFetchRequestGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseTopics(response.OffsetFetchResponseTopics):
    name: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseGroup(response.OffsetFetchResponseGroup):
    topics: tuple[OffsetFetchResponseTopics, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse(response.OffsetFetchResponse):
    groups: tuple[OffsetFetchResponseGroup, ...]
