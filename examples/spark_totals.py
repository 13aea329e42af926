"""Totals of sales by user and minute, from a topic to the terminal: a small streaming program.

    levada topic create sales
    echo '{"user": "ann", "amount": 2.5}' | levada produce sales
    python examples/spark_totals.py --once

Without --once it runs on and shows the totals again whenever sales come. What is not a sale is counted.
"""

import argparse
import tempfile

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, count, window
from pyspark.sql.functions import sum as total

from levada.spark import session


def totals(sales: DataFrame) -> DataFrame:
    """For each minute and user: how many sales, and of how much."""
    minute = window("timestamp", "1 minute").start.alias("minute")
    by_user = sales.withWatermark("timestamp", "1 hour").groupBy(minute, col("value.user").alias("user"))
    return by_user.agg(count("value").alias("sales"), total("value.amount").alias("amount"))


def show(frame: DataFrame, _batch: int) -> None:
    """A micro-batch of results."""
    frame.orderBy("minute", "user").show(truncate=False)


def main() -> None:
    """Read, count, show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap", default="127.0.0.1:9092", help="brokers (default: %(default)s)")
    parser.add_argument("--topic", default="sales", help="the topic to read (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="end when everything that is there was read")
    parser.add_argument("--checkpoint", help="where to keep the progress, to go on from there the next time")
    asked = parser.parse_args()
    sales = (
        session("totals")
        .readStream.format("levada")
        .option("kafka.bootstrap.servers", asked.bootstrap)
        .option("subscribe", asked.topic)
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .option("valueSchema", "user string, amount double")
        .load()
    )
    writer = totals(sales).writeStream.outputMode("complete").foreachBatch(show)
    writer = writer.option("checkpointLocation", asked.checkpoint or tempfile.mkdtemp(prefix="totals-"))
    if asked.once:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
