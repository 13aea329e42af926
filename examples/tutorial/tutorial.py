"""Topics as tables: a tutorial in cells, which run one by one or all at once."""

# %% [markdown]
# # Topics as tables: Levada and Spark in eight steps
#
# The events of a website go through a broker. Spark reads them as tables, in batches and as streams, and writes results
# back to topics, each record once. Everything runs on this machine: `pip install '.[spark]'` installs the broker,
# Spark, and a Java runtime if there is none.
#
# Editors open this file as a notebook, cell by cell; `python tutorial.py` runs it from top to bottom.
# `tutorial.ipynb` is the same for Jupyter.

# %% [markdown]
# ## 1. A broker and a session
#
# The broker of `levada.testing` runs in this process and ends with it. `levada start` starts a broker of its own.

# %%
import random
import tempfile
from datetime import UTC, datetime, timedelta
from itertools import islice

from pyspark.sql import functions as F

from levada.pipelines import sql
from levada.pipelines.flows.activity import TOPICS, report
from levada.pipelines.flows.samples import website
from levada.pipelines.topics import create_topics
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
# `levada.pipelines.flows.samples` generates the events of visitors of a shop. Here is an hour of them, 2,000 events:
# page views, searches, clicks, scrolling and ads, each kind in a topic of its own. A batch is written atomically: all
# of its records become visible, or none.

# %%
create_topics(broker.bootstrap, [*TOPICS, "views-by-country"])
times = (datetime(2026, 11, 15, 12, tzinfo=UTC) + timedelta(seconds=1.8 * n) for n in range(10_000))
events = website(random.Random(7), lambda: next(times))


def send(count: int) -> None:
    rows = spark.createDataFrame(list(islice(events, count)), "topic string, key string, value string")
    rows.write.format("levada").mode("append").options(**BROKER).save()


send(2_000)

# %% [markdown]
# ## 3. A topic is a table
#
# `format("levada")` has the columns and options of Spark's own Kafka connector. A batch reads the current records.

# %%
raw = spark.read.format("levada").options(**BROKER).option("subscribe", ",".join(TOPICS)).load()
raw.groupBy("topic").count().orderBy("topic").show()

# %% [markdown]
# ## 4. Typed columns
#
# With `valueFormat` a JSON value is a struct. Values that do not fit the schema do not fail the query.

# %%
JSON = {"valueFormat": "json", "valueSchema": "at timestamp, visitor string, page string, country string"}
views = spark.read.format("levada").options(**BROKER, **JSON, subscribe="page-views").load().select("value.*")
views.groupBy("page").count().orderBy("count", ascending=False).show(3, truncate=False)

# %% [markdown]
# ## 5. A stream becomes a topic
#
# `readStream` reads records as they arrive. This query counts the views of each quarter of an hour by country. The
# watermark is the time that late views have: a window is written once, when the watermark has passed its end. The query
# ends when it has read all available records (`availableNow`); without this trigger it runs until it is stopped.

# %%
checkpoint = tempfile.mkdtemp()


def count_views() -> None:
    stream = spark.readStream.format("levada").options(**BROKER, **JSON, subscribe="page-views")
    views = stream.option("startingOffsets", "earliest").load().select("value.*").withWatermark("at", "1 minute")
    counts = views.groupBy(F.window("at", "15 minutes").alias("window"), "country").count()
    row = F.struct(F.col("window.end").alias("until"), "country", "count")
    records = counts.select(F.col("country").alias("key"), F.to_json(row).alias("value"))
    writer = records.writeStream.format("levada").options(**BROKER, topic="views-by-country")
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


count_views()
print(len(broker.records("views-by-country")), "records, one of them:")
print(min(record.value for record in broker.records("views-by-country")).decode())

# %% [markdown]
# ## 6. The query continues from its checkpoint
#
# The checkpoint has the offsets that were read, the sink the batches that were written. After more events the same
# query adds only the new windows. The result is the same after a crash in the middle.

# %%
send(1_000)
count_views()
print(len(broker.records("views-by-country")), "records")
once = {record.value for record in broker.records("views-by-country")}
assert len(once) == len(broker.records("views-by-country"))

# %% [markdown]
# ## 7. The same in SQL
#
# A topic is a table of its name. `levada pipeline sql` runs the same query from the command line.

# %%
query = "SELECT visitor, query, results FROM searches WHERE results = 0"
sql(
    query,
    "empty-searches",
    bootstrap=broker.bootstrap,
    checkpoint=tempfile.mkdtemp(),
    once=True,
    notify=print,
).wait()
print(len(broker.records("empty-searches")), "searches found nothing")

# %% [markdown]
# ## 8. A report with a chart
#
# The ready-made pipelines need no code: `levada pipeline run activity` processes topics as a stream, and a report
# counts all events at once. `docs/pipelines.md` describes all pipelines.

# %%
found = report(bootstrap=broker.bootstrap, top=3)
print(found.text())
print("chart:", found.write("activity.svg"))

# %%
spark.stop()
broker.stop()
