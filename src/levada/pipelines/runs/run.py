"""The runs of pipelines on this machine: a directory per run name, which outlives the process.

    NAME/lock             held by the process as long as it lives
    NAME/run.json         the pipeline, its process and its options
    NAME/progress.json    its state and progress
    NAME/checkpoint/      Spark's checkpoint, from which the next run of this name continues
    NAME/spark.log        Spark's log of the last run

The lock is an OS file lock: it ends with its process, so a killed run never looks alive, and no two runs of one name
work at the same time.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from levada.pipelines.errors import PipelineError, RunError
from levada.pipelines.lake.files import Files
from levada.pipelines.runs.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
CHECKPOINT_LOCATION = "spark.sql.streaming.checkpointLocation"
POLL_SECONDS = 0.1
LOCK_TRIES = 5  # POLL_SECONDS apart
REQUIRED_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "run.json": {"pipeline": str, "pid": int, "started_ms": int, "options": dict},
    "progress.json": {"state": str, "at_ms": int, "why": str},
}
OPTIONAL_FIELDS: Mapping[str, Any] = dict.fromkeys(Progress._fields, (int, float)) | {
    "lag": (int, type(None)),
    "query": str,
}
ARGUMENTS_FILE = "levada-run.json"  # in the checkpoint
SPARK_METADATA = "metadata"  # written by Spark when a query starts


class RunStatus(NamedTuple):
    """The status of a run, as its directory shows it."""

    name: str
    pipeline: str
    state: str  # running, stopped, finished, failed, killed, or damaged if its files cannot be read
    pid: int
    started_ms: int
    options: Mapping[str, Any]
    progress: Progress
    progress_ms: int  # when the progress was written
    error: str = ""  # of a failed or damaged run


def default_directory() -> str:
    """Where runs are kept by default."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.environ.get("LEVADA_PIPELINES") or os.path.join(state, "levada", "pipelines")


def default_checkpoint(spark: "SparkSession", name: str) -> str:
    """Where a run's checkpoint is by default: below the checkpoint location of the session, if it has one.

    A session on a cluster has one that all machines reach.
    """
    own = Run(default_directory(), name).checkpoint
    location = spark.conf.get(CHECKPOINT_LOCATION, None)
    return f"{location.rstrip('/')}/{name}" if location else own


