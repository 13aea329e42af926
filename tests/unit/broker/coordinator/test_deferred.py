"""Results that a coordinator completes later, and their deadlines."""

import asyncio
from typing import Any

import pytest

from levada.broker.coordinator.gather import gather
from levada.broker.coordinator.runtime import java_abs, java_hash
from levada.broker.purgatory import DelayedResult
from levada.core.groups.machine import GroupsMachine
from levada.core.machine import Deadlines
from levada.errors import ErrorCode, KafkaError


@pytest.mark.parametrize(
    ("text", "number"),
    [("", 0), ("g", 103), ("hello", 99_162_322), ("polygenelubricants", -(2**31)), ("größe 🙂", None)],
)
def test_keys_are_hashed_as_java_does(text: str, number: int | None) -> None:
    expected = 0
    units = text.encode("utf-16-be")
    for position in range(0, len(units), 2):
        expected = 31 * expected + int.from_bytes(units[position : position + 2], "big")
    expected = (expected + 2**31) % 2**32 - 2**31
    assert java_hash(text) == expected
    if number is not None:
        assert java_hash(text) == number
    assert java_abs(java_hash(text)) >= 0


def test_what_is_deferred_completes_once() -> None:
    received: list[Any] = []
    first = DelayedResult(lambda number: number + 1)
    first.add_done_callback(received.append)
    first.complete(1)
    first.complete(5)
    late: DelayedResult = DelayedResult()
    late.complete("known")
    late.add_done_callback(received.append)
    broken = DelayedResult(lambda number: 1 // number)
    broken.complete(0)
    broken.add_done_callback(received.append)
    assert received[:2] == [2, "known"]
    assert isinstance(received[2], ZeroDivisionError)


def test_what_is_deferred_can_be_awaited() -> None:
    async def main() -> list[Any]:
        good, bad = DelayedResult(), DelayedResult()
        loop = asyncio.get_running_loop()
        loop.call_soon(good.complete, 1)
        loop.call_soon(bad.complete, KafkaError(ErrorCode.NOT_COORDINATOR))
        with pytest.raises(KafkaError):
            await bad
        return [await good]

    assert asyncio.run(main()) == [1]


def test_many_answers_make_one() -> None:
    parts = [DelayedResult() for _ in range(3)]
    received: list[Any] = []
    gather(parts, tuple).add_done_callback(received.append)
    for part, number in zip(reversed(parts), range(3), strict=True):
        assert received == []
        part.complete(number)
    assert received == [(2, 1, 0)]
    gather([], tuple).add_done_callback(received.append)
    assert received[1] == ()


def test_deadlines_move_and_end() -> None:
    deadlines: Deadlines[str] = Deadlines()
    assert deadlines.next_ms() is None
    deadlines.set("a", 10)
    deadlines.set("b", 20)
    deadlines.set("a", 30)
    assert deadlines.due(15) == []
    deadlines.set("b", 12)
    assert deadlines.due(15) == ["b"]
    deadlines.cancel("b")
    assert deadlines.due(25) == []
    assert deadlines.get("a") == 30
    assert deadlines.due(30) == ["a"]
    assert deadlines.due(31) == ["a"], "until it is ended or moved"
    deadlines.cancel("a")
    assert deadlines.due(99) == []
    assert deadlines.next_ms() is None


def test_a_machine_of_groups_has_a_deadline_from_the_first() -> None:
    machine = GroupsMachine()
    for event in machine.on_loaded(5).events:
        machine.apply(event)
    assert machine.next_deadline_ms() == 5 + machine.limits.offsets_retention_check_interval_ms
