"""How far a group is behind, and where a reset would put it: in messages, and in seconds."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from levada.client.admin.group_offsets import CommittedOffset
from levada.client.admin.groups import GroupAdmin, GroupDescription
from levada.client.data import EARLIEST, LATEST, asked_ms
from levada.clock import SystemClock
from levada.model import TopicPartition

if TYPE_CHECKING:
    from levada.client.client import Client

FIRST_RECORD_BYTES = 65_536
FIRST_RECORDS_MS = 3_000  # for the oldest unread record of every partition; later ones are left untold

Target = Literal["earliest", "latest"] | int | datetime


class PartitionLag(NamedTuple):
    """A group in a partition; `lag_s` is how long ago the oldest unread message was written."""

    partition: TopicPartition
    committed: int | None
    end: int
    lag: int | None
    lag_s: float | None
    metadata: str
    member: str | None


class Move(NamedTuple):
    """What a reset would change; `wanted` is None if nothing was written since the time that was asked for."""

    partition: TopicPartition
    committed: int | None
    wanted: int | None
    target: int
    end: int


async def lag_of(client: "Client", group: GroupDescription) -> list[PartitionLag]:
    """Every partition that a group has committed or is assigned, by name."""
    offsets = await GroupAdmin(client).offsets(group.group)
    owners = {place: member.member_id for member in group.members for place in member.partitions or ()}
    places = sorted(offsets.keys() | owners.keys())
    known = await _existing(client, places)
    ends = await _offsets_at(client, known, LATEST)
    starts = await _offsets_at(client, known, EARLIEST)
    behind: dict[TopicPartition, int] = {}
    for place in known:
        committed = offsets.get(place)
        if committed is not None and max(committed.offset, starts[place]) < ends[place]:
            behind[place] = max(committed.offset, starts[place])
    ages = await _ages(client, behind)
    return [_lag(place, offsets.get(place), ends[place], ages, owners) for place in known]


def _lag(
    place: TopicPartition,
    committed: CommittedOffset | None,
    end: int,
    ages: Mapping[TopicPartition, float],
    owners: Mapping[TopicPartition, str],
) -> PartitionLag:
    owner = owners.get(place)
    if committed is None or committed.offset < 0:
        return PartitionLag(place, None, end, None, None, "", owner)
    lag = max(0, end - committed.offset)
    seconds = ages.get(place) if lag else 0.0
    return PartitionLag(place, committed.offset, end, lag, seconds, committed.metadata, owner)


async def _existing(client: "Client", places: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Those partitions whose topic is still there."""
    topics = (await client.metadata()).topics
    return [
        place
        for place in places
        if place.topic in topics and place.partition < len(topics[place.topic].partitions)
    ]


async def _offsets_at(
    client: "Client", places: Collection[TopicPartition], moment: int
) -> dict[TopicPartition, int]:
    found = await client.list_offsets(dict.fromkeys(places, moment)) if places else {}
    return {place: answer.offset for place, answer in found.items()}


async def _ages(client: "Client", starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
    """How many seconds ago the first record from each offset on was written, where that can be read in time."""
    ages: dict[TopicPartition, float] = {}
    if not starts:
        return ages
    consumer = client.consumer(assign=starts, start=starts, reset="earliest", fetch_bytes=FIRST_RECORD_BYTES)
    loop, clock = asyncio.get_running_loop(), SystemClock()
    deadline = loop.time() + FIRST_RECORDS_MS / 1000
    async with consumer:
        while len(ages) < len(starts) and (left := deadline - loop.time()) > 0:
            for record in await consumer.poll(int(left * 1000) + 1):
                place = TopicPartition(record.topic, record.partition)
                if place not in ages:
                    ages[place] = max(0.0, (clock.now_ms() - record.timestamp) / 1000)
    return ages


async def planned(
    client: "Client", group: str, places: Collection[TopicPartition], target: Target, *, shift: bool = False
) -> list[Move]:
    """Where each partition would go on: at an end, an offset, a time, or so many messages further or back.

    A target outside of a log becomes its nearest end.
    """
    committed = await GroupAdmin(client).offsets(group)
    starts = await _offsets_at(client, places, EARLIEST)
    ends = await _offsets_at(client, places, LATEST)
    wanted: Mapping[TopicPartition, int]
    if isinstance(target, datetime):
        wanted = await _offsets_at(client, places, asked_ms(target))
    elif isinstance(target, int) and shift:
        wanted = {
            place: target + (committed[place].offset if place in committed else starts[place])
            for place in places
        }
    elif isinstance(target, int):
        wanted = dict.fromkeys(places, target)
    else:
        wanted = starts if target == "earliest" else ends
    moves = []
    for place in sorted(places):
        start, end = starts[place], ends[place]
        found = None if isinstance(target, datetime) and wanted[place] < 0 else wanted[place]
        nearest = end if found is None else min(max(found, start), end)
        current = committed[place].offset if place in committed else None
        moves.append(Move(place, current, found, nearest, end))
    return moves
