"""Creates a SparkSession with settings that suit topics; settings of the user take precedence.

Arrow: a batch has at most about 2 MB, so that large values do not fill the memory, and so that both processes reuse
memory that is in the CPU's caches. (Batches of Spark's 64 MB are mapped anew each time: page faults cost more than the
copies.) Spark computes these bytes after each row, with a loop over all rows of the batch since the last array that is
not null. So batches have few rows too: null headers would cost more than all the rest otherwise. Checkpoints: the
FileSystem-based manager halves the time that a micro-batch spends on its offset and commit logs. Time zone: record
timestamps are instants, shown in UTC. Sockets: in local mode Spark and its Python workers exchange rows through Unix
domain sockets, faster than through TCP and without delayed acknowledgements.

Streams that start at the same moment: Spark keeps one map of environment variables for a Python source. Each stream
that starts puts its own variables there, from its own thread and without a lock. Two threads that add the same name
corrupt the map's size, and from then on every task of the session fails (`java.io.OptionalDataException`). So the
names are added beforehand: a new value under an existing name changes neither the size nor the structure of the map.
"""

import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

from levada.extras import required
from levada.spark.session.java import java_home
from levada.spark.session.spark_home import linked_spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_ARROW_BATCH = 1_000
BYTES_PER_ARROW_BATCH = 2 << 20

SETTINGS = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(BYTES_PER_ARROW_BATCH),
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_ARROW_BATCH),
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# If driver and executors are on one machine: no host names to resolve, and fewer than 200 tasks in a shuffle.
LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}
# If driver and executors are one process.
LOCAL_MODE_SETTINGS = {"spark.python.unix.domain.socket.enabled": "true"}
SOURCE = "levada"
# The variables of a stream that starts. Empty ones get their value before any worker reads them.
STREAM_VARIABLES = {
    "SPARK_LOCAL_DIRS": "",
    "SPARK_AUTH_SOCKET_TIMEOUT": "",
    "SPARK_BUFFER_SIZE": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}


def session(app: str = "levada", master: str | None = None, **conf: str) -> "SparkSession":
    """The active session, or a new one: on this machine, or on `master`.

    `conf` are Spark's settings and take precedence over those above: `session(**{"spark.ui.enabled": "true"})`. An
    active session keeps its own settings; only `conf` is set on it.
    """
    with required("spark"):
        from pyspark.sql import SparkSession

    _set_environment()
    active = _active()
    if active is not None:
        return _configured(active, conf)
    settings = dict(SETTINGS)
    if master is None and not _has_other_master(conf):
        master = "local[*]"
    if master is not None and master.startswith("local"):
        settings |= LOCAL_SETTINGS
        if not master.startswith("local-cluster"):
            settings |= LOCAL_MODE_SETTINGS
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        home = linked_spark_home()
        if home is not None:
            os.environ["SPARK_HOME"] = home
    builder = SparkSession.builder.appName(app)
    if master is not None:
        builder = builder.master(master)
    for name, value in (settings | conf).items():
        builder = builder.config(name, value)
    return session_or(builder.getOrCreate())


def session_or(spark: "SparkSession | None") -> "SparkSession":
    """The given session, with the data source and prepared for concurrent streams, or that of `session()`."""
    if spark is None:
        return session()
    register_if_missing(spark)
    prepare_concurrent_streams(spark)
    return spark


def register_if_missing(spark: "SparkSession") -> None:
    """Register the data source if Spark has not found it, which would be DATA_SOURCE_NOT_FOUND later.

    Spark looks for `pyspark_levada` where its Python workers find modules before they get the files of `--py-files` and
    `addPyFile`.
    """
    classic = getattr(spark, "_jsparkSession", None)
    if classic is not None and not classic.sessionState().dataSourceManager().dataSourceExists(SOURCE):
        from levada.spark.source import LevadaDataSource

        spark.dataSource.register(LevadaDataSource)


def prepare_concurrent_streams(spark: "SparkSession") -> None:
    """Add the variables of streams to the data source that this session finds under Levada's name.

    With Connect, all sessions of a server share the source that Spark has found by itself: it is prepared through the
    session of a server in this process. A server elsewhere cannot be prepared. If Spark stores its sources in another
    way, there is a warning.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    classic = getattr(spark, "_jsparkSession", None) or _local_connect_server()
    if classic is None:
        return
    try:
        source = classic.sessionState().dataSourceManager().lookupDataSource(SOURCE)
        shared = source.dataSourceCls().envVars()
        for name, value in STREAM_VARIABLES.items():
            shared.putIfAbsent(name, value)
    except (Py4JError, PySparkException) as error:
        warnings.warn(f"do not start streams of this session at the same moment: {error}", stacklevel=2)


def _local_connect_server() -> Any:
    """The classic session behind `remote("local")` and declarative pipelines; None if there is none here."""
    from pyspark.sql.session import SparkSession

    return getattr(SparkSession._instantiatedSession, "_jsparkSession", None)


def _active() -> "SparkSession | None":
    """The session of this thread or of the process, if there is one."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _set_environment() -> None:
    """Choose Python for the workers and Java for the JVM, unless the user has."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit starts the JVM itself
        home = java_home()
        if home is not None:
            os.environ["JAVA_HOME"] = home


def _has_other_master(conf: dict[str, str]) -> bool:
    """Whether the settings, spark-submit or a Spark installation may choose the master."""
    return "spark.master" in conf or bool(
        os.environ.keys() & {"PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "SPARK_REMOTE"}
    )


def _configured(active: "SparkSession", conf: dict[str, str]) -> "SparkSession":
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
            warnings.warn(f"{name} stays {kept}: Spark reads it only when it starts", stacklevel=4)
