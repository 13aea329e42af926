"""A crash at every step of roll, flush, retention, truncation and shutdown: the log opens and loses nothing."""

import pytest
from tests.sim.partition.world import World

from levada.testing.sim_disk import SimCrash

pytestmark = pytest.mark.slow


def live(world: World) -> None:
    """A short life in which everything happens that touches the disk."""
    for _ in range(2):
        for producer in world.producers:
            for _ in range(3):
                if batch := producer.next_batch(world.random, world.now_ms):
                    world.send(producer, batch)
            world.end_iteration()
        world.sync()
        world.deliver_sync()
        world.roll()
        world.change_leader()
        world.produce()
        world.end_iteration()
        world.delete_records()
        world.checkpoint()
        world.retain()
        world.truncate()
        world.produce()
        world.restart_cleanly()


def steps_of_a_life(seed: int) -> int:
    world = World(seed)
    live(world)
    return world.disk.steps


@pytest.mark.parametrize("power_cut", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("life", range(4))
def test_a_crash_at_every_step(life: int, power_cut: bool) -> None:
    crashes = 0
    for step in range(1, steps_of_a_life(life) + 1):
        world = World(life)
        world.disk.crash_at = world.disk.steps + step
        try:
            live(world)
        except SimCrash:
            crashes += 1
            try:
                world.crash(power_cut)
                world.produce()
                world.end_iteration()
                world.check_log()
            except Exception as error:
                error.add_note(f"life {life}, crash at step {step}")
                raise
    assert crashes >= 40
