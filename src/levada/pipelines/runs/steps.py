"""Work of the driver that goes on step by step, and is followed like a streaming query of Spark."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMEMBERED = 100  # steps to tell of, as Spark does


class Query(Protocol):
    """What a pipeline needs of its parts: Spark's streaming queries have it, and so have `Steps`."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802
    @property
    def recentProgress(self) -> Any: ...  # noqa: N802
    def exception(self) -> Any: ...
    def stop(self) -> None: ...


class Step(NamedTuple):
    """One step, done."""

    number: int  # of all runs
    rows: int
    rows_done: int
    rows_wanted: int


class Steps:
    """A thread that takes one step after the other until there are no more, or until it is stopped between two."""

    def __init__(
        self, name: str, spark: "SparkSession", work: Callable[[threading.Event], Iterator[Step]]
    ) -> None:
        self._name = name
        self._spark = spark
        self._work = work
        self._told: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self._failure: Exception | None = None
        self._stopped = threading.Event()  # a step that waits for its time waits for this
        self._thread = threading.Thread(target=self._run, name=f"levada {name}", daemon=True)

    def start(self) -> "Steps":
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            # Spark looks for Python's data sources in the session of the thread, and a new thread has none.
            jvm: Any = self._spark._jvm
            jvm.SparkSession.setActiveSession(self._spark._jsparkSession)
            began = time.monotonic()
            for step in self._work(self._stopped):
                seconds = time.monotonic() - began
                self._told.append(_progress(self._name, step, seconds))
                began += seconds
                if self._stopped.is_set():
                    return
        except Exception as error:  # noqa: BLE001 (whoever waits hears of it)
            self._failure = error

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._thread.is_alive()

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
        return list(self._told)

    def exception(self) -> Exception | None:
        return self._failure

    def stop(self) -> None:
        """After the step that is being taken."""
        self._stopped.set()
        self._thread.join()


def _progress(name: str, step: Step, seconds: float) -> dict[str, Any]:
    """As Spark tells of a micro-batch; the rows stand for offsets."""
    end, latest = ({"rows": {"0": rows}} for rows in (step.rows_done, step.rows_wanted))
    return {
        "id": name,
        "batchId": step.number,
        "numInputRows": step.rows,
        "processedRowsPerSecond": step.rows / max(seconds, 1e-3),
        "durationMs": {"triggerExecution": round(seconds * 1000)},
        "sources": [{"endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}],
    }
