"""A pipeline at work: the queries it consists of, followed to their end."""

import re
import time
from collections.abc import Callable, Sequence

from levada.pipelines.runs.progress import Counter, Progress
from levada.pipelines.runs.steps import Query

POLL_SECONDS = 0.25
_CALLING = re.compile(r"An error occurred while calling \S+$")  # how py4j begins
_TRACEBACK, _WORKER = "Traceback (most recent call last):", "An exception was thrown from the Python worker:"
_PYTHON = re.compile(r"(?!java\.|org\.)(?:\w+\.)*\w+(?:Error|Exception): ")
_CLASSES = re.compile(r"^(?:.*\s)?(?:\w+\.)*\w+(?:Exception|Error): ")  # up to the last name of a class
_CONDITION = re.compile(r"^\[[A-Z_.]+\]\s*|\s*SQLSTATE: \w+$")


class PipelineError(Exception):
    """A pipeline ended because something is wrong; says what."""


class Running:
    """Its queries run in the background until `stop`, or until all that there was is done (`once`)."""

    def __init__(self, name: str, queries: Sequence[Query]) -> None:
        self.name = name
        self.queries = queries
        self._counter = Counter()
        self._heard: dict[str, Progress] = {}  # by query: what `watch` was told last

    def progress(self) -> Progress:
        """How far it is now, all queries together."""
        self._hear()
        return self._counter.progress()

    def _hear(self) -> None:
        for query in self.queries:
            self._counter.hear(query.recentProgress)

    @property
    def is_active(self) -> bool:
        return all(query.isActive for query in self.queries)

    def wait(
        self, seconds: float | None = None, watch: Callable[[Progress], None] = lambda progress: None
    ) -> bool:
        """Until it has ended; whether it has, within that time. `watch` hears of every step of each query.

        Raises PipelineError if a query failed; the others are stopped then.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while any(query.isActive for query in self.queries):
            if self._failed():
                break
            self._tell(watch)
            if until is not None and time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)
        failure = self._failed()
        self.stop()
        if failure:
            raise PipelineError(f"pipeline {self.name} failed: {failure}")
        self._tell(watch)
        return True

    def _tell(self, watch: Callable[[Progress], None]) -> None:
        self._hear()
        for progress in self._counter.each():
            if progress != self._heard.get(progress.query):
                self._heard[progress.query] = progress
                watch(progress if len(self.queries) > 1 else progress._replace(query=""))

    def stop(self) -> None:
        """End all queries; a batch under way is done again by the next run, and nothing is seen of it."""
        for query in self.queries:
            query.stop()

    def _failed(self) -> str:
        """Why the first query that failed did; empty if none."""
        for query in self.queries:
            error = query.exception()
            if error is not None:
                return reason(str(error))
        return ""


def reason(trace: str) -> str:
    """What a person needs of Spark's report of an error: the sentence of its deepest cause."""
    python = _raised(trace)
    if python and " " not in python[-1].partition(": ")[2]:
        return python[-1]  # one word says little without its class
    if python:
        told = python[-1].partition(": ")[2]
    else:
        lines = [line.strip().removeprefix(": ") for line in trace.splitlines() if line.strip(": ")]
        lines = [line for line in lines if not _CALLING.search(line)]
        causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
        told = ([cause for cause in causes if ": " in cause][-1:] or lines or [trace])[0]
    return _CONDITION.sub("", _CLASSES.sub("", told)).strip()


def _raised(trace: str) -> list[str]:
    """The exceptions of Python in it, each as `class: message`, in their order.

    Such a line ends a traceback; of an exception that explains itself a worker shows no traceback.
    """
    found, is_next = [], False
    for whole in trace.splitlines():
        line = whole.rpartition(_WORKER)[2]
        if line != whole or _TRACEBACK in line:
            is_next, line = True, "" if _TRACEBACK in line else line.strip()
        if line and not line[0].isspace():
            if (is_next or _PYTHON.match(line)) and not _CALLING.search(line):
                found.append(line)
            is_next = False
    return found
