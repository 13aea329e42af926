"""The Spark connector: `format("levada")` reads and writes topics as DataFrames; `session()` starts Spark."""

from levada.spark.session.session import session  # the function replaces the package of the same name

__all__ = ["session"]
