"""Website activity in Python: runs the pipeline, reads its results, and writes a report with a chart.

First produce some events: python examples/feed.py activity --count 20000
"""

import os

from levada.pipelines import activity
from levada.pipelines.flows.activity import report
from levada.pipelines.flows.flow import read_batch
from levada.spark import session

BOOTSTRAP = os.environ.get("LEVADA_BOOTSTRAP", "127.0.0.1:9092")
spark = session("activity")

# With `once` it ends when all available events are processed, otherwise at `stop`. The next run continues from there.
running = activity(bootstrap=BOOTSTRAP, window="1 second", late="1 second", gap="5 seconds", once=True)
running.wait(watch=lambda progress: print(progress.line()))

results = read_batch(spark, BOOTSTRAP, ["activity-pages"], {})
newest = results.selectExpr("string(value) AS pages").orderBy("offset", ascending=False)
newest.show(3, truncate=100)

found = report(bootstrap=BOOTSTRAP, gap="5 seconds", top=5)
print(found.text())
print("chart:", found.write("activity.svg"))
print("page:", found.write("activity.html"))  # to open in a browser and zoom
