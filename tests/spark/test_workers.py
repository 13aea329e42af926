"""What Spark's workers have loaded is not walked by the collector after each task."""

import gc
import importlib.util
import sys

import pytest

from levada.spark import workers
from levada.spark.failures import told_plainly


@pytest.fixture
def unfrozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_loaded", 0)
    assert gc.get_freeze_count() == 0


def test_a_worker_keeps_what_it_has_loaded(unfrozen: None, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_loader("pyspark.daemon", None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    try:
        with told_plainly():
            pass
        kept = gc.get_freeze_count()
        assert kept > 10_000
        task = [[] for _ in range(1_000)]  # type: list[list[int]]
        with told_plainly():
            pass
        assert gc.get_freeze_count() <= kept, "what later tasks make is not kept"
        monkeypatch.setitem(sys.modules, "a_module_more", sys)
        with told_plainly():
            pass
        assert gc.get_freeze_count() > kept + len(task) - 100
    finally:
        gc.unfreeze()


def test_other_processes_are_left_alone(unfrozen: None) -> None:
    with told_plainly():
        pass
    assert gc.get_freeze_count() == 0
