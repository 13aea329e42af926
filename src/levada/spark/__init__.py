"""Topics as DataFrames and DataFrames as topics: the connector behind `format("levada")`, and a well-set session."""

from levada.spark.session.session import session

__all__ = ["session"]
