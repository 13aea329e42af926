"""Spark workers: the garbage collector skips loaded modules, and tasks start at once."""

import gc
import importlib.util
import subprocess
import sys

import pytest

from levada.spark import worker
from levada.spark.errors import spark_callback
from levada.spark.read.batch import BatchReader
from levada.spark.read.stream import StreamReader
from levada.spark.write.jobs import JobWriter, NamedJobWriter
from levada.spark.write.sink import StreamWriter


@pytest.fixture
def unfrozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_modules_frozen", 0)
    assert gc.get_freeze_count() == 0


def is_walked(thing: object) -> bool:
    """Whether the collector looks at it."""
    return any(one is thing for one in gc.get_objects())


def test_a_worker_keeps_what_it_has_loaded(unfrozen: None, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_loader("pyspark.daemon", None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    try:
        with spark_callback():
            pass
        assert gc.get_freeze_count() > 10_000
        task = [gc]
        with spark_callback():
            pass
        assert is_walked(task), "what later tasks make is not kept"
        monkeypatch.setitem(sys.modules, "a_module_more", sys)
        with spark_callback():
            pass
        assert not is_walked(task)
    finally:
        gc.unfreeze()


def test_other_processes_are_left_alone(unfrozen: None) -> None:
    with spark_callback():
        pass
    assert gc.get_freeze_count() == 0


MEMORY = """
import ctypes, importlib.util, resource, sys
import numpy as np
from levada.spark.worker import retain_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [np.ones(20_000_000, np.uint8) for _ in range(3)]
    del pieces
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize()

NO_HUGE_PAGES = 41  # prctl's number for it
assert ctypes.CDLL(None).prctl(NO_HUGE_PAGES, 1, 0, 0, 0) == 0
sys.modules["__main__"].__spec__ = importlib.util.spec_from_loader(sys.argv[1], None)
retain_freed_memory()
print([faults() for _ in range(4)][-1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
@pytest.mark.parametrize(("process", "keeps"), [("pyspark.daemon", True), ("a_user", False)])
def test_a_worker_keeps_the_memory_that_it_takes_over_and_over(process: str, keeps: bool) -> None:
    """60 MB, asked for page by page or not at all; the memory of the driver's program is its own business.

    Pages are all of the small size here: numpy asks for huge ones, and how many it is given depends on the machine.
    """
    done = subprocess.run([sys.executable, "-c", MEMORY, process], capture_output=True, text=True, check=True)
    assert (int(done.stdout) < 6_000_000) is keeps


ARRIVAL = """
import importlib.util, pickle, socket, sys
from levada.spark.worker import QuickAck

class Reader(QuickAck):
    topic = ""

def hears_late():  # whether the system waits before it acknowledges
    return worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 0

with socket.create_server(("127.0.0.1", 0)) as server:
    spark = socket.create_connection(server.getsockname())
    worker, _ = server.accept()
sys.modules["__main__"].__spec__ = importlib.util.spec_from_loader(sys.argv[1], None)
reader = Reader()
reader.topic = "orders"
for _ in range(3):  # tasks
    while not hears_late():
        spark.sendall(b"task")
        worker.recv(4)
        worker.sendall(b"done")
        spark.recv(4)
    assert pickle.loads(pickle.dumps(reader)).topic == "orders"
    print(hears_late())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others acknowledge in other ways")
@pytest.mark.parametrize("spec", ["pyspark.daemon", "other"])
def test_what_arrives_in_a_worker_is_acknowledged_at_once(spec: str) -> None:
    """Every time; a program that is no worker is left alone."""
    done = subprocess.run([sys.executable, "-c", ARRIVAL, spec], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(spec != "pyspark.daemon")] * 3, done.stderr


def test_all_that_spark_copies_into_workers_is_acknowledged() -> None:
    for kind in (BatchReader, StreamReader, StreamWriter, JobWriter, NamedJobWriter):
        assert issubclass(kind, worker.QuickAck)
