"""Where a reader is, in the words of Spark's own Kafka connector: `{"orders": {"0": 5, "1": -2}}`.

Checkpoints hold this JSON, so it never changes; its keys are sorted, because Spark compares it as text.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from levada.model import TopicPartition
from levada.spark.options import INT64_MAX, OptionError

LATEST, EARLIEST = -1, -2  # in place of an offset, in what a user writes

Offsets = Mapping[TopicPartition, int]
Place = str | Offsets | None
Assigned = tuple[TopicPartition, ...]


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """As Spark keeps it."""
    found: dict[str, dict[str, int]] = {}
    for place in sorted(offsets):
        found.setdefault(place.topic, {})[str(place.partition)] = offsets[place]
    return found


def from_json(found: Any) -> dict[TopicPartition, int]:
    """What was kept; ValueError if it is something else."""
    try:
        return {
            TopicPartition(topic, _partition(number)): _offset(offset)
            for topic, partitions in found.items()
            for number, offset in partitions.items()
        }
    except AttributeError:
        raise ValueError('write {"topic": {"0": 23, "1": 42}}') from None


def parse_offsets(*names: str) -> Callable[[str], Place]:
    """The check of an option that takes some names or offsets."""

    def parse(text: str) -> Place:
        if text.lower() in names:
            return text.lower()
        if not text.startswith("{"):
            raise ValueError(f'write {", ".join(names)} or {{"topic": {{"0": 23, "1": -1}}}}')
        offsets = from_json(_json(text))
        lowest = EARLIEST if "earliest" in names else LATEST
        for place, offset in offsets.items():
            if offset < lowest:
                allowed = "-1 (latest) or -2 (earliest)" if lowest == EARLIEST else "-1 (latest)"
                raise ValueError(f"{offset} for {place} is neither an offset nor {allowed}")
        return offsets

    return parse


def parse_times(text: str) -> Offsets:
    """The check of an option that takes a time for each partition."""
    return from_json(_json(text))


def parse_assign(text: str) -> Assigned:
    """The check of `assign`."""
    found = _json(text)
    if not isinstance(found, dict) or not all(isinstance(numbers, list) for numbers in found.values()):
        raise ValueError('write {"topic": [0, 1]}')
    places = [
        TopicPartition(topic, _partition(number)) for topic, numbers in found.items() for number in numbers
    ]
    if not places:
        raise ValueError('write at least one partition: {"topic": [0, 1]}')
    return tuple(sorted(set(places)))


def check_places(asked: Iterable[TopicPartition], places: Iterable[TopicPartition], option: str) -> None:
    """What a user wrote for each partition must name those that are read; OptionError otherwise."""
    wanted, there = set(asked), set(places)
    if wanted != there:
        wrong = [f"nothing for {place}" for place in sorted(there - wanted)]
        wrong += [f"no partition {place} is read" for place in sorted(wanted - there)]
        raise OptionError(
            f"option {option} must name exactly the partitions that are read: {', '.join(wrong)}"
        )


def resolve(asked: Offsets, earliest: Offsets, latest: Offsets, option: str) -> dict[TopicPartition, int]:
    """Offsets that a user wrote, with -1 and -2 as what they mean."""
    check_places(asked, latest, option)
    known = {LATEST: latest, EARLIEST: earliest}
    return {place: known[offset][place] if offset in known else offset for place, offset in asked.items()}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"this is not JSON: {error}") from None


def _partition(number: object) -> int:
    text = str(number)
    if not text.isdecimal():
        raise ValueError(f"{number!r} is not the number of a partition")
    return int(text)


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    if not -INT64_MAX <= value <= INT64_MAX:
        raise ValueError(f"{value} is beyond all offsets and times")
    return value
