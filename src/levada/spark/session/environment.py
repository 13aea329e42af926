"""What lets streams of one session start at the same moment.

Spark keeps one map of environment variables for a Python source. Each stream that starts puts its own into it, from its
own thread and without a lock. Two that add the same name at once leave a map that counts more than it has, and from
then on every task of the session fails (`java.io.OptionalDataException`). So the names are put there beforehand: a new
value under a known name changes neither the count nor the shape of the map.
"""

import warnings
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = "levada"
# What a stream puts when it starts. The empty ones have their value before any worker sees them.
PUT_BY_STREAMS = {
    "SPARK_LOCAL_DIRS": "",
    "SPARK_AUTH_SOCKET_TIMEOUT": "",
    "SPARK_BUFFER_SIZE": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}


def let_streams_start_at_once(spark: "SparkSession") -> None:
    """Prepare the source that this session knows by Levada's name, found by Spark or registered by the user.

    Of Connect, what Spark has found by itself: all sessions of a server share it, so it is prepared through the one
    that a server has which runs in this process. A server elsewhere is out of reach; of a Spark that keeps its sources
    otherwise there is a warning.
    """
    inner = getattr(spark, "_jsparkSession", None) or _of_the_server_in_this_process()
    if inner is None:
        return
    try:
        source = inner.sessionState().dataSourceManager().lookupDataSource(SOURCE)
        shared = source.dataSourceCls().envVars()
        for name, value in PUT_BY_STREAMS.items():
            shared.putIfAbsent(name, value)
    except (Py4JError, PySparkException) as error:
        warnings.warn(f"streams of this session should not start at the same moment: {error}", stacklevel=2)


def _of_the_server_in_this_process() -> Any:
    """Spark's own session behind `remote("local")` and declarative pipelines; None if there is none here."""
    from pyspark.sql.session import SparkSession

    return getattr(SparkSession._instantiatedSession, "_jsparkSession", None)
