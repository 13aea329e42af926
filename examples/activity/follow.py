"""A website's activity in Python: the pipeline as a function, its results read back, and a report with a chart.

First some events: python examples/feed.py activity --count 20000
"""

import os

from levada.pipelines.flows import activity, flow
from levada.spark import session

BOOTSTRAP = os.environ.get("LEVADA_BOOTSTRAP", "127.0.0.1:9092")
spark = session("activity")

# All that is there, and then it ends; without `once` it runs until `stop`. A second run goes on from here.
running = activity.activity(
    bootstrap=BOOTSTRAP, window="1 second", late="1 second", gap="5 seconds", once=True
)
running.wait(watch=lambda progress: print(progress.line()))

results = flow.table_of(spark, BOOTSTRAP, ["activity-pages"], {})
newest = results.selectExpr("string(value) AS pages").orderBy("offset", ascending=False)
newest.show(3, truncate=100)

report = activity.report(bootstrap=BOOTSTRAP, gap="5 seconds", top=5)
print(report.text())
print("chart:", report.write("activity.svg"))
