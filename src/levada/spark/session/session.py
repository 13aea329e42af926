"""A SparkSession set well for topics: what everybody would otherwise look up; what a user sets himself wins.

Arrow: Spark measures a batch in bytes by walking it, which is quadratic when an array column is null (records
without headers), so only the count of rows limits a batch. Checkpoints: the manager over FileSystem halves what a
micro-batch spends on its journal. Time: records carry instants, so the session shows them in UTC.
"""

import os
import sys
import warnings
from typing import TYPE_CHECKING

from levada.spark.session.java import java_home
from levada.spark.session.spark_home import quick_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_ARROW_BATCH = 5_000

SETTINGS = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_ARROW_BATCH),
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Where driver and executors are on one machine: no name is looked up, and no 200 tasks for a small shuffle.
LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}
# What may be changed in a session that somebody else made, and Spark's own defaults of it.
IN_A_GIVEN_SESSION = {
    "spark.sql.execution.arrow.maxBytesPerBatch": "67108864b",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}

DECLARING = (
    "SESSION_MUTATION_IN_DECLARATIVE_PIPELINE"  # where nothing may be set: the project's own file says it
)


def session(app: str = "levada", master: str | None = None, **conf: str) -> "SparkSession":
    """The session that is active, or a new one: on this machine, or where `master` says.

    `conf` are Spark's settings, and win over those above: `session(**{"spark.ui.enabled": "true"})`. An active
    session keeps its own settings; only `conf` and the limits of Arrow batches are set on it (not by the files of a
    declarative pipeline, which may set nothing).
    """
    _set_environment()
    from pyspark.sql import SparkSession

    active = _active()
    if active is not None:
        return _given(active, conf)
    settings = dict(SETTINGS)
    if master is None and not _is_told_elsewhere(conf):
        master = "local[*]"
    if master is not None and master.startswith("local"):
        settings |= LOCAL_SETTINGS
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        home = quick_home()
        if home is not None:
            os.environ["SPARK_HOME"] = home
    builder = SparkSession.builder.appName(app)
    if master is not None:
        builder = builder.master(master)
    for name, value in (settings | conf).items():
        builder = builder.config(name, value)
    return session_or(builder.getOrCreate())


def session_or(spark: "SparkSession | None") -> "SparkSession":
    """A session that somebody gave, ready for several streams, or that of `session()`."""
    if spark is None:
        return session()
    from levada.spark.session.environment import let_streams_start_at_once  # which needs pyspark

    let_streams_start_at_once(spark)
    return spark


def _active() -> "SparkSession | None":
    """That of this thread or of the process, if there is one."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _set_environment() -> None:
    """Workers run this Python, and the JVM starts; what the user set stays."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise spark-submit has started the JVM
        home = java_home()
        if home is not None:
            os.environ["JAVA_HOME"] = home


def _is_told_elsewhere(conf: dict[str, str]) -> bool:
    """Whether the master is among the settings, or spark-submit or a Spark installation may know it."""
    return "spark.master" in conf or bool(
        os.environ.keys() & {"PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "SPARK_REMOTE"}
    )


def _given(active: "SparkSession", conf: dict[str, str]) -> "SparkSession":
    from pyspark.errors import PySparkException

    for name, default in IN_A_GIVEN_SESSION.items():
        if active.conf.get(name) in (default, default.rstrip("b")):
            try:
                active.conf.set(name, SETTINGS[name])
            except PySparkException as error:
                if not (error.getCondition() or "").startswith(DECLARING):
                    raise
    for name, value in conf.items():
        _set(active, name, value)
    return session_or(active)


def _set(active: "SparkSession", name: str, value: str) -> None:
    from pyspark.errors import PySparkException

    try:
        active.conf.set(name, value)
    except PySparkException:
        kept = active.conf.get(name, None)
        if kept != value:
            warnings.warn(
                f"{name} stays {kept}: it counts when Spark starts, and Spark is running", stacklevel=4
            )
