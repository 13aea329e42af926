"""Records of format 1, as earlier versions wrote them, become the records of today."""

from uuid import UUID

import pytest

from levada.core.cluster import metadata_records
from levada.core.cluster.image import ClusterImage
from levada.core.cluster.migration import migrated
from levada.core.cluster.registration import next_epoch
from levada.model import Endpoint

TOPIC_ID, DIRECTORY = "8a4f5a3e-6f0c-4b4e-9c53-0d0c5a1f3b7d", "5c7f21f4-3a0b-4a6e-8a62-2b9f0d1f9a10"
# As version 0.1 wrote them.
FORMAT_1 = {
    "/cluster": b'{"cluster_id":"vZ7b2vJ1R7y1d2J1Zk3bXw"}',
    "/controller": b'{"controller_id":1}',
    "/producer-ids": b'{"next_producer_id":3000}',
    "/brokers/1": b'{"id":1,"endpoints":[["PLAINTEXT","PLAINTEXT","127.0.0.1",9092]],"rack":null,"epoch":7}',
    "/configs/brokers/<default>": b'{"log.retention.ms":"5"}',
    "/configs/brokers/1": b'{"message.max.bytes":"6"}',
    "/configs/groups/a%2Fb": b'{"consumer.session.timeout.ms":"50000"}',
    "/topics/orders": (
        b'{"name":"orders","id":"%b","partitions":['
        b'{"replicas":[1],"isr":[1],"leader":1,"leader_epoch":0,"partition_epoch":1,"directories":["%b"]},'
        b'{"replicas":[1],"isr":[1],"leader":1,"leader_epoch":0,"partition_epoch":0}'
        b'],"configs":{"retention.ms":"9"}}'
    )
    % (TOPIC_ID.encode(), DIRECTORY.encode()),
}


def image_of(records: dict[str, bytes]) -> ClusterImage:
    changes = [metadata_records.decode(key, value) for key, value in records.items()]
    return ClusterImage().apply([change for change in changes if change is not None])


def test_nothing_is_lost() -> None:
    image = image_of(migrated(FORMAT_1))
    assert image.cluster_id == "vZ7b2vJ1R7y1d2J1Zk3bXw"
    assert image.next_producer_id == 3000
    assert image.broker_configs == {"": {"log.retention.ms": "5"}, "1": {"message.max.bytes": "6"}}
    assert image.group_configs == {"a/b": {"consumer.session.timeout.ms": "50000"}}
    topic = image.topics["orders"]
    assert (topic.id, topic.configs) == (UUID(TOPIC_ID), {"retention.ms": "9"})
    first, second = topic.partitions
    assert (first.replicas, first.isr, first.leader, first.partition_epoch) == ((1,), (1,), 1, 1)
    assert first.directory_of(1) == UUID(DIRECTORY)
    assert second.directory_of(1) is None, "a version that did not assign directories"


def test_the_broker_is_registered_and_returns_with_a_greater_epoch() -> None:
    image = image_of(migrated(FORMAT_1))
    assert image.registered[1].endpoints == (Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092),)
    assert image.brokers == {}
    assert image.topics["orders"].partitions[0].leader_broker_epoch == image.registered[1].epoch == 7
    assert next_epoch(image, 1, 0) > 7


def test_no_former_key_is_used_again() -> None:
    assert not migrated(FORMAT_1).keys() & FORMAT_1.keys()
    assert migrated({}) == {}


def test_a_damaged_record_is_named() -> None:
    with pytest.raises(ValueError, match=r"/topics/a: .*missing required field"):
        migrated({"/topics/a": b"{}"})
