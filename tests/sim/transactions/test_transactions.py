"""Transactions under kills, power cuts, failing disks, lost answers and zombies, by many seeds (R24, R26).

Held are the invariants 4 and 6 to 10 and 13 of notes/reliability.md: readers of committed records never see too much
or too early; a transaction ends once and as a whole, with the offsets it carried; what was told is kept; nothing hangs
once all is healed; the journal is the state.
"""

import pytest
from tests.sim.transactions.world import TxnWorld

from levada.testing.sim_disk import SimDisk

ACTIONS = 350


def simulate(seed: int, disk_type: type[SimDisk] = SimDisk, actions: int = ACTIONS) -> TxnWorld:
    """Run one seed; a failure says how to replay it."""
    world = TxnWorld(seed, disk_type)
    try:
        world.run(actions)
    except Exception as error:
        error.add_note(
            f"replay: SEED={seed} python -m pytest tests/sim -k test_transactions_keep_their_promises"
        )
        error.add_note("the last actions:\n  " + "\n  ".join(world.trace[-60:]))
        raise
    finally:
        world.close()
    return world


def test_transactions_keep_their_promises(seed: int) -> None:
    simulate(seed)


@pytest.mark.parametrize("one", range(5))
def test_the_same_seed_gives_the_same_history(one: int) -> None:
    first, second = simulate(one), simulate(one)
    assert (first.trace, first.disk.digest) == (second.trace, second.disk.digest)
