"""The runs of pipelines on this machine: a directory for each, which outlives its process.

A run holds the lock of its directory as long as it lives, so a killed one is never taken for a live one, and no
pipeline runs twice under one name. What it is asked and how far it is stands beside the lock; so does the
checkpoint, from which the same name goes on.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from levada.pipelines.runs.progress import Progress

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
POLL_SECONDS = 0.1
LOCK_TRIES = 5  # of who starts a run, POLL_SECONDS apart
NUMBER = (int, float)
SAID: Mapping[str, Mapping[str, Any]] = {  # what must be in a file
    "run.json": {"pipeline": str, "pid": int, "started_ms": int, "options": dict},
    "progress.json": {"state": str, "at_ms": int, "why": str},
}
TOLD: Mapping[str, Any] = dict.fromkeys(Progress._fields, NUMBER) | {  # and what may be, of progress
    "lag": (int, type(None)),
    "query": str,
}


class RunError(Exception):
    """A run that cannot be begun, found or ended; says what to do."""


class Told(NamedTuple):
    """What is known of a run."""

    name: str
    pipeline: str
    state: str  # running, stopped, finished, failed, killed, or damaged if nobody can tell
    pid: int
    started_ms: int
    options: Mapping[str, Any]
    progress: Progress
    progress_ms: int  # when it was told
    why: str = ""  # of one that failed or is damaged


def home_directory() -> str:
    """Where runs are kept unless a user says otherwise."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.environ.get("LEVADA_PIPELINES") or os.path.join(state, "levada", "pipelines")


class Run:
    """One name in a home directory."""

    def __init__(self, home: str, name: str) -> None:
        if not NAME.fullmatch(name):
            raise RunError(
                f"{name!r} cannot be a name: at most 100 of a-z A-Z 0-9 . _ -, the first a letter or digit"
            )
        self.name = name
        self.directory = os.path.join(home, name)
        self._before: Told | None = None  # what was known when it began to be held

    @property
    def checkpoint(self) -> str:
        """For Spark: the same name goes on from here."""
        return os.path.join(self.directory, "checkpoint")

    @property
    def spark_log(self) -> str:
        """What Spark itself said in the last run."""
        return os.path.join(self.directory, "spark.log")

    @contextmanager
    def held(self, pipeline: str, options: Mapping[str, Any], now_ms: int) -> Iterator[None]:
        """Be this run; refuses if another process is."""
        lock = self._own_lock()
        if lock is None:
            raise RunError(f"pipeline {self.name} runs already; try: levada pipeline status {self.name}")
        try:
            known = self._known(pipeline)
            if known and known["pipeline"] != pipeline:
                raise RunError(
                    f"{self.name} is the name of a run of {known['pipeline']}; give this one another by --name"
                )
            self._before = self.told() if known else None
            about = {"pipeline": pipeline, "pid": os.getpid(), "started_ms": now_ms, "options": dict(options)}
            self._write("run.json", about)
            self.tell(Progress(), "running", now_ms)
            yield
        finally:
            os.close(lock)

    def _known(self, pipeline: str) -> dict[str, Any] | None:
        try:
            return self._read("run.json")
        except RunError as damage:
            raise RunError(
                f"{damage}; if it was {pipeline} that ran under this name, remove that file and it goes on, "
                "otherwise give this one another name by --name"
            ) from None

    def tell(self, progress: Progress, state: str, now_ms: int, why: str = "") -> None:
        """Let others know."""
        self._write("progress.json", {"state": state, "at_ms": now_ms, "why": why} | progress._asdict())

    def did_not_begin(self, why: str, now_ms: int) -> None:
        """Let others know that it failed at the start: what it was asked and did before still counts."""
        before = self._before
        if before is not None and before.pipeline:
            about = {"pipeline": before.pipeline, "pid": os.getpid(), "started_ms": before.started_ms}
            self._write("run.json", about | {"options": dict(before.options)})
        self.tell(before.progress if before else Progress(), "failed", now_ms, why)

    def forget(self) -> None:
        """Remove what is kept of it, its checkpoint too; refuses while it runs."""
        lock = self._own_lock()
        if lock is None:
            raise RunError(f"pipeline {self.name} runs; try: levada pipeline stop {self.name}")
        try:
            shutil.rmtree(self.directory)
        finally:
            os.close(lock)

    def told(self) -> Told | None:
        """What is known; None of a name that never ran."""
        try:
            about, newest = self._read("run.json"), self._read("progress.json")
        except RunError as damage:
            changed_ms = int(os.stat(self.directory).st_mtime * 1000)
            return Told(self.name, "", "damaged", 0, changed_ms, {}, Progress(), changed_ms, str(damage))
        if about is None or newest is None:
            return None
        state = newest["state"]
        if state == "running" and not self.is_running():
            state = "killed"
        progress = Progress(**{field: newest[field] for field in Progress._fields if field in newest})
        kind, pid, started_ms, options = (about[key] for key in ("pipeline", "pid", "started_ms", "options"))
        return Told(
            self.name, kind, state, pid, started_ms, options, progress, newest["at_ms"], newest["why"]
        )

    def is_running(self) -> bool:
        try:
            lock = self._lock(fcntl.LOCK_SH)  # with others who ask
        except FileNotFoundError:
            return False
        if lock is None:
            return True
        os.close(lock)
        return False

    def stop(self, patience_s: float) -> bool:
        """Ask the process to end after what it is at; whether it did in time."""
        told = self.told()
        if told is None or not self.is_running():
            raise RunError(f"pipeline {self.name} does not run; try: levada pipeline list")
        if not told.pid:
            raise RunError(f"{told.why}, so its process is not known and has to be ended otherwise")
        os.kill(told.pid, signal.SIGTERM)
        until = time.monotonic() + patience_s
        while self.is_running():
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _own_lock(self) -> int | None:
        """The lock for this process alone; None if another has it, and not only for a moment as those who ask."""
        for _ in range(LOCK_TRIES):
            os.makedirs(self.directory, exist_ok=True)  # who had the lock may have removed it
            lock = self._lock(fcntl.LOCK_EX, os.O_CREAT)
            if lock is not None:
                return lock
            time.sleep(POLL_SECONDS)
        return None

    def _lock(self, kind: int, flags: int = 0) -> int | None:
        """A descriptor that holds the lock; None if another process does. FileNotFoundError if there never was one."""
        fd = os.open(self._path("lock"), os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _read(self, name: str) -> dict[str, Any] | None:
        """What a file says; None if there is none, RunError if it says nothing of use."""
        try:
            with open(self._path(name), encoding="utf-8") as file:
                read = json.load(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise RunError(f"{self._path(name)} cannot be read: {error.strerror}") from None
        except ValueError:
            read = None
        if not isinstance(read, dict) or not (_fits(read, SAID[name]) and _fits(read, TOLD, read.keys())):
            raise RunError(f"{self._path(name)} is damaged")
        return read

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        new = self._path(name + ".new")
        with open(new, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, default=str)
        os.replace(new, self._path(name))


def _fits(read: Mapping[str, Any], kinds: Mapping[str, Any], names: Container[str] | None = None) -> bool:
    """Whether values are of their kinds, all or those of the given names."""
    return all(
        isinstance(read.get(name), kind) for name, kind in kinds.items() if names is None or name in names
    )


def all_runs(home: str) -> list[Told]:
    """Those that ever ran, by name."""
    try:
        names = sorted(os.listdir(home))
    except FileNotFoundError:
        return []
    found = (Run(home, name).told() for name in names if NAME.fullmatch(name))
    return [told for told in found if told is not None]
