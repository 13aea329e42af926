"""Logs of services in Python: rates and alerts to topics, all lines to a lake, and a search in it.

First produce some lines: python examples/feed.py logs --count 20000
"""

import os

from levada.pipelines import logs, search
from levada.pipelines.flows.flow import read_batch
from levada.spark import session

BOOTSTRAP = os.environ.get("LEVADA_BOOTSTRAP", "127.0.0.1:9092")
LAKE = os.environ.get("LAKE", "./lake")
spark = session("logs")

logs(lake=LAKE, window="5 seconds", late="1 second", bootstrap=BOOTSTRAP, once=True).wait()

alerts = read_batch(spark, BOOTSTRAP, ["logs-alerts"], {})
alerts.selectExpr("string(value) AS alert").show(3, truncate=140)

# In the lake and in the log, each line once, including lines after the run above.
found = search(LAKE, text="timed out", service="payments", bootstrap=BOOTSTRAP)
found.show(3, truncate=False)
