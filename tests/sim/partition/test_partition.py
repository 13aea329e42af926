"""The storage and producer machines under crashes, torn writes and failing disks, by many seeds.

What was fsynced is never lost, what is served has a valid CRC and is what was stored there, recovery is idempotent,
an acknowledgement is kept, a sequence is in the log once.
"""

import pytest
from tests.sim.partition.world import simulate


def test_invariants_hold(seed: int) -> None:
    simulate(seed)


@pytest.mark.parametrize("one", range(5))
def test_the_same_seed_gives_the_same_history(one: int) -> None:
    first, second = simulate(one), simulate(one)
    assert (first.trace, first.disk.digest) == (second.trace, second.disk.digest)
