"""Keep a topic for good, ask something of all it ever had, and send a part of it to another topic.

First some events: python examples/feed.py activity --count 20000
"""

import os

from levada.pipelines.lake.archive import archive
from levada.pipelines.lake.history import history
from levada.pipelines.lake.replay import replay
from levada.spark import session

BOOTSTRAP = os.environ.get("LEVADA_BOOTSTRAP", "127.0.0.1:9092")
LAKE = os.environ.get("LAKE", "./lake")  # or hdfs://..., s3a://...
spark = session("lake")

# All that is there, and then it ends; without `once` it runs until `stop`. A second run adds what is new.
running = archive(["page-views", "searches"], LAKE, bootstrap=BOOTSTRAP, once=True, spark=spark)
running.wait(watch=lambda progress: print(progress.line()))

# The lake has the old records, the log the new ones; none is missing and none is there twice.
views = history("page-views", LAKE, bootstrap=BOOTSTRAP, spark=spark)
views.groupBy("partition").count().orderBy("partition").show()

# As fast as possible; speed=1 would send them as fast as they came.
replay("page-views", LAKE, "page-views-again", bootstrap=BOOTSTRAP, by_key=True, spark=spark).wait()
again = spark.read.format("levada").option("kafka.bootstrap.servers", BOOTSTRAP)
print("sent again:", again.option("subscribe", "page-views-again").load().count(), "of", views.count())
