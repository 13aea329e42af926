"""The process of a broker: what the garbage collector visits."""

import gc

import pytest

from levada.server import PARTITIONS_PER_FREEZE, _freeze_new_partitions


class OpenPartitions:
    """The log dirs, as the callback sees them."""

    partition_count = 0


def test_the_partitions_of_a_growing_broker_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full collection would visit all of them, and stop the loop meanwhile."""
    log_dirs, frozen = OpenPartitions(), []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(log_dirs.partition_count))
    collected = _freeze_new_partitions(log_dirs)  # type: ignore[arg-type]

    def collect_at(partitions: int, generation: int = 1) -> None:
        log_dirs.partition_count = partitions
        for phase in ("start", "stop"):
            collected(phase, {"generation": generation})

    for partitions in (0, 10, PARTITIONS_PER_FREEZE - 1):
        collect_at(partitions)
    collect_at(PARTITIONS_PER_FREEZE + 5, generation=0)  # young garbage may be left
    assert frozen == []
    for partitions in (1_005, 1_006, 2_004, 2_005, 2_006):
        collect_at(partitions, generation=2)
    assert frozen == [1_005, 2_005]
    for partitions in (2_100, 1_990, 2_100, 1_990, 2_100):  # created and deleted again
        collect_at(partitions)
    assert frozen == [1_005, 2_005]
    for partitions in (5, 1_004, 1_005):
        collect_at(partitions)
    assert frozen == [1_005, 2_005, 1_005]
