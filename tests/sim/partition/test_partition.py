"""The storage and producer machines under crashes, torn writes and failing disks, by many seeds (R17, R21, R25).

What was fsynced is never lost, what is served has a valid CRC and is what was stored there, recovery is idempotent,
an acknowledgement is kept, a sequence is in the log once.
"""

import pytest
from tests.sim.partition.world import World

from levada.testing.sim_disk import SimDisk

ACTIONS = 150


def simulate(seed: int, disk_type: type[SimDisk] = SimDisk, actions: int = ACTIONS) -> World:
    """Run one seed; a failure says how to replay it."""
    world = World(seed, disk_type)
    try:
        world.run(actions)
    except Exception as error:
        error.add_note(f"replay: SEED={seed} python -m pytest tests/sim -k test_partition_keeps_its_promises")
        error.add_note("the last actions:\n  " + "\n  ".join(world.trace[-25:]))
        error.add_note("the last calls to the disk:\n  " + "\n  ".join(world.disk.trace[-40:]))
        raise
    return world


def test_partition_keeps_its_promises(seed: int) -> None:
    simulate(seed)


@pytest.mark.parametrize("one", range(5))
def test_the_same_seed_gives_the_same_history(one: int) -> None:
    first, second = simulate(one), simulate(one)
    assert (first.trace, first.disk.digest) == (second.trace, second.disk.digest)
