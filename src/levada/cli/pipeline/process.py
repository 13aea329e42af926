"""The process of a pipeline: Spark started without its noise, signals heeded, errors said in a sentence."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

import click

from levada.cli.errors import Failure
from levada.cli.options import say
from levada.pipelines.lake.formats import check_path
from levada.pipelines.lake.lake import LakeError
from levada.pipelines.runs.queries import PipelineError, reason
from levada.pipelines.runs.runs import RunError, home_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOISE = (
    "SQLQueryContextLogger",
    "DataFrameQueryContextLogger",
)  # print errors that are said anyway, with traces
WAREHOUSE = "spark.sql.warehouse.dir"
SHOWN_OF_LOG = 2_000  # characters, where Spark does not start


class PathType(click.ParamType[str]):
    """Of a lake or a result, where Spark can write."""

    name = "path"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            check_path(str(value))
        except LakeError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class Signals:
    """Ctrl-C and SIGTERM while it is entered: the first one is noted, a second one interrupts."""

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> "Signals":
        self._before = {
            number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True


def needs_spark() -> None:
    """A failure of the command if Spark is not installed."""
    if find_spec("pyspark") is None:
        raise Failure("pyspark is not installed", hint="try: pip install 'levada[spark]'")


def new_session(name: str, master: str | None, log: str | None = None) -> "SparkSession":
    """Spark for a command; what Spark and its workers write to standard error goes to the file `log`."""
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    from levada.spark.session.java import JavaNotFoundError
    from levada.spark.session.session import session

    for logger in NOISE:
        PySparkLogger.getLogger(logger).disabled = True
    log = log or os.path.join(home_directory(), f".{name}", "spark.log")  # no run is called so
    say(f"starting Spark for {name} (its log: {log}) ...")
    try:
        with _stderr_in(log), _own_ctrl_c():
            if SparkSession.getActiveSession() is not None:
                return session()
            # Spark makes this folder for whatever looks like a table, in the working directory unless told.
            return session(
                f"levada {name}", master, **{WAREHOUSE: os.path.join(os.path.dirname(log), "tables")}
            )
    except JavaNotFoundError as error:
        raise Failure(str(error)) from None
    except PySparkException as error:
        with open(log, encoding="utf-8", errors="replace") as file:
            told = file.read()[-SHOWN_OF_LOG:].strip()
        raise Failure(f"Spark does not start: {reason(str(error))}", hint=told) from None


@contextmanager
def _stderr_in(path: str) -> Iterator[None]:
    """Processes that are started meanwhile write their standard error to a file, and go on to do so."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with open(path, "wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


@contextmanager
def _own_ctrl_c() -> Iterator[None]:
    """Ctrl-C means afterwards what it meant before: Spark's context brings a handler that ends the process at once."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def said_plainly() -> Iterator[None]:
    """Errors of runs, pipelines, options and Spark as failures of the command."""
    try:
        yield
    except (RunError, PipelineError, LakeError) as error:
        raise Failure(str(error)) from None
    except Exception as error:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        from levada.spark.options import OptionError

        if not isinstance(error, PySparkException | Py4JJavaError | OptionError):
            raise
        raise Failure(plain(error)) from None


def plain(error: BaseException) -> str:
    """One sentence."""
    return reason(str(error)) or type(error).__name__
