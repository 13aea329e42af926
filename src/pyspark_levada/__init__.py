"""Registers `format("levada")` with Spark, which finds data sources by the name `pyspark_*`."""

from levada.spark.source import LevadaDataSource as DefaultSource

__all__ = ["DefaultSource"]
