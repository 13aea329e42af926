"""The errors of pipelines, and one-sentence explanations of Spark's errors."""

import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException

_PY4J_CALL = re.compile(r"An error occurred while calling \S+$")  # the first line of a py4j error
_TRACEBACK, _WORKER = "Traceback (most recent call last):", "An exception was thrown from the Python worker:"
_PYTHON_ERROR = re.compile(r"(?!java\.|org\.)(?:\w+\.)*\w+(?:Error|Exception): ")
_CLASS_NAMES = re.compile(r"^(?:.*\s)?(?:\w+\.)*\w+(?:Exception|Error): ")  # up to the last class name
_CONDITION = re.compile(r"^\[[A-Z_.]+\]\s*|\s*SQLSTATE: \w+$")

_UNIT = r"(?:microsecond|millisecond|second|minute|hour|day|week)s?"
_DURATION = re.compile(rf"\s*(?:\d+(?:\.\d+)?\s+{_UNIT}\s*)+", re.IGNORECASE)


_OUT_OF_MEMORY = re.compile(r"OutOfMemory(?:Error|Exception)(?:: (?P<detail>[^\n]+))?")
EXIT_OUT_OF_MEMORY = 52  # Spark ends the JVM with this code if a task runs out of memory
JVM_END_SECONDS = 10  # from a closed connection or a shutdown to the end of the process
MORE_MEMORY = (
    "raise it: --driver-memory 4g, in Python session(**{'spark.driver.memory': '4g'}), instead of Spark's 1g; on a "
    "cluster also --conf spark.executor.memory=4g. Fewer tasks at a time need less memory: --master 'local[1]'"
)


class PipelineError(Exception):
    """A pipeline cannot start, or has failed."""


class LakeError(Exception):
    """A lake is damaged, or cannot be read or written as requested."""


class RunError(Exception):
    """A run cannot be started, found or stopped; the message names the next step."""


def check_durations(**durations: str) -> None:
    """Raise PipelineError for the first value that is not a duration in Spark's syntax.

    Spark silently takes an invalid gap of a session window as no gap at all.
    """
    for name, text in durations.items():
        if not _DURATION.fullmatch(text):
            raise PipelineError(f"{name}: {text!r} is not a duration, such as '10 seconds' or '1 hour 30 minutes'")


def check_chart_file(path: str) -> None:
    """Raise PipelineError for a name that is not one of an image or a page."""
    if not path.endswith((".svg", ".html")):
        raise PipelineError(f"{path!r} must end in .svg, an image, or in .html, a page to open in a browser and zoom")


def explain_failure(error: BaseException) -> str:
    """The cause of a failed query in a sentence; where memory is the cause, with the setting to raise."""
    ended = jvm_end()
    if ended:
        return ended
    found = _OUT_OF_MEMORY.search(str(error))
    if found is None:
        return root_cause(str(error))
    detail = f" ({found['detail'].strip()})" if found["detail"] else ""
    return f"Spark ran out of memory{detail}; {MORE_MEMORY}"


def jvm_end() -> str:
    """How the JVM ended that this process had started for Spark; empty if it lives, or there is none.

    Connections to it fail a moment before the process ends. One that ends because of an error still accepts them while
    it shuts down, and its jobs fail in many ways; it stops the SparkContext first.
    """
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    gateway = getattr(context, "_gateway", None)
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if context is None or process is None or _is_working(gateway, context._active_spark_context):
        return ""
    try:
        code = process.wait(JVM_END_SECONDS)
    except subprocess.TimeoutExpired:
        return ""
    if code == EXIT_OUT_OF_MEMORY:
        return f"Spark ran out of memory, and its JVM has ended; {MORE_MEMORY}"
    if code == -signal.SIGKILL:
        return "Spark's JVM was killed (SIGKILL), as systems do that run out of memory: lower --driver-memory"
    return f"Spark's JVM has ended with exit code {code}; its log has the reason"


def _is_working(gateway: Any, context: Any) -> bool:
    """Whether the JVM accepts connections, and has not stopped a SparkContext that this process uses."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        gateway.jvm.System.nanoTime()
        return context is None or not context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


def root_cause(trace: str) -> str:
    """The message of the deepest cause in an error of Spark."""
    python = _python_errors(trace)
    if python and " " not in python[-1].partition(": ")[2]:
        return python[-1]  # a message of one word needs its class
    if python:
        message = python[-1].partition(": ")[2]
    else:
        lines = [line.strip().removeprefix(": ") for line in trace.splitlines() if line.strip(": ")]
        lines = [line for line in lines if not _PY4J_CALL.search(line)]
        causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
        message = ([cause for cause in causes if ": " in cause][-1:] or lines or [trace])[0]
    return _CONDITION.sub("", _CLASS_NAMES.sub("", message)).strip()


def _python_errors(trace: str) -> list[str]:
    """The Python exceptions in a trace, each as `class: message`, in order.

    Such a line ends a traceback. A worker prints no traceback for an exception that explains itself.
    """
    found, is_next = [], False
    for whole in trace.splitlines():
        line = whole.rpartition(_WORKER)[2]
        if line != whole or _TRACEBACK in line:
            is_next, line = True, "" if _TRACEBACK in line else line.strip()
        if line and not line[0].isspace():
            if (is_next or _PYTHON_ERROR.match(line)) and not _PY4J_CALL.search(line):
                found.append(line)
            is_next = False
    return found


def explain_query(error: "AnalysisException") -> str:
    """The message of an invalid SQL query and its position in the text, without Spark's plan."""
    from pyspark.errors import ParseException

    text = str(error).split("\n\nJVM stacktrace")[0].strip()
    text = re.sub(r"\s*SQLSTATE: \w+", "", re.sub(r"^\[[A-Z_.]+\]\s*", "", text))
    if isinstance(error, ParseException):
        return text
    position = re.search(r"line (\d+) pos (\d+)", text)
    sentence = re.sub(r";\s*(?:line \d+ pos \d+;?)?\s*$", "", text.partition("\n")[0]).strip()
    return f"{sentence} (line {position[1]}, position {position[2]})" if position else sentence
