"""Exactly once: what copiers copy from topic to topic is there once and in order, whoever is killed meanwhile (R34).

`make test` copies 10,000 messages; `make chaos` 100,000, with more kills. `SEED=n` runs one seed again.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from tests.cache import Unavailable
from tests.eos.chaos import Chaos, Feed, Progress, Size, broker, check, plan
from tests.eos.processes import ConfluentCopier, JavaCopier, JavaProducer

FULL = os.environ.get("CHAOS") == "full"
SIZE = Size(100_000, 750, 24, 600) if FULL else Size(10_000, 250, 6, 180)
SEED = int(os.environ.get("SEED", "1"))
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_copies_by_librdkafka(tmp_path: Path, protocol: str) -> None:
    """Three members of a group; partitions move between them when one dies."""
    chance = random.Random(SEED)
    partitions = 4
    with broker(tmp_path, partitions) as server:
        copiers = [
            ConfluentCopier(tmp_path, f"copier-{number}", server.address, SIZE.transaction, protocol)
            for number in range(3)
        ]
        feed = Feed(server.address, partitions, SIZE.messages, rate=SIZE.messages // 10)
        progress = Progress(server.address, partitions)
        chaos = Chaos(server, copiers, chance)
        feed.start()
        try:
            chaos.run(
                plan(chance, SIZE, len(copiers)),
                lambda: not feed.is_alive() and progress.complete(),
                SIZE.patience_s,
            )
        finally:
            feed.join()
            progress.close()
        told = [event for copier in copiers for event in copier.history()]
        print(f"{chaos.transactions} transactions, {chaos.kills} kills; {chaos.ended_by_themselves}")
        check(server.address, SIZE.messages, [*feed.history, *told])


@pytest.mark.parametrize(
    "group_mode", [False, True] if FULL else [False], ids=lambda mode: "group" if mode else "assign"
)
def test_copies_by_kafkas_own_copier(tmp_path: Path, group_mode: bool) -> None:
    """`VerifiableProducer` and two of `TransactionalMessageCopier`, as in Kafka's system tests."""
    chance = random.Random(SEED)
    partitions = 2
    with broker(tmp_path, partitions) as server:
        try:
            producer = JavaProducer(tmp_path, server.address, SIZE.messages)
        except Unavailable as error:
            pytest.skip(f"Kafka's tools cannot be had here: {error}")
        try:
            while producer.sent() < SIZE.messages / 3:
                time.sleep(0.01)
            server.stop(signal.SIGKILL)
            server.start()
        finally:
            producer.wait(SIZE.patience_s)
        copiers = [
            JavaCopier(tmp_path, f"copier-{number}", server.address, SIZE.transaction, number, group_mode)
            for number in range(partitions)
        ]
        progress = Progress(server.address, partitions)
        chaos = Chaos(server, copiers, chance)
        try:
            chaos.run(plan(chance, SIZE, len(copiers)), progress.complete, SIZE.patience_s)
        finally:
            progress.close()
        print(f"{chaos.transactions} transactions, {chaos.kills} kills; {chaos.ended_by_themselves}")
        check(server.address, SIZE.messages, list(producer.history()))
