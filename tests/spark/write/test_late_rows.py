"""Tasks whose first row comes late in Spark: their worker renews the transactions of tasks that have ended."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING

import pytest

from levada.core.transactions.machine import TransactionsMachine
from levada.core.transactions.state import Transaction
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT = "30s"  # renewed every 10 s; the driver's process, which commits, starts within the other 20 s
GO = "levada.test.rows"  # the Java property that lets the second task go on
ROWS = 1_200  # 600 of the second task, at 0.1 s each
GOES_ON = f"java_method('java.lang.System', 'getProperty', '{GO}') = 'yes'"
SLEEPS = "length(concat_ws('', java_method('java.lang.Thread', 'sleep', 100L))) >= 0"  # always true
ONE_EACH = f"id = 0 OR id >= {ROWS // 2} AND ({GOES_ON} OR {SLEEPS}) AND id > {ROWS - 2}"


@pytest.fixture
def renewed(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Set when the broker has renewed a transaction."""
    event, real = Event(), TransactionsMachine._renewable_timeout_ms

    def noted(machine: TransactionsMachine, current: Transaction) -> int | None:
        event.set()
        return real(machine, current)

    monkeypatch.setattr(TransactionsMachine, "_renewable_timeout_ms", noted)
    return event


def test_a_task_renews_those_of_others_before_its_first_row(
    spark: "SparkSession", broker: EmbeddedBroker, renewed: Event
) -> None:
    topic = broker.topic()
    rows = spark.range(0, ROWS, 1, 2).filter(ONE_EACH).selectExpr("string(id) AS value")
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, "transactionTimeout": TIMEOUT}
    assert spark._jvm is not None
    properties = spark._jvm.java.lang.System

    def lets_go() -> None:
        assert renewed.wait(120), "no transaction is renewed"
        properties.setProperty(GO, "yes")

    with ThreadPoolExecutor() as pool:
        going = pool.submit(lets_go)
        rows.write.format("levada").mode("append").options(**options).save()
        going.result()
    properties.clearProperty(GO)
    assert sorted(record.value or b"" for record in broker.records(topic)) == [b"0", str(ROWS - 1).encode()]
