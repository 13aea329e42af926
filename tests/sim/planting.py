"""How the simulators are tested themselves: a bug is planted into the broker, and some seed must find it."""

from collections.abc import Callable

import pytest
from tests.sim.partition.world import Violation

Plant = Callable[[pytest.MonkeyPatch], object]


def must_be_found(plant: Callable[..., object], simulate: Callable[[int], object], seeds: range) -> None:
    """Run seeds until one of them finds what is wrong."""
    for seed in seeds:
        try:
            simulate(seed)
        except (Violation, AssertionError) as violation:
            print(f"{plant.__name__}: found by seed {seed}: {violation}")
            return
    pytest.fail(f"{plant.__name__} was not found by {seeds}")
