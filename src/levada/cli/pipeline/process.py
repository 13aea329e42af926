"""The process of a run: starts Spark without its output, follows the queries, handles signals and errors."""

import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from levada import pipelines
from levada.cli.errors import CommandError
from levada.cli.options import notice, require_topic, with_client
from levada.cli.settings import ClientProperties, parse_settings
from levada.clock import SystemClock
from levada.extras import install_command
from levada.pipelines.errors import LakeError, PipelineError, RunError, explain_failure, jvm_end, root_cause
from levada.pipelines.lake.lake import check_local_lake
from levada.pipelines.runs.progress import Progress
from levada.pipelines.runs.queries import RunningPipeline
from levada.pipelines.runs.run import Run, default_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from levada.client.client import Client

FIRST_BATCH_NOTICE_MS = 5_000
# Their errors are printed by the command, without traces.
NOISY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
WAREHOUSE = "spark.sql.warehouse.dir"
SECRET = re.compile(r"password|secret|token|credential|auth|user\.info", re.IGNORECASE)
LOG_TAIL = 2_000  # characters of Spark's log in the error if Spark does not start


def run_pipeline(
    pipeline: str,
    given: dict[str, Any],
    shown: Mapping[str, Any],
    *,
    function: str | None = None,
    topics: Iterable[str] = (),
    lake: str | None = None,
    sink: bool = False,
    has_checkpoint: bool = True,
    check: Callable[[Run], None] | None = None,
    shows_batches: bool = True,
) -> None:
    """Run the pipeline with the options of its command.

    `shown` is what `levada pipeline status` shows of them; `function` of `levada.pipelines` is the pipeline's name by
    default; `topics` and `lake` must exist; --option is for the source, or the `sink`. `check` raises PipelineError
    before anything is written, and Spark starts; with it, a PipelineError before the start of the pipeline leaves an
    earlier run of the name as it was. So does a broker, topic, lake or option that is refused before Spark starts.
    `shows_batches` is false for a query that is no stream.
    """
    name, home, master, conf = (given.pop(key) for key in ("name", "home", "master", "conf"))
    properties: ClientProperties = given.pop("properties")
    options = properties.spark_options() | (more := parse_settings(given.pop("more"), "--option"))

    def check_before() -> None:
        _check_options(options, sink=sink)
        check_inputs(topics, properties, lake)

    def start(run: Run) -> RunningPipeline:
        from levada.spark.session.jvm import jvm_killed_at_interrupt

        call: Callable[..., RunningPipeline] = getattr(pipelines, function or pipeline)
        if has_checkpoint:
            given["checkpoint"] = run.checkpoint
        with jvm_killed_at_interrupt():
            spark = new_session(run.name, master, conf, run.spark_log)
            with _warnings_as_notices():
                return call(**given, bootstrap=properties.bootstrap, spark=spark, name=run.name, **options)

    require_spark()
    with plain_errors():
        run = Run(home, name or pipeline)
        if check is not None:
            check(run)
        shown = {**shown, "option": [_shown_option(*each) for each in more.items()] or None}
        starting = Start(start, check_before, check is not None, shows_batches)
        _execute(run, pipeline, shown, starting)


def _shown_option(name: str, value: str) -> str:
    """An option for `status`, which keeps it in a file; what may be a secret is left out."""
    return f"{name}={'***' if SECRET.search(name) else value}"


class Start(NamedTuple):
    """How a pipeline is started, and what is done before and after it."""

    pipeline: Callable[[Run], RunningPipeline]
    check_inputs: Callable[[], None]  # before Spark starts
    restores: bool  # a PipelineError leaves an earlier run of the name as it was
    shows_batches: bool


