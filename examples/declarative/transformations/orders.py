"""Orders of several shops: the large ones to one topic, and the totals of each minute to another.

The results are declared, and `spark-pipelines run` updates them: topics are the sources and the sinks, and each run
reads the records since the last one.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from levada.spark import session

BROKER = {"kafka.bootstrap.servers": os.environ.get("LEVADA_BOOTSTRAP", "127.0.0.1:9092")}
spark = session()  # the active session, prepared for flows that start at the same time

dp.create_sink("large_orders", "levada", BROKER | {"topic": "large-orders"})
dp.create_sink("totals", "levada", BROKER | {"topic": "order-totals"})


@dp.temporary_view
def orders() -> DataFrame:
    """The topic `orders` as a table, with a watermark of one minute."""
    source = spark.readStream.format("levada").options(**BROKER)
    source = source.option("subscribe", "orders").option("startingOffsets", "earliest")
    source = source.option("valueFormat", "json").option("valueSchema", "shop string, amount double, ts timestamp")
    return source.load().select("value.*").withWatermark("ts", "1 minute")


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    found = spark.readStream.table("orders").where("amount >= 100")
    return found.select(F.col("shop").alias("key"), F.to_json(F.struct("*")).alias("value"))


@dp.append_flow(target="totals")
def totals_by_minute() -> DataFrame:
    grouped = spark.readStream.table("orders").groupBy(F.window("ts", "1 minute").alias("window"), "shop")
    totals = grouped.agg(F.count("*").alias("orders"), F.sum("amount").alias("total"))
    rows = F.struct(F.col("window.end").alias("until"), "shop", "orders", "total")
    return totals.select(F.col("shop").alias("key"), F.to_json(rows).alias("value"))
