"""The source's registration in a session, made so that queries may start at the same moment.

Spark keeps one map of environment variables for a registered source. Each query that starts puts its own into it, from
its own thread and without a lock. Two that add the same name at once leave a map that counts more than it has, and from
then on every task of the session fails (`java.io.OptionalDataException`). So all these names are there from the start:
to put a value under a known name changes neither the count nor the shape of the map.

A source that Spark finds by itself has such a map as well, which nobody can reach before the first query starts.
"""

from typing import TYPE_CHECKING

from pyspark.sql.utils import is_remote

from levada.spark.source import LevadaDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

# What Spark puts when a query starts; the empty ones have their value before any worker sees them.
PUT_BY_QUERIES = {
    "SPARK_LOCAL_DIRS": "",
    "SPARK_AUTH_SOCKET_TIMEOUT": "",
    "SPARK_BUFFER_SIZE": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
_IS_REGISTERED = "spark.levada.registered"  # of the session, so that what a user registers later stays


def register_once(spark: "SparkSession") -> None:
    """Register Levada's source, unless that was done in this session."""
    if is_remote() or spark.conf.get(_IS_REGISTERED, None) is not None:  # a Spark elsewhere finds it there
        return
    register(spark, LevadaDataSource)
    spark.conf.set(_IS_REGISTERED, "true")


def register(spark: "SparkSession", source: type["DataSource"]) -> None:
    """Register a source under its name; queries may start as they like."""
    environment = spark.sparkContext.environment  # copied into the map
    added = PUT_BY_QUERIES.keys() - environment.keys()
    environment.update({name: PUT_BY_QUERIES[name] for name in added})
    try:
        spark.dataSource.register(source)
    finally:
        for name in added:
            del environment[name]
