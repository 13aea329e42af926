"""A program of a user on a cluster: a topic is read by tasks in other processes, as a batch and as a stream.

    python cluster_program.py MASTER BOOTSTRAP TOPIC FOLDER

It prints one line of JSON: how many rows each way, and in how many executors.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from levada.spark import session

SMALL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    # So that every executor has its part: Spark waits for all cores that it was promised, and longer than it would.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "180s",
    "spark.sql.shuffle.partitions": "2",
}


def executors(batches: Iterable[Any]) -> Iterator[Any]:
    """Workers of one executor have one parent."""
    import pyarrow as pa

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"executor": [os.getppid()] * batch.num_rows})


def main(master: str, bootstrap: str, topic: str, folder: str) -> None:
    spark = session("a program on a cluster", master=master, **SMALL)
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "minPartitions": "4",
    }
    frame = spark.read.format("levada").options(**options).load()
    places = frame.select("offset").mapInArrow(executors, "executor long").groupBy("executor").count().collect()
    stream = spark.readStream.format("levada").options(**options).load().selectExpr("string(value) value")
    writer = stream.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(availableNow=True).start(f"{folder}/files")
    query.awaitTermination()
    found = {
        "batch": sum(row["count"] for row in places),
        "stream": spark.read.parquet(f"{folder}/files").distinct().count(),
        "executors": len(places),
    }
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