class Run:
    """One run name and its directory."""

    def __init__(self, parent: str, name: str) -> None:
        if not NAME.fullmatch(name):
            raise RunError(
                f"{name!r} cannot be the name of a run: use at most 100 of a-z A-Z 0-9 . _ -, "
                "beginning with a letter or digit"
            )
        self.name = name
        self.directory = os.path.join(parent, name)
        self._previous: RunStatus | None = None  # the status before this process took the lock
        self._previous_files: dict[str, bytes] = {}  # and the files

    @property
    def checkpoint(self) -> str:
        """Spark's checkpoint, from which the next run of this name continues."""
        return os.path.join(self.directory, "checkpoint")

    @property
    def spark_log(self) -> str:
        """Spark's log of the last run."""
        return os.path.join(self.directory, "spark.log")

    @contextmanager
    def hold(self, pipeline: str, options: Mapping[str, Any], now_ms: int) -> Iterator[None]:
        """Hold the lock of this run; raise RunError if another process holds it."""
        lock = self._exclusive_lock()
        if lock is None:
            raise RunError(f"pipeline {self.name} is already running; try: levada pipeline status {self.name}")
        try:
            known = self._read_run(pipeline)
            if known and known["pipeline"] != pipeline:
                raise RunError(
                    f"{self.name} is the name of a run of {known['pipeline']}; choose another name with --name"
                )
            self._previous = self.status() if known else None
            self._previous_files = self._read_files()
            about = {"pipeline": pipeline, "pid": os.getpid(), "started_ms": now_ms, "options": dict(options)}
            self._write("run.json", about)
            self.record(Progress(), "running", now_ms)
            yield
        finally:
            os.close(lock)

    def _read_run(self, pipeline: str) -> dict[str, Any] | None:
        try:
            return self._read("run.json")
        except RunError as damage:
            raise RunError(
                f"{damage}; if this name belongs to a run of {pipeline}, remove that file and start again, "
                "otherwise choose another name with --name"
            ) from None

    def record(self, progress: Progress, state: str, now_ms: int, error: str = "") -> None:
        """Write the state and progress for `status`."""
        self._write("progress.json", {"state": state, "at_ms": now_ms, "why": error} | progress._asdict())

    def restore(self) -> None:
        """Write back what was there before this process took the lock; a run that was not there is not there again."""
        if not self._previous_files and not os.path.exists(self.checkpoint):
            shutil.rmtree(self.directory)
            return
        for name in REQUIRED_FIELDS.keys() - self._previous_files.keys():
            os.unlink(self._path(name))
        for name, content in self._previous_files.items():
            with open(self._path(name + ".new"), "wb") as file:
                file.write(content)
            os.replace(self._path(name + ".new"), self._path(name))

    def _read_files(self) -> dict[str, bytes]:
        found = {}
        for name in REQUIRED_FIELDS:
            with suppress(FileNotFoundError), open(self._path(name), "rb") as file:
                found[name] = file.read()
        return found

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Raise PipelineError if the checkpoint on this machine was started with other values of these arguments."""
        try:
            with open(os.path.join(self.checkpoint, ARGUMENTS_FILE), encoding="utf-8") as file:
                known = json.load(file)
        except (FileNotFoundError, ValueError):
            return
        if os.path.exists(os.path.join(self.checkpoint, SPARK_METADATA)):
            check_changes(known, {**known, **arguments}, self.name)

    def record_failed_start(self, error: str, now_ms: int) -> None:
        """Write that the start failed; the options and progress of the previous run stay."""
        previous = self._previous
        if previous is not None and previous.pipeline:
            about = {"pipeline": previous.pipeline, "pid": os.getpid(), "started_ms": previous.started_ms}
            self._write("run.json", about | {"options": dict(previous.options)})
        self.record(previous.progress if previous else Progress(), "failed", now_ms, error)

    def forget(self) -> None:
        """Remove the directory, checkpoint included; raise RunError while the pipeline runs."""
        lock = self._exclusive_lock()
        if lock is None:
            raise RunError(f"pipeline {self.name} is running; try: levada pipeline stop {self.name}")
        try:
            shutil.rmtree(self.directory)
        finally:
            os.close(lock)

    def status(self) -> RunStatus | None:
        """The status; None for a name that never ran."""
        try:
            about, newest = self._read("run.json"), self._read("progress.json")
        except RunError as damage:
            changed_ms = int(os.stat(self.directory).st_mtime * 1000)
            return RunStatus(self.name, "", "damaged", 0, changed_ms, {}, Progress(), changed_ms, str(damage))
        if about is None or newest is None:
            return None
        state = newest["state"]
        if state == "running" and not self.is_running():
            state = "killed"
        progress = Progress(**{field: newest[field] for field in Progress._fields if field in newest})
        pipeline, pid, started_ms, options = (about[key] for key in ("pipeline", "pid", "started_ms", "options"))
        return RunStatus(self.name, pipeline, state, pid, started_ms, options, progress, newest["at_ms"], newest["why"])

    def is_running(self) -> bool:
        try:
            lock = self._lock(fcntl.LOCK_SH)  # shared by all that check
        except FileNotFoundError:
            return False
        if lock is None:
            return True
        os.close(lock)
        return False

    def stop(self, timeout_s: float) -> bool:
        """Send SIGTERM to the process; return whether it ended in time."""
        status = self.status()
        if status is None or not self.is_running():
            raise RunError(f"pipeline {self.name} is not running; try: levada pipeline list")
        if not status.pid:
            raise RunError(f"{status.error}, so the process id is unknown; stop the process by other means")
        os.kill(status.pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while self.is_running():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _exclusive_lock(self) -> int | None:
        """Take the lock; None if a run holds it. `is_running` of another process holds it only for a moment."""
        for _ in range(LOCK_TRIES):
            os.makedirs(self.directory, exist_ok=True)  # `forget` of another process may have removed it
            lock = self._lock(fcntl.LOCK_EX, os.O_CREAT)
            if lock is not None:
                return lock
            time.sleep(POLL_SECONDS)
        return None

    def _lock(self, kind: int, flags: int = 0) -> int | None:
        """A descriptor that holds the lock; None if another process holds it. FileNotFoundError without lock file."""
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
        """The content of a file; None if it does not exist, RunError if it is damaged."""
        try:
            with open(self._path(name), encoding="utf-8") as file:
                content = json.load(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise RunError(f"{self._path(name)} cannot be read: {error.strerror}") from None
        except ValueError:
            content = None
        if not (
            isinstance(content, dict)
            and _has_types(content, REQUIRED_FIELDS[name])
            and _has_types(content, OPTIONAL_FIELDS, content.keys())
        ):
            raise RunError(f"{self._path(name)} is damaged")
        return content

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        new = self._path(name + ".new")
        with open(new, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, default=str)
        os.replace(new, self._path(name))


def _has_types(content: Mapping[str, Any], types: Mapping[str, Any], names: Container[str] | None = None) -> bool:
    """Whether the fields, all or those of the given names, have their types."""
    return all(isinstance(content.get(name), kind) for name, kind in types.items() if names is None or name in names)


def all_runs(parent: str) -> list[RunStatus]:
    """The runs below a directory, by name."""
    try:
        names = sorted(os.listdir(parent))
    except FileNotFoundError:
        return []
    found = (Run(parent, name).status() for name in names if NAME.fullmatch(name))
    return [status for status in found if status is not None]


def load_arguments(checkpoint: Files) -> dict[str, Any] | None:
    """The arguments that the query of a checkpoint was started with; None if it never started."""
    if not (checkpoint.exists(ARGUMENTS_FILE) and checkpoint.exists(SPARK_METADATA)):
        return None
    arguments: dict[str, Any] = json.loads(checkpoint.read(ARGUMENTS_FILE))
    return arguments


def save_arguments(checkpoint: Files, arguments: Mapping[str, Any], name: str) -> None:
    """Keep the arguments in the checkpoint; raise PipelineError if it was started with other ones.

    A checkpoint holds offsets, windows and sessions. With other arguments a query would continue with results that
    belong to neither.
    """
    known = load_arguments(checkpoint)
    text = json.dumps(arguments, indent=1)
    if known is None:
        checkpoint.write(ARGUMENTS_FILE, text)
        return
    check_changes(known, json.loads(text), name)


def check_changes(known: Mapping[str, Any], new: Mapping[str, Any], name: str) -> None:
    """Raise PipelineError if the arguments of a run have changed."""
    changed = sorted(field for field in known.keys() | new.keys() if known.get(field) != new.get(field))
    if changed:
        old = "; ".join(f"{field} was {_argument_text(known.get(field))}" for field in changed)
        raise PipelineError(
            f"run {name} was started with other arguments ({old}); repeat those, or choose another name with --name"
        )


def _argument_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}='{text}'" for key, text in value.items()) or "not given"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
