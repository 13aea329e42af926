"""Transactions under kills, power cuts, failing disks, lost responses and zombies, by many seeds.

Readers of committed records never see too much
or too early; a transaction ends once and as a whole, with the offsets it carried; what was told is kept; nothing hangs
once all is healed; the journal is the state.
"""

import pytest
from tests.sim.transactions.world import simulate


def test_invariants_hold(seed: int) -> None:
    simulate(seed)


@pytest.mark.parametrize("one", range(5))
def test_the_same_seed_gives_the_same_history(one: int) -> None:
    first, second = simulate(one), simulate(one)
    assert (first.trace, first.disk.digest) == (second.trace, second.disk.digest)
