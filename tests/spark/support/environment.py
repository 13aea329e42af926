"""What a session shares with the streams that it starts."""

from typing import TYPE_CHECKING

from levada.spark.session.session import SOURCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def shared_by_streams(spark: "SparkSession") -> dict[str, str]:
    """A copy of the map that Spark keeps for the source."""
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    return dict(manager.lookupDataSource(SOURCE).dataSourceCls().envVars())
