"""Clients over restarts of the broker, clean or killed: nothing acknowledged is lost or duplicated.

A killed process loses nothing either, since its writes are in the page cache, and the producers' sequence
numbers survive with the log, so that a retry of what was written before the end is known as a duplicate.
"""

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.compat.drivers.base import Driver, Record
from tests.compat.drivers.registry import DRIVERS, drivers_with
from tests.compat.features import Feature, shows
from tests.compat.own_broker import own_broker
from tests.support.broker import BrokerProcess
from tests.support.raw import Connection

pytestmark = own_broker

ROUNDS = 30
RECORDS = 20
LONG_LIVED = drivers_with(("long_lived",))


def expected() -> list[bytes]:
    return [b"%d" % number for number in range(ROUNDS * RECORDS)]


class Writer(threading.Thread):
    """One client that writes in small rounds and knows nothing of restarts."""

    def __init__(self, client: Driver) -> None:
        super().__init__(name=client.name)
        self.client = client
        self.topic = f"restart-{client.name}"
        self.under_way = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        values = expected()
        try:
            for start in range(0, len(values), RECORDS):
                records = [Record(value) for value in values[start : start + RECORDS]]
                self.client.produce(self.topic, records, idempotent=True)
                if start >= RECORDS * 3:
                    self.under_way.set()
        except BaseException as error:
            self.error = error
        finally:
            self.under_way.set()


@shows(Feature.RESTARTS, clients=[driver.name for driver in LONG_LIVED])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["clean", "killed"])
def test_writers_go_on(tmp_path: Path, how: signal.Signals, connect: Callable[[type[Driver]], Driver]) -> None:
    for driver in LONG_LIVED:
        connect(driver)  # none of them may be missing
    with BrokerProcess(tmp_path) as server:
        writers = [Writer(driver(server.bootstrap)) for driver in LONG_LIVED]
        try:
            for writer in writers:
                writer.client.create_topic(writer.topic)
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.under_way.wait()
            server.stop(how)
            server.start()
            for writer in writers:
                writer.join()
            assert {writer.name: writer.error for writer in writers if writer.error} == {}
            (reader, *_) = (writer.client for writer in writers)
            for writer in writers:
                count = reader.offsets(writer.topic)[1]
                values = [record.value for record in reader.consume(writer.topic, count)]
                assert values == expected(), writer.name
        finally:
            for writer in writers:
                writer.join()
                writer.client.close()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["clean", "killed"])
def test_topics_and_settings_survive(tmp_path: Path, how: signal.Signals) -> None:
    with BrokerProcess(tmp_path) as server:
        client = DRIVERS[0](server.bootstrap)
        client.create_topic("kept", partitions=3, configs={"retention.ms": "123456"})
        client.produce("kept", [Record(b"x")] * 5, partition=2)
        client.delete_records("kept", 2, partition=2)
        before = client.describe_topic("kept"), client.describe_cluster().cluster_id
        server.stop(how)
        server.start()
        with Connection(server.bootstrap) as wire:
            assert wire.call("metadata", 12, {"topics": []}).brokers
        again = DRIVERS[0](server.bootstrap)
        assert (again.describe_topic("kept"), again.describe_cluster().cluster_id) == before
        assert again.describe_configs("kept")["retention.ms"].value == "123456"
        first, end = again.offsets("kept", partition=2)
        assert end == 5
        if how is signal.SIGTERM:  # as in Kafka, a kill may bring back what DeleteRecords removed a moment ago
            assert first == 2
