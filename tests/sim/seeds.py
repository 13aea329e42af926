"""Runs worlds by seeds: how a failure is replayed, and the proof that planted bugs are found."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import pytest

from levada.testing.sim_disk import SimDisk

Plant = Callable[[pytest.MonkeyPatch], object]


class Violation(AssertionError):
    """The broker broke an invariant."""


class Traced(Protocol):
    """A world that writes down what happens in it."""

    trace: list[str]
    disk: SimDisk


@contextmanager
def replayable(world: Traced, seed: int, tests: str) -> Iterator[None]:
    """Adds to a failure how to replay it, and the last actions."""
    try:
        yield
    except Exception as error:
        error.add_note(f"replay: SEED={seed} python -m pytest tests/sim/{tests}")
        error.add_note("the last actions:\n  " + "\n  ".join(world.trace[-60:]))
        error.add_note("the last calls to the disk:\n  " + "\n  ".join(world.disk.trace[-40:]))
        raise


def must_be_found(plant: Callable[..., object], simulate: Callable[[int], object], seeds: range) -> None:
    """Run seeds until one of them finds what is wrong."""
    for seed in seeds:
        try:
            simulate(seed)
        except AssertionError as violation:
            print(f"{plant.__name__}: found by seed {seed}: {violation}")
            return
    pytest.fail(f"{plant.__name__} was not found by {seeds}")
