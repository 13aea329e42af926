"""Where a batch begins and ends and a stream begins: what the options say, held against the logs as they are."""

from collections.abc import Collection, Mapping

from levada.errors import ErrorCode
from levada.model import TopicPartition
from levada.spark.options import OptionError, moment_told
from levada.spark.read.fetcher import DataLoss
from levada.spark.read.logs import Logs
from levada.spark.read.offsets import Offsets, check_places, resolve
from levada.spark.read.options import ReadOptions
from levada.spark.warning import warn

Places = Collection[TopicPartition]


def starting(
    options: ReadOptions, logs: Logs, earliest: Offsets, latest: Offsets, default: str
) -> dict[TopicPartition, int]:
    """Where to begin in each partition of `latest`."""
    if options.starting_timestamp is not None:
        times = dict.fromkeys(latest, options.starting_timestamp)
        found = _since(options, logs, times, latest, "startingTimestamp")
    elif options.starting_offsets_by_timestamp is not None:
        times = dict(options.starting_offsets_by_timestamp)
        name = "startingOffsetsByTimestamp"
        check_places(times, latest, name)
        found = _since(options, logs, times, latest, name)
    else:
        place = options.starting_offsets if options.starting_offsets is not None else default
        if isinstance(place, str):
            found = dict(earliest if place == "earliest" else latest)
        else:
            found = resolve(place, earliest, latest, "startingOffsets")
    if options.from_time is None:
        return found
    # Everything before the first record from a time on is earlier than it, so need not be fetched.
    first = logs.at(dict.fromkeys(latest, options.from_time))
    return {
        place: max(start, latest[place] if first[place] < 0 else first[place])
        for place, start in found.items()
    }


def ending(options: ReadOptions, logs: Logs, earliest: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """Where a batch ends in each partition of `latest`."""
    times: Mapping[TopicPartition, int] | None = options.ending_offsets_by_timestamp
    if options.ending_timestamp is not None:
        times = dict.fromkeys(latest, options.ending_timestamp)
    if times is not None:
        check_places(times, latest, "endingOffsetsByTimestamp")
        found = logs.at(times)
        return {place: end if 0 <= end < latest[place] else latest[place] for place, end in found.items()}
    if options.ending_offsets is None or isinstance(options.ending_offsets, str):
        return dict(latest)
    ends = resolve(options.ending_offsets, earliest, latest, "endingOffsets")
    for place, end in ends.items():
        if end > latest[place]:
            raise OptionError(f"option endingOffsets: {place} ends at {latest[place]}, and not at {end}")
    return ends


def _since(
    options: ReadOptions, logs: Logs, times: Offsets, latest: Offsets, name: str
) -> dict[TopicPartition, int]:
    found = logs.at(times)
    for place, offset in found.items():
        if offset < 0 and options.timestamp_strategy == "error":
            raise OptionError(
                f"option {name}: nothing was written to {place} since {moment_told(times[place])}; set option "
                "startingOffsetsByTimestampStrategy to latest to begin at its end"
            )
    return {place: latest[place] if offset < 0 else offset for place, offset in found.items()}


def lost(options: ReadOptions, what: str) -> None:
    """Records are gone that should have been read: the end of the query, or a warning."""
    if options.fail_on_data_loss:
        raise DataLoss(ErrorCode.OFFSET_OUT_OF_RANGE, what)
    warn(f"{what}; going on with what is left")
