"""Device readings in Python: a pipeline of your own from the parts of `devices`, with an additional result.

First produce some readings: python examples/feed.py devices --count 20000
"""

import os

from pyspark.sql import functions as F

from levada.pipelines.flows import devices
from levada.pipelines.flows.flow import QueryOptions, Result, read_batch, read_stream, start
from levada.spark import session

BOOTSTRAP = os.environ.get("LEVADA_BOOTSTRAP", "127.0.0.1:9092")
spark = session("devices")

# The parts of a pipeline are functions from DataFrame to DataFrame and can be combined.
readings = devices.readings(read_stream(spark, BOOTSTRAP, devices.TOPICS, {})).withWatermark("at", "1 second")
too_hot = readings.where("measure = 'temperature' AND value > 40").select("at", "device", "site", "value")
results = [
    Result("device-statistics", devices.statistics(readings, "1 second"), key="device"),
    Result("device-alarms", too_hot, key="device"),
]
start(results, QueryOptions("hot-devices", BOOTSTRAP, once=True)).wait()

alarms = read_batch(spark, BOOTSTRAP, ["device-alarms"], {})
alarms.groupBy(F.col("key").cast("string").alias("device")).count().orderBy("device").show()
print("chart:", devices.report(bootstrap=BOOTSTRAP, spark=spark).write("devices.svg"))
