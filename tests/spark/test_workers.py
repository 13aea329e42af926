"""What Spark's workers have loaded is not walked by the collector after each task; memory stays theirs."""

import gc
import importlib.util
import subprocess
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


MEMORY = """
import importlib.util, resource, sys
import numpy as np
from levada.spark.workers import keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [np.ones(20_000_000, np.uint8) for _ in range(3)]
    del pieces
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

sys.modules["__main__"].__spec__ = importlib.util.spec_from_loader(sys.argv[1], None)
keep_memory()
print([faults() for _ in range(4)][-1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
@pytest.mark.parametrize(("process", "keeps"), [("pyspark.daemon", True), ("a_user", False)])
def test_a_worker_keeps_the_memory_that_it_takes_over_and_over(process: str, keeps: bool) -> None:
    """60 MB are 15,000 pages; those of the driver's program are its own business."""
    done = subprocess.run([sys.executable, "-c", MEMORY, process], capture_output=True, text=True, check=True)
    assert (int(done.stdout) < 1_000) is keeps
