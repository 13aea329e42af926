"""Offsets of a query: their JSON format, and the start and end offsets that the options of a query mean.

The format is that of Spark's own Kafka connector: `{"orders": {"0": 5, "1": -2}}`. Checkpoints hold it, so it never
changes. Its keys are sorted, because Spark compares it as text.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from levada.errors import ErrorCode
from levada.model import TopicPartition
from levada.spark.errors import DataLoss, OptionError, warn
from levada.spark.options import INT64_MAX, format_timestamp

if TYPE_CHECKING:
    from levada.spark.read.offset_reader import OffsetReader
    from levada.spark.read.options import ReadOptions

LATEST, EARLIEST = -1, -2  # in place of an offset, in an option

Offsets = Mapping[TopicPartition, int]
OffsetSpec = str | Offsets | None  # the value of startingOffsets or endingOffsets


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets as Spark stores them in a checkpoint."""
    found: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return found


def from_json(found: Any) -> dict[TopicPartition, int]:
    """The offsets in a checkpoint or an option; ValueError if it has another format."""
    try:
        return {
            TopicPartition(topic, _partition(number)): _offset(offset)
            for topic, partitions in found.items()
            for number, offset in partitions.items()
        }
    except AttributeError:
        raise ValueError('write {"topic": {"0": 23, "1": 42}}') from None


def parse_offsets(*names: str) -> Callable[[str], OffsetSpec]:
    """The parser of an option that takes one of these names, or offsets."""

    def parse(text: str) -> OffsetSpec:
        if text.lower() in names:
            return text.lower()
        if not text.startswith("{"):
            raise ValueError(f'write {", ".join(names)} or {{"topic": {{"0": 23, "1": -1}}}}')
        offsets = from_json(_json(text))
        lowest = EARLIEST if "earliest" in names else LATEST
        for partition, offset in offsets.items():
            if offset < lowest:
                allowed = "-1 (latest) or -2 (earliest)" if lowest == EARLIEST else "-1 (latest)"
                raise ValueError(f"{offset} for {partition} is neither an offset nor {allowed}")
        return offsets

    return parse


def parse_times(text: str) -> Offsets:
    """The parser of an option that takes a timestamp for each partition."""
    return from_json(_json(text))


def parse_assign(text: str) -> tuple[TopicPartition, ...]:
    """The parser of option `assign`."""
    found = _json(text)
    if not isinstance(found, dict) or not all(isinstance(numbers, list) for numbers in found.values()):
        raise ValueError('write {"topic": [0, 1]}')
    partitions = [TopicPartition(topic, _partition(number)) for topic, numbers in found.items() for number in numbers]
    if not partitions:
        raise ValueError('write at least one partition: {"topic": [0, 1]}')
    return tuple(sorted(set(partitions)))


def check_partitions(named: Iterable[TopicPartition], partitions: Iterable[TopicPartition], option: str) -> None:
    """Raise OptionError unless an option names exactly the partitions that the query reads."""
    wanted, there = set(named), set(partitions)
    if wanted != there:
        wrong = [f"nothing for {partition}" for partition in sorted(there - wanted)]
        wrong += [f"no partition {partition} is read" for partition in sorted(wanted - there)]
        raise OptionError(f"option {option} must name exactly the partitions that are read: {', '.join(wrong)}")


def resolve_offsets(spec: Offsets, earliest: Offsets, latest: Offsets, option: str) -> dict[TopicPartition, int]:
    """The offsets of an option with -1 replaced by the latest and -2 by the earliest offset."""
    check_partitions(spec, latest, option)
    known = {LATEST: latest, EARLIEST: earliest}
    return {partition: known[offset][partition] if offset in known else offset for partition, offset in spec.items()}


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
        raise ValueError(f"{value} does not fit into 64 bits")
    return value


# Start and end offsets: the options compared with the logs as they are.


