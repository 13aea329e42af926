"""Registers `format("levada")` with Spark, which finds data sources by the name `pyspark_*`."""
