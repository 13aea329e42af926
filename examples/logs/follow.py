"""Logs of many services in Python: rates and alerts to topics, every line to a lake, and a search in it.

First some lines: python examples/feed.py logs --count 20000
"""

import os

from levada.pipelines.flows import flow, service_logs
from levada.spark import session

BOOTSTRAP = os.environ.get("LEVADA_BOOTSTRAP", "127.0.0.1:9092")
LAKE = os.environ.get("LAKE", "./lake")
spark = session("logs")

service_logs.logs(lake=LAKE, window="5 seconds", late="1 second", bootstrap=BOOTSTRAP, once=True).wait()

alerts = flow.table_of(spark, BOOTSTRAP, ["logs-alerts"], {})
alerts.selectExpr("string(value) AS alert").show(3, truncate=140)

# In the lake and in the log, each line once: also those that came after the run above.
found = service_logs.search(LAKE, text="timed out", service="payments", bootstrap=BOOTSTRAP)
found.show(3, truncate=False)
