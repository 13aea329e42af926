"""Readings of many devices in Python: the transformations on their own, with a rule of one's own beside them.

First some readings: python examples/feed.py devices --count 20000
"""

import os

from pyspark.sql import functions as F

from levada.pipelines.flows import devices, flow
from levada.pipelines.flows.flow import Plan, Result
from levada.spark import session

BOOTSTRAP = os.environ.get("LEVADA_BOOTSTRAP", "127.0.0.1:9092")
spark = session("devices")

# The parts of a pipeline are functions from DataFrame to DataFrame, so one can build another of them.
taken = devices.readings(flow.stream_of(spark, BOOTSTRAP, devices.TOPICS, {})).withWatermark("at", "1 second")
too_hot = taken.where("measure = 'temperature' AND value > 40").select("at", "device", "site", "value")
results = [
    Result("device-statistics", devices.statistics(taken, "1 second"), key="device"),
    Result("device-alarms", too_hot, key="device"),
]
flow.start(results, Plan("hot-devices", BOOTSTRAP, once=True)).wait()

alarms = flow.table_of(spark, BOOTSTRAP, ["device-alarms"], {})
alarms.groupBy(F.col("key").cast("string").alias("device")).count().orderBy("device").show()
print("chart:", devices.report(bootstrap=BOOTSTRAP, spark=spark).write("devices.svg"))
