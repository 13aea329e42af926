"""The Spark connector: `format("levada")` reads and writes topics as DataFrames; `session()` starts Spark.

`source_metrics()` adds the lag of a streaming query to its progress.
"""

from levada.spark.progress import source_metrics
from levada.spark.session.session import session  # the function replaces the package of the same name

__all__ = ["session", "source_metrics"]
