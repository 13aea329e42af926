"""Levada's Spark connector and the stock one, on Levada and on Apache Kafka."""
