"""The end of Spark's JVM is explained, also while it shuts down and still accepts connections."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from levada.pipelines.errors import explain_failure

FAILURES = [
    "Job 0 cancelled because SparkContext was shut down",
    'Cannot invoke "org.apache.spark.scheduler.DAGScheduler.cleanupQueryJobs(long)" because the return value of '
    '"org.apache.spark.SparkContext.dagScheduler()" is null',
]


def spark(monkeypatch: pytest.MonkeyPatch, process: object, *, stopped: bool) -> None:
    """PySpark with a JVM that responds."""
    from pyspark import SparkContext

    jvm = SimpleNamespace(System=SimpleNamespace(nanoTime=lambda: 1))
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: stopped)))
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process, jvm=jvm))
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize(
    ("code", "reason"),
    [(52, "Spark ran out of memory, and its JVM has ended"), (3, "Spark's JVM has ended with exit code 3")],
)
def test_a_failure_while_the_jvm_ends(monkeypatch: pytest.MonkeyPatch, code: int, reason: str, failure: str) -> None:
    program = f"import sys, time; time.sleep(0.3); sys.exit({code})"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        spark(monkeypatch, process, stopped=True)
        assert explain_failure(RuntimeError(failure)).startswith(reason)


def test_a_failure_of_a_jvm_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        spark(monkeypatch, process, stopped=False)
        assert explain_failure(RuntimeError("the topic has no records")) == "the topic has no records"
