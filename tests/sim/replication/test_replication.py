"""Replicas under crashes, lost tails, delayed fetches, lagging images and lost commits, by many seeds."""

from tests.sim.replication.world import simulate


def test_invariants_hold(seed: int) -> None:
    simulate(seed)


def test_histories_are_not_empty() -> None:
    worlds = [simulate(seed) for seed in range(20)]
    assert sum(len(world.acknowledged) for world in worlds) > 100
    assert any("truncates" in line for world in worlds for line in world.trace)
    assert any("power True" in line for world in worlds for line in world.trace)