def start_offsets(
    options: "ReadOptions", reader: "OffsetReader", earliest: Offsets, latest: Offsets, default: str
) -> dict[TopicPartition, int]:
    """The offset at which a query starts in each partition of `latest`."""
    if options.starting_timestamp is not None:
        times = dict.fromkeys(latest, options.starting_timestamp)
        found = _offsets_for_times(options, reader, times, latest, "startingTimestamp")
    elif options.starting_offsets_by_timestamp is not None:
        times = dict(options.starting_offsets_by_timestamp)
        name = "startingOffsetsByTimestamp"
        check_partitions(times, latest, name)
        found = _offsets_for_times(options, reader, times, latest, name)
    else:
        spec = options.starting_offsets if options.starting_offsets is not None else default
        if isinstance(spec, str):
            found = dict(earliest if spec == "earliest" else latest)
        else:
            found = resolve_offsets(spec, earliest, latest, "startingOffsets")
    for partition, offset in found.items():
        if offset > latest[partition]:
            raise OptionError(
                f"option startingOffsets: {partition} ends at {latest[partition]}, before {offset}; "
                "start at an offset that exists, or at latest"
            )
    return found


def skip_to_from_time(
    options: "ReadOptions", reader: "OffsetReader", start: dict[TopicPartition, int], latest: Offsets
) -> dict[TopicPartition, int]:
    """Start offsets without the records before option `fromTime`, which need not be fetched."""
    if options.from_time is None:
        return start
    first = reader.at(dict.fromkeys(latest, options.from_time))
    return {
        partition: max(offset, latest[partition] if first[partition] < 0 else first[partition])
        for partition, offset in start.items()
    }


def end_offsets(
    options: "ReadOptions", reader: "OffsetReader", earliest: Offsets, latest: Offsets
) -> dict[TopicPartition, int]:
    """The offset at which a batch query ends in each partition of `latest`."""
    times: Mapping[TopicPartition, int] | None = options.ending_offsets_by_timestamp
    if options.ending_timestamp is not None:
        times = dict.fromkeys(latest, options.ending_timestamp)
    if times is not None:
        check_partitions(times, latest, "endingOffsetsByTimestamp")
        found = reader.at(times)
        return {
            partition: end if 0 <= end < latest[partition] else latest[partition] for partition, end in found.items()
        }
    if options.ending_offsets is None or isinstance(options.ending_offsets, str):
        return dict(latest)
    ends = resolve_offsets(options.ending_offsets, earliest, latest, "endingOffsets")
    for partition, end in ends.items():
        if end > latest[partition]:
            beyond = f"option endingOffsets: {end} is beyond the latest offset of {partition}, {latest[partition]}"
            if options.fail_on_data_loss:
                raise OptionError(f"{beyond}; set failOnDataLoss to false to read what is there")
            warn(f"{beyond}; the query reads what is there")
            ends[partition] = latest[partition]
    return ends


def check_order(start: Offsets, end: Offsets) -> None:
    """Raise OptionError if a batch would end before it starts."""
    for partition in sorted(start):
        if start[partition] > end[partition]:
            raise OptionError(
                f"the query would read {partition} from offset {start[partition]} to {end[partition]}, which is before "
                "it; correct startingOffsets and endingOffsets, or their timestamps"
            )


def _offsets_for_times(
    options: "ReadOptions", reader: "OffsetReader", times: Offsets, latest: Offsets, name: str
) -> dict[TopicPartition, int]:
    found = reader.at(times)
    for partition, offset in found.items():
        if offset < 0 and options.timestamp_strategy == "error":
            raise OptionError(
                f"option {name}: {partition} has no record since {format_timestamp(times[partition])}; set option "
                "startingOffsetsByTimestampStrategy to latest to start at its end"
            )
    return {partition: latest[partition] if offset < 0 else offset for partition, offset in found.items()}


def report_data_loss(options: "ReadOptions", what: str) -> None:
    """Records that the query had to read are gone: DataLoss, or with failOnDataLoss=false a warning."""
    if options.fail_on_data_loss:
        raise DataLoss(ErrorCode.OFFSET_OUT_OF_RANGE, what)
    warn(f"{what}; the query continues with what is left")
