"""What every kind of group provides, and the limits and timers that all kinds share.

A kind of group is a class that implements `Group`, and an entry of its decisions in `levada.core.groups.machine.KINDS`.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import ClassVar, NamedTuple, Protocol

from levada.core.cluster.image import ClusterImage
from levada.core.groups.offsets import CommitRequest
from levada.wire.internal.group_records import OffsetCommitValue


class GroupMember(Protocol):
    """A member of any kind of group."""

    @property
    def memory_bytes(self) -> int: ...


class Group(Protocol):
    """A group of any kind."""

    kind: ClassVar[str]  # the group type of ListGroups: "classic", "consumer"
    memory_bytes: int  # of all members, see `levada.core.groups.memory_limit`
    static_members: dict[str, str]  # instance id to member id

    @property
    def id(self) -> str: ...

    @property
    def members(self) -> Mapping[str, GroupMember]: ...

    @property
    def state(self) -> StrEnum: ...

    @property
    def protocol_type(self) -> str | None: ...

    @property
    def is_empty(self) -> bool: ...

    @property
    def is_simple(self) -> bool:
        """Whether the group only stores offsets: it never had members. It is removed with its last offset."""
        ...

    @property
    def has_pending_members(self) -> bool:
        """Whether clients were given member ids and have not joined with them."""
        ...

    def validate_offset_commit(self, request: CommitRequest, image: Callable[[], ClusterImage]) -> int | None:
        """Raise KafkaError if the commit is not allowed. The session timeout of a member whose session it renews."""
        ...

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise KafkaError if this member may not fetch offsets; clients that are not members pass (None, -1)."""
        ...

    def validate_offset_delete(self) -> None:
        """Raise KafkaError if no offsets of the group may be deleted."""
        ...

    def subscribes_to(self, topic: str) -> bool:
        """Whether members subscribe to a topic, so that its offsets may not be deleted."""
        ...

    def retained_since_ms(self, topic: str, value: OffsetCommitValue) -> int | None:
        """When the retention of an offset started; None while the offset is in use."""
        ...


class GroupLimits(NamedTuple):
    """The broker's settings of groups."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = (1 << 31) - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 604_800_000
    offsets_retention_check_interval_ms: int = 600_000
    members_bytes_max: int = 128 << 20


class TimerKind(IntEnum):
    """What happens when a timer expires."""

    SESSION = 0  # the member is removed; of a pending member: its id is withdrawn
    JOIN = 1  # the join phase of a classic group ends
    SYNC = 2  # members of a classic group that sent no SyncGroup are removed
    RETENTION = 3  # expired offsets are removed
    REVOKE = 4  # a consumer group member that did not revoke partitions is removed
    MEMBER_JOIN = 5  # a classic member of a consumer group that did not rejoin is removed
    MEMBER_SYNC = 6  # a classic member of a consumer group that sent no SyncGroup is removed

    __hash__ = int.__hash__  # faster than Enum's, and timers are dict keys


class Timer(NamedTuple):
    """Identifies a timer of a group, or of one of its members."""

    group: str
    kind: TimerKind
    member: str = ""


@lru_cache(10_000)
def session_timer(group_id: str, member_id: str) -> Timer:
    """The session timer of a member; cached, since each heartbeat and commit moves it."""
    return Timer(group_id, TimerKind.SESSION, member_id)
