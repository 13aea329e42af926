"""Positions in a log as `consume` takes them: where to start, where to stop, and whether the log reaches there."""

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from levada.cli.errors import EXIT_USAGE, CommandError
from levada.cli.options import TimeType, notice
from levada.cli.records.kcat import OutputType, flag_of_position
from levada.model import TopicPartition

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.client.consumer.consumer import Consumer, Start
    from levada.client.consumer.group_consumer import GroupConsumer

Until = int | datetime


class StartType(click.ParamType["Start"]):
    """A start position in kcat's syntax."""

    name = "start"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> "Start":
        text = str(value)
        if text in ("beginning", "earliest"):
            return "earliest"
        if text in ("end", "latest"):
            return "latest"
        if re.fullmatch(r"-?\d+", text):
            return int(text)
        if text.startswith("s@"):
            return TimeType().convert(text[2:], param, ctx)
        if hint := flag_of_position(text):
            raise CommandError(f"{text} is not where to start", EXIT_USAGE, f"try: {hint}")
        return self.fail(f"{text!r} is not beginning, end, an offset, -COUNT or s@TIME", param, ctx)


class OutputOrPosition(OutputType):
    """The output of `consume`; a position of kcat's -o, abbreviated or hexadecimal too, is answered with its flag."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        with suppress(ValueError):
            text = str(int(text, 0))
        names = (name for name in ("beginning", "end", "stored") if text and name.startswith(text))
        return super().convert(next(names, text), param, ctx)


class UntilType(click.ParamType[Until]):
    """The position of the first record that is not read."""

    name = "until"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Until:
        text = str(value)
        if text.isdecimal():
            return int(text)
        if text.startswith("s@"):
            return TimeType().convert(text[2:], param, ctx)
        return self.fail(f"{text!r} is not an offset or s@TIME", param, ctx)


async def check_offset(client: "Client", consumer: "Consumer", offset: int) -> None:
    """Raise CommandError, with the offsets of the log, for a partition that does not have the offset."""
    from levada.client.data import EARLIEST, LATEST

    ends = await client.list_offsets(dict.fromkeys(consumer.assignment, LATEST))
    starts = await client.list_offsets(dict.fromkeys(consumer.assignment, EARLIEST))
    beyond = [f"{one} ends at {ends[one].offset}" for one in consumer.assignment if offset > ends[one].offset]
    if beyond:
        hint = "try: --from end, --from -10 for the last ten records, or -p for one partition"
        raise CommandError(f"offset {offset} is beyond the end: {', '.join(beyond)} (OFFSET_OUT_OF_RANGE)", hint=hint)
    before = [f"{one} begins at {starts[one].offset}" for one in consumer.assignment if offset < starts[one].offset]
    if before:
        hint = "try: --from beginning, or -p for one partition"
        raise CommandError(f"offset {offset} is deleted: {', '.join(before)} (OFFSET_OUT_OF_RANGE)", hint=hint)


async def outside_log(client: "Client", consumer: "GroupConsumer") -> CommandError:
    """The error of a member that is at an offset which a log does not have, committed or given as the start."""
    from levada.client.data import EARLIEST, LATEST

    ends = await client.list_offsets(dict.fromkeys(consumer.assignment, LATEST))
    starts = await client.list_offsets(dict.fromkeys(consumer.assignment, EARLIEST))
    group = consumer.membership.group
    outside = [
        f"group {group} is at offset {at} of {one}, which has {starts[one].offset} to {ends[one].offset}"
        for one, at in consumer.positions().items()
        if not starts[one].offset <= at <= ends[one].offset
    ]
    hint = f"try: -X auto.offset.reset=earliest (or latest), or levada group reset {group} --to-earliest"
    return CommandError(f"{', '.join(outside) or 'offset out of range'} (OFFSET_OUT_OF_RANGE)", hint=hint)


async def notice_of_wait(consumer: "Consumer", stops: Mapping[TopicPartition, int]) -> None:
    """Print a notice if partitions end before their stop offsets: the command waits for records to come."""
    if not stops:
        return
    ends = await consumer.end_offsets()
    for partition, stop in stops.items():
        if ends[partition] < stop:
            notice(f"waiting for offset {stop - 1}: {partition} ends at {ends[partition]}; -e stops there")
            return


async def stop_offsets(
    client: "Client", consumer: "Consumer", until: Until | None, exit_at_end: bool
) -> Mapping[TopicPartition, int]:
    """The offset at which each partition stops; empty if none does.

    Before a time means the records of that time that are there now; before an offset also those that come later.
    """
    if until is None and not exit_at_end:
        return {}
    ends = await consumer.end_offsets()
    if isinstance(until, datetime):
        from levada.client.data import timestamp_of

        found = await client.list_offsets(dict.fromkeys(ends, timestamp_of(until)))
        return {one: min(end, found[one].offset) if found[one].offset >= 0 else end for one, end in ends.items()}
    if until is None:
        return ends
    return {one: min(end, until) for one, end in ends.items()} if exit_at_end else dict.fromkeys(ends, until)
