"""Archives a topic to a lake, queries its whole history, and replays it to another topic.

First produce some events: python examples/feed.py activity --count 20000
"""

import os

from levada.pipelines import archive, history, replay
from levada.spark import session

BOOTSTRAP = os.environ.get("LEVADA_BOOTSTRAP", "127.0.0.1:9092")
LAKE = os.environ.get("LAKE", "./lake")  # or hdfs://..., s3a://...
spark = session("lake")

# With `once` it ends when all available records are archived, otherwise at `stop`. The next run adds new records.
running = archive(["page-views", "searches"], LAKE, bootstrap=BOOTSTRAP, once=True, spark=spark)
running.wait(watch=lambda progress: print(progress.line()))

# The old records come from the lake, the new ones from the log, each once.
views = history("page-views", LAKE, bootstrap=BOOTSTRAP, spark=spark)
views.groupBy("partition").count().orderBy("partition").show()

# As fast as possible; speed=1 is the original speed.
replay("page-views", LAKE, "page-views-again", bootstrap=BOOTSTRAP, by_key=True, spark=spark).wait()
again = spark.read.format("levada").option("kafka.bootstrap.servers", BOOTSTRAP)
print("sent again:", again.option("subscribe", "page-views-again").load().count(), "of", views.count())
