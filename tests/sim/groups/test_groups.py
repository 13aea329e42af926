"""Groups of both protocols and their offsets under random faults, by many seeds.

A partition has one owner at most; offsets are what was committed
last by whoever was allowed to, and none that anybody was told of is lost; the journal is the state. When the trouble
ends, every group comes to rest with all partitions read, and what is kept no longer goes.
"""

import pytest
from tests.sim.groups.world import simulate


def test_invariants_hold(seed: int) -> None:
    simulate(seed)


@pytest.mark.parametrize("one", range(6))
def test_the_same_seed_gives_the_same_history(one: int) -> None:
    first, second = simulate(one), simulate(one)
    assert (first.trace, first.disk.digest) == (second.trace, second.disk.digest)