def _execute(
    run: Run,
    pipeline: str,
    shown: Mapping[str, Any],
    start: Start,
) -> None:
    """Hold the run while the pipeline works, and record its progress and how it ended."""
    clock = SystemClock()
    with run.hold(pipeline, shown, clock.now_ms()), Signals() as signals:
        running = _start(run, start, signals, clock)
        if running is not None:
            try:
                _follow(run, running, signals, clock, start.shows_batches)
            except BaseException as error:
                state, why = (
                    ("stopped", "") if isinstance(error, KeyboardInterrupt) else ("failed", one_sentence(error))
                )
                run.record(_last_progress(run), state, clock.now_ms(), why)
                raise
        last = _last_progress(run)
        run.record(last, "stopped" if signals.received else "finished", clock.now_ms())
        if last.open_rows and not signals.received:
            notice("the last windows are still open: their final results come after later events")
        notice(f"pipeline {run.name} has {'stopped' if signals.received else 'processed all records'}")


def _start(run: Run, start: Start, signals: "Signals", clock: SystemClock) -> RunningPipeline | None:
    """Start the pipeline, or record why it has not started.

    None if a signal has abandoned the start: the run counts as stopped, and the next one continues where the last one
    ended. A second signal raises.
    """
    is_checked = False
    try:
        with signals.interrupting():
            start.check_inputs()
            is_checked = True
            return start.pipeline(run)
    except BaseException as error:
        if signals.received:
            run.record(_last_progress(run), "stopped", clock.now_ms())
            if signals.received == 1:
                return None
        elif not is_checked or (start.restores and isinstance(error, PipelineError)):
            run.restore()
        else:
            run.record_failed_start(one_sentence(error), clock.now_ms())
        raise


def _follow(run: Run, running: RunningPipeline, signals: "Signals", clock: SystemClock, shows_batches: bool) -> None:
    """Wait for the end of the queries; a signal stops them."""
    noticed = not shows_batches
    notice_ms = clock.now_ms() + FIRST_BATCH_NOTICE_MS

    def watch(progress: Progress) -> None:
        nonlocal noticed
        noticed = True
        run.record(running.progress(), "running", clock.now_ms())
        if shows_batches:
            notice(progress.line())

    notice(f"pipeline {run.name} is running; to stop it: Ctrl-C, or levada pipeline stop {run.name}")
    while not running.wait(0.5, watch):
        if signals.received:
            running.stop()
        elif not noticed and clock.now_ms() > notice_ms:
            noticed = True
            notice("the first batch takes longest: Spark compiles, and starts its workers ...")


def _last_progress(run: Run) -> Progress:
    status = run.status()
    assert status is not None
    return status.progress


def _check_options(options: Mapping[str, str], *, sink: bool) -> None:
    """Raise OptionError for an unknown option or an invalid value, before Spark starts."""
    from levada.spark.options import parse
    from levada.spark.read.options import ReadOptions
    from levada.spark.write.options import JobOptions

    given = {"kafka.bootstrap.servers": "127.0.0.1:9092"} | {name.lower(): text for name, text in options.items()}
    parse(JobOptions if sink else ReadOptions, given)


@contextmanager
def _warnings_as_notices() -> Iterator[None]:
    """Print warnings for users without a category and a line of code."""
    before = warnings.showwarning
    warnings.showwarning = lambda message, *rest, **more: notice(f"warning: {message}")
    try:
        yield
    finally:
        warnings.showwarning = before


def check_inputs(topics: Iterable[str], properties: ClientProperties, lake: str | None = None) -> None:
    """Check broker, topics and lake before Spark starts."""

    async def check(client: "Client") -> None:
        await client.metadata([])
        for topic in topics:
            await require_topic(client, topic)

    with_client(properties, check)
    if lake is not None:
        try:
            check_local_lake(lake)
        except LakeError as error:
            hint = f"try: levada pipeline run archive --topic TOPIC --to {lake}"
            raise CommandError(str(error), hint=hint) from None


