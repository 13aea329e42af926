"""Producer ids, also after a metadata store was restored that has not allocated those in the logs."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Producer
from tests.support.broker import BrokerThread
from tests.support.raw import batches

from levada.broker.producer_ids import ProducerIds
from levada.core.cluster.controller import PRODUCER_ID_BLOCK, AllocateProducerIds
from levada.core.cluster.image import ClusterImage


def test_ids_of_logs_are_not_given_out() -> None:
    image = ClusterImage()

    async def submit(_: AllocateProducerIds) -> ClusterImage:
        nonlocal image
        image = replace(image, next_producer_id=image.next_producer_id + PRODUCER_ID_BLOCK)
        return image

    async def give_out() -> list[int]:
        ids = ProducerIds(submit)
        ids.exclude("orders-0", [1, PRODUCER_ID_BLOCK, 1 << 60], image)
        first = [await ids.next() for _ in range(3)]
        ids.exclude("orders-1", [0, 2, 5], image)  # the log is opened late: 0 and 2 were given out already
        return [*first, *[await ids.next() for _ in range(PRODUCER_ID_BLOCK)]]

    expected = [one for one in range(PRODUCER_ID_BLOCK + 6) if one not in (1, 5, PRODUCER_ID_BLOCK)]
    assert asyncio.run(give_out()) == expected


def send(broker: BrokerThread, value: bytes) -> None:
    idempotent = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True}
    producer = Producer(idempotent)
    producer.produce("orders", value, partition=0)
    assert producer.flush(30) == 0


def test_metadata_that_is_older_than_the_logs_gives_no_producer_id_twice(tmp_path: Path) -> None:
    """The new producer's batch would be a duplicate of the old one's: acknowledged, and not stored."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    backup.mkdir()
    with BrokerThread(data) as broker:
        broker.create("orders")
    for file in data.glob("levada-metadata.db*"):
        shutil.copy(file, backup)
    with BrokerThread(data) as broker:
        send(broker, b"old")
    for file in data.glob("levada-metadata.db*"):
        file.unlink()
    shutil.copytree(backup, data, dirs_exist_ok=True)
    with BrokerThread(data) as broker:
        send(broker, b"new")
        stored = batches(broker.bootstrap, "orders")
    assert [one.base_offset for one in stored] == [0, 1]
    assert stored[0].producer_id != stored[1].producer_id
