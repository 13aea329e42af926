"""OffsetCommit: v10 carries topic ids where older versions carry names; v2 to v4 carry a retention time."""

from dataclasses import dataclass, field
from datetime import timedelta

from kio.schema.offset_commit.v10 import request, response

__all__ = [
    "OffsetCommitRequest",
    "OffsetCommitRequestTopic",
    "OffsetCommitResponse",
    "OffsetCommitResponseTopic",
    "request",
    "response",
]

DEFAULT_RETENTION = timedelta(milliseconds=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestTopic(request.OffsetCommitRequestTopic):
    name: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest(request.OffsetCommitRequest):
    topics: tuple[OffsetCommitRequestTopic, ...]
    retention_time: timedelta = field(metadata={"kafka_type": "timedelta_i64"}, default=DEFAULT_RETENTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponseTopic(response.OffsetCommitResponseTopic):
    name: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse(response.OffsetCommitResponse):
    topics: tuple[OffsetCommitResponseTopic, ...]