class Signals:
    """Handles Ctrl-C and SIGTERM: the first one is counted, a second one interrupts."""

    def __init__(self) -> None:
        self.received = 0
        self._interrupts = False

    def __enter__(self) -> "Signals":
        self._stderr = os.dup(2)  # standard error may be redirected when a signal comes
        self._before = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._stderr)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise KeyboardInterrupt in the block already at the first signal."""
        self._interrupts = True
        try:
            yield
        except KeyboardInterrupt:
            if not self.received:  # SparkContext has handled it, until `_restored_sigint`
                self._count()
            raise
        finally:
            self._interrupts = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._count()
        if self._interrupts or self.received > 1:
            raise KeyboardInterrupt

    def _count(self) -> None:
        self.received += 1
        if self.received == 1:
            os.write(self._stderr, b"stopping ...\n")  # unlike sys.stderr, safe while it is being written


def require_spark(*more: str) -> None:
    """Raise CommandError if pyspark or one of these packages is not installed."""
    for name in ("pyspark", *more):
        if find_spec(name) is None:
            raise CommandError(f"{name} is not installed", hint=f"try: {install_command('spark')}")


def new_session(name: str, master: str | None, conf: Mapping[str, str], log: str | None = None) -> "SparkSession":
    """A Spark session for a command, with the settings `conf`.

    Standard error of Spark and its workers goes to the file `log`.
    """
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    from levada.spark.session.java import JavaNotFoundError
    from levada.spark.session.jvm import jvm_killed_at_interrupt
    from levada.spark.session.session import session

    for logger in NOISY_LOGGERS:
        PySparkLogger.getLogger(logger).disabled = True
    log = log or os.path.join(default_directory(), f".{name}", "spark.log")  # no run can have this name
    notice(f"starting Spark for {name} (its log: {log}) ...")
    try:
        with _stderr_to(log), _restored_sigint(), jvm_killed_at_interrupt():
            if SparkSession.getActiveSession() is not None:
                return session(**conf)
            # Spark creates this directory, by default in the working directory.
            tables = os.path.join(os.path.dirname(log), "tables")
            spark = session(f"levada {name}", master, **{WAREHOUSE: tables, **conf})
            _log_traces_to(log, spark)
            return spark
    except JavaNotFoundError as error:
        raise CommandError(str(error)) from None
    except PySparkException as error:
        with open(log, encoding="utf-8", errors="replace") as file:
            tail = file.read()[-LOG_TAIL:].strip()
        raise CommandError(f"Spark does not start: {root_cause(str(error))}", hint=tail) from None


def _log_traces_to(path: str, spark: "SparkSession") -> None:
    """Log to this file what Spark's Python part prints when the JVM ends; the command reports that in a sentence."""
    logging.basicConfig(filename=path, level=logging.WARNING)
    server = getattr(spark.sparkContext, "_accumulatorServer", None)  # its connection breaks then
    if server is not None:
        logger = logging.getLogger("py4j")
        server.handle_error = lambda request, address: logger.warning("accumulators: the JVM closed its connection")


@contextmanager
def _stderr_to(path: str) -> Iterator[None]:
    """Redirect standard error to a file; processes started meanwhile keep writing there."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with open(path, "wb"):
            pass  # the log of the previous run
        with open(path, "ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


@contextmanager
def _restored_sigint() -> Iterator[None]:
    """Restore the handler of Ctrl-C: SparkContext installs one that ends the process at once."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise errors of runs, pipelines, options and Spark as CommandError."""
    try:
        yield
    except CommandError:
        raise
    except (RunError, PipelineError, LakeError) as error:
        raise CommandError(str(error)) from None
    except Exception as error:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        from levada.spark.errors import OptionError

        if not isinstance(error, PySparkException | Py4JJavaError | OptionError) and not jvm_end():
            raise
        raise CommandError(one_sentence(error)) from None


def one_sentence(error: BaseException) -> str:
    """The cause of an error in a sentence."""
    if isinstance(error, CommandError | RunError | PipelineError | LakeError):
        return str(error)
    return explain_failure(error) or type(error).__name__
