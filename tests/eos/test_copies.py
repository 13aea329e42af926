"""Exactly once: copies from topic to topic are complete and in order, over kills.

`make test` copies 10,000 messages; `make chaos` 100,000, with more faults. `SEED=n` runs one seed again.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from tests.eos.chaos import TIMEOUT_S, Chaos, Size, plan
from tests.eos.copying import Feed, broker, check, copy
from tests.eos.processes import ConfluentCopier, JavaCopier, JavaProducer
from tests.support.downloads import Unavailable, must_be_had

FULL = os.environ.get("CHAOS") == "full"
SIZE = Size(100_000, 750, 24) if FULL else Size(10_000, 250, 6)
SEED = int(os.environ.get("SEED", "1"))
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_copies_by_librdkafka(tmp_path: Path, protocol: str) -> None:
    """Three members of a group; partitions move between them when one dies or sleeps."""
    chance, partitions = random.Random(SEED), 4
    with broker(tmp_path, partitions) as server:
        names = [f"copier-{number}" for number in range(3)]
        copiers = [
            ConfluentCopier(tmp_path, name, server.bootstrap, SIZE.transaction, protocol=protocol) for name in names
        ]
        feed = Feed(server.bootstrap, partitions, SIZE.messages, rate=SIZE.messages // 10)
        feed.start()
        try:
            chaos = Chaos(server, copiers, chance)
            watcher = copy(chaos, plan(chance, SIZE, len(copiers)), server.bootstrap, partitions, feed)
        finally:
            feed.join()
        copied = [event for copier in copiers for event in copier.history()]
        check(server.bootstrap, SIZE.messages, [*feed.history, *copied, *watcher.history])


MODES = ["assign", "group"] if FULL else ["assign"]


@pytest.mark.parametrize("mode", MODES)
def test_copies_by_kafkas_own_copier(tmp_path: Path, mode: str) -> None:
    """`VerifiableProducer`, then two of `TransactionalMessageCopier`, as in Kafka's system tests."""
    chance, partitions = random.Random(SEED), 2
    with broker(tmp_path, partitions) as server:
        try:
            producer = JavaProducer(tmp_path, server.bootstrap, SIZE.messages)
        except Unavailable as error:
            must_be_had("Kafka's tools", error)
        try:
            while producer.sent() < SIZE.messages / 3:
                time.sleep(0.01)
            server.stop(signal.SIGKILL)
            server.start()
        finally:
            producer.wait(TIMEOUT_S)
        copiers = [
            JavaCopier(tmp_path, f"copier-{index}", server.bootstrap, SIZE.transaction, index, mode == "group")
            for index in range(partitions)
        ]
        chaos = Chaos(server, copiers, chance)
        watcher = copy(chaos, plan(chance, SIZE, len(copiers)), server.bootstrap, partitions)
        check(server.bootstrap, SIZE.messages, [*producer.history(), *watcher.history])
