"""Totals of sales by user and minute, from a topic to the terminal: a small streaming query.

    levada topic create sales
    echo '{"user": "ann", "amount": 2.5}' | levada produce sales
    python examples/spark_totals.py --once

Without --once it runs until Ctrl-C and shows the totals after each micro-batch.
"""

import argparse
import tempfile

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, count, window
from pyspark.sql.functions import sum as total

from levada.spark import session


def totals(sales: DataFrame) -> DataFrame:
    """The number and amount of sales of each minute and user."""
    minute = window("timestamp", "1 minute").start.alias("minute")
    by_user = sales.withWatermark("timestamp", "1 hour").groupBy(minute, col("value.user").alias("user"))
    return by_user.agg(count("value").alias("sales"), total("value.amount").alias("amount"))


def show(frame: DataFrame, _batch: int) -> None:
    """Show a micro-batch of results."""
    frame.orderBy("minute", "user").show(truncate=False)


def main() -> None:
    """Read, count, show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap", default="127.0.0.1:9092", help="brokers (default: %(default)s)")
    parser.add_argument("--topic", default="sales", help="the topic to read (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="end when all available records are read")
    parser.add_argument("--checkpoint", help="the checkpoint directory, from which the next run continues")
    given = parser.parse_args()
    sales = (
        session("totals")
        .readStream.format("levada")
        .option("kafka.bootstrap.servers", given.bootstrap)
        .option("subscribe", given.topic)
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .option("valueSchema", "user string, amount double")
        .load()
    )
    writer = totals(sales).writeStream.outputMode("complete").foreachBatch(show)
    writer = writer.option("checkpointLocation", given.checkpoint or tempfile.mkdtemp(prefix="totals-"))
    if given.once:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
