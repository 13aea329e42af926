"""Totals of orders by user and minute, from a topic to the terminal: a small streaming program.

    levada topic create orders
    echo '{"user": "ann", "amount": 2.5}' | levada produce orders
    python examples/spark_totals.py --once

Without --once it runs on and shows the totals again whenever orders come. What is not an order is counted.
"""

import argparse
import tempfile

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, count, window
from pyspark.sql.functions import sum as total

from levada.spark import session


def totals(orders: DataFrame) -> DataFrame:
    """For each minute and user: how many orders, and of how much."""
    minute = window("timestamp", "1 minute").start.alias("minute")
    by_user = orders.withWatermark("timestamp", "1 hour").groupBy(minute, col("value.user").alias("user"))
    return by_user.agg(count("value").alias("orders"), total("value.amount").alias("amount"))


def show(frame: DataFrame, _batch: int) -> None:
    """A micro-batch of results."""
    frame.orderBy("minute", "user").show(truncate=False)


def main() -> None:
    """Read, count, show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap", default="127.0.0.1:9092", help="brokers (default: %(default)s)")
    parser.add_argument("--topic", default="orders", help="the topic to read (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="end when everything that is there was read")
    parser.add_argument("--checkpoint", help="where to keep the progress, to go on from there the next time")
    asked = parser.parse_args()
    orders = (
        session("totals")
        .readStream.format("levada")
        .option("kafka.bootstrap.servers", asked.bootstrap)
        .option("subscribe", asked.topic)
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .option("valueSchema", "user string, amount double")
        .load()
    )
    writer = totals(orders).writeStream.outputMode("complete").foreachBatch(show)
    writer = writer.option("checkpointLocation", asked.checkpoint or tempfile.mkdtemp(prefix="totals-"))
    if asked.once:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
