"""Topics as tables: a tutorial in cells, which run one after the other or all at once."""

# %% [markdown]
# # Topics as tables: Levada and Spark in eight steps
#
# A website's activity goes through a broker; Spark reads it as tables, at once and as it comes, and writes results
# back to topics, each record once. Everything runs on this machine: `pip install 'levada[spark]'` brings the broker,
# Spark, and a Java if there is none.
#
# Editors open this file as a notebook, cell by cell, and `python tutorial.py` runs it from top to bottom.
# `tutorial.ipynb` is the same for Jupyter.

# %% [markdown]
# ## 1. A broker and a session
#
# The broker of `levada.testing` lives in this process and goes with it. Yours may be anywhere; `levada start` is one.

# %%
import random
import tempfile
from datetime import UTC, datetime, timedelta
from itertools import islice

from pyspark.sql import functions as F

from levada.pipelines.flows import activity, flow
from levada.pipelines.flows.samples import website
from levada.pipelines.flows.sql import sql
from levada.spark import session
from levada.testing import EmbeddedBroker

broker = EmbeddedBroker()
broker.start()
spark = session("tutorial", master="local[2]")
BROKER = {"kafka.bootstrap.servers": broker.bootstrap}
print("Spark", spark.version, "is up")

# %% [markdown]
# ## 2. A DataFrame becomes topics
#
# `levada.pipelines.flows.samples` makes up what visitors of a shop do. Here is an hour of it as 2,000 events: page
# views, searches, clicks, scrolling and ads, each kind in a topic of its own. Written as a batch they are all there or
# none.

# %%
flow.make_topics(broker.bootstrap, [*activity.TOPICS, "views-by-country"])
times = (datetime(2026, 11, 15, 12, tzinfo=UTC) + timedelta(seconds=1.8 * n) for n in range(10_000))
events = website(random.Random(7), lambda: next(times))


def send(count: int) -> None:
    rows = spark.createDataFrame(list(islice(events, count)), "topic string, key string, value string")
    rows.write.format("levada").mode("append").options(**BROKER).save()


send(2_000)

# %% [markdown]
# ## 3. A topic is a table
#
# `format("levada")` has the columns and options of Spark's own Kafka connector. A batch reads what is there now.

# %%
raw = spark.read.format("levada").options(**BROKER).option("subscribe", ",".join(activity.TOPICS)).load()
raw.groupBy("topic").count().orderBy("topic").show()

# %% [markdown]
# ## 4. Typed columns
#
# With `valueFormat` the JSON in a value is a struct; what does not fit is kept apart, and nothing fails.

# %%
JSON = {"valueFormat": "json", "valueSchema": "at timestamp, visitor string, page string, country string"}
views = spark.read.format("levada").options(**BROKER, **JSON, subscribe="page-views").load().select("value.*")
views.groupBy("page").count().orderBy("count", ascending=False).show(3, truncate=False)

# %% [markdown]
# ## 5. A stream becomes a topic
#
# `readStream` is the same, as records come. This query counts the views of each quarter of an hour by country. The
# watermark says how late a view may come: a window is written, once, when it can get no more. The query ends when it
# has read everything (`availableNow`); without this trigger it would run on.

# %%
checkpoint = tempfile.mkdtemp()


def count_views() -> None:
    stream = spark.readStream.format("levada").options(**BROKER, **JSON, subscribe="page-views")
    in_time = (
        stream.option("startingOffsets", "earliest").load().select("value.*").withWatermark("at", "1 minute")
    )
    counts = in_time.groupBy(F.window("at", "15 minutes").alias("window"), "country").count()
    row = F.struct(F.col("window.end").alias("until"), "country", "count")
    records = counts.select(F.col("country").alias("key"), F.to_json(row).alias("value"))
    writer = records.writeStream.format("levada").options(**BROKER, topic="views-by-country")
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


count_views()
print(len(broker.records("views-by-country")), "records, one of them:")
print(min(record.value for record in broker.records("views-by-country")).decode())

# %% [markdown]
# ## 6. It goes on where it ended
#
# The checkpoint knows what was read, and the sink what was written: more events, the same query, and only new windows
# are added. It would be the same if the machine had failed in the middle.

# %%
send(1_000)
count_views()
print(len(broker.records("views-by-country")), "records")
once = {record.value for record in broker.records("views-by-country")}
assert len(once) == len(broker.records("views-by-country"))

# %% [markdown]
# ## 7. The same in SQL
#
# A topic is a table of its name. `levada pipeline sql` does this from the command line, for as long as it runs.

# %%
query = "SELECT visitor, query, results FROM searches WHERE results = 0"
sql(
    query, "empty-searches", bootstrap=broker.bootstrap, checkpoint=tempfile.mkdtemp(), once=True, tell=print
).wait()
print(len(broker.records("empty-searches")), "searches found nothing")

# %% [markdown]
# ## 8. A report with a chart
#
# The ready-made pipelines need no code: `levada pipeline run activity` follows topics, and this counts them at once.
# `docs/pipelines.md` has them all.

# %%
report = activity.report(bootstrap=broker.bootstrap, top=3)
print(report.text())
print("chart:", report.write("activity.svg"))

# %%
spark.stop()
broker.stop()
