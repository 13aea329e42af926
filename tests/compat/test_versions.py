"""Every version of every API that the broker serves, with a request that means something in all of them.

Clients of ten years speak all these versions. A field that moves between them (names to ids, one key to many) must
not get lost, so each version must show the same facts.
"""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from tests.compat.drivers.base import Create, eventually
from tests.support import raw
from tests.support.raw import Connection, batch

from levada.errors import ErrorCode

TOPIC = 2
UNSTABLE = {"init_producer_id": 6}  # Kafka does not serve these yet


def versions(api: str) -> pytest.MarkDecorator:
    last = UNSTABLE.get(api, 1000)
    return pytest.mark.parametrize("version", [v for v in raw.versions_known(api) if v < last])


@pytest.fixture
def topic_id(wire: Connection, topic: str) -> uuid.UUID:
    (found,) = wire.call("metadata", 12, {"topics": [{"name": topic, "topic_id": None}]}).topics
    assert isinstance(found.topic_id, uuid.UUID)
    return found.topic_id


@versions("produce")
def test_produce(ask: Callable[..., Any], wire: Connection, topic: str, topic_id: uuid.UUID, version: int) -> None:
    places = [{"index": 0, "records": batch(b"a", b"b")}, {"index": 7, "records": batch(b"a")}]
    data = [{"name": topic, "topic_id": topic_id, "partition_data": places}]
    (reply,) = ask("produce", version, acks=-1, timeout=5000, topic_data=data).responses
    done, unknown = reply.partition_responses
    assert (done.index, done.error_code, done.base_offset) == (0, 0, 0)
    assert (unknown.index, unknown.error_code) == (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert raw.fetch(wire, topic, 0).high_watermark == 2


@versions("fetch")
def test_fetch(ask: Callable[..., Any], wire: Connection, topic: str, topic_id: uuid.UUID, version: int) -> None:
    sent = batch(b"a", b"b")
    raw.produce(wire, topic, sent)
    place = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
    topics = [{"topic": topic, "topic_id": topic_id, "partitions": [place]}]
    reply = ask("fetch", version, replica_id=-1, max_bytes=1 << 20, session_epoch=-1, topics=topics)
    (part,) = reply.responses[0].partitions
    assert (part.partition_index, part.error_code, part.high_watermark) == (0, 0, 2)
    assert bytes(part.records)[16:] == sent[16:]


@versions("list_offsets")
def test_list_offsets(ask: Callable[..., Any], wire: Connection, topic: str, version: int) -> None:
    raw.produce(wire, topic, batch(b"a", b"b"))
    place = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    topics = [{"name": topic, "partitions": [place]}]
    (reply,) = ask("list_offsets", version, replica_id=-1, topics=topics).topics
    (part,) = reply.partitions
    assert (part.partition_index, part.error_code, part.offset) == (0, 0, 2)


@versions("metadata")
def test_metadata(ask: Callable[..., Any], broker: str, topic: str, topic_id: uuid.UUID, version: int) -> None:
    reply = ask("metadata", version, topics=[{"name": topic}], allow_auto_topic_creation=False)
    (node,) = reply.brokers
    assert f"{node.host}:{node.port}" == broker
    (found,) = reply.topics
    assert (found.name, found.error_code, getattr(found, "topic_id", topic_id)) == (topic, 0, topic_id)
    assert [(part.partition_index, part.leader_id) for part in found.partitions] == [(0, node.node_id)]
    assert getattr(reply, "controller_id", node.node_id) == node.node_id


@versions("metadata")
def test_metadata_of_all_topics(ask: Callable[..., Any], topic: str, version: int) -> None:
    """Version 0 asks for all with an empty list, later ones with null."""
    names = {found.name for found in ask("metadata", version, topics=[] if version == 0 else None).topics}
    assert topic in names


@versions("offset_for_leader_epoch")
def test_offset_for_leader_epoch(ask: Callable[..., Any], wire: Connection, topic: str, version: int) -> None:
    raw.produce(wire, topic, batch(b"a", b"b"))
    place = {"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}
    topics = [{"topic": topic, "partitions": [place]}]
    (reply,) = ask("offset_for_leader_epoch", version, replica_id=-1, topics=topics).topics
    assert [(part.error_code, part.end_offset) for part in reply.partitions] == [(0, 2)]


@versions("find_coordinator")
def test_find_coordinator(ask: Callable[..., Any], broker: str, version: int) -> None:
    """One key up to version 3, many from version 4 on."""
    reply = ask("find_coordinator", version, key="group", key_type=0, coordinator_keys=["group"])
    (found,) = getattr(reply, "coordinators", (reply,))
    assert (found.error_code, f"{found.host}:{found.port}") == (0, broker)
    assert getattr(found, "key", "group") == "group"


@versions("init_producer_id")
def test_init_producer_id(ask: Callable[..., Any], version: int) -> None:
    made = [ask("init_producer_id", version, producer_id=-1, producer_epoch=-1) for _ in range(2)]
    assert [(one.error_code, one.producer_epoch) for one in made] == [(0, 0), (0, 0)]
    assert 0 <= made[0].producer_id < made[1].producer_id


@versions("create_topics")
def test_create_topics(ask: Callable[..., Any], name: str, version: int) -> None:
    configs = [{"name": "retention.ms", "value": "77777"}]
    asked = [{"name": name, "num_partitions": 2, "replication_factor": 1, "configs": configs}]
    (made,) = ask("create_topics", version, timeout=5000, topics=asked).topics
    assert (made.name, made.error_code) == (name, 0)
    eventually(lambda: len(ask("metadata", 9, topics=[{"name": name}]).topics[0].partitions), 2)
    resource = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": ["retention.ms"]}
    (described,) = ask("describe_configs", 4, resources=[resource]).results
    assert [config.value for config in described.configs] == ["77777"]


@versions("delete_topics")
def test_delete_topics(ask: Callable[..., Any], topic: str, version: int) -> None:
    """Names up to version 5, names or ids from version 6 on."""
    old, new = (
        {"topic_names": [topic, f"{topic}-none"]},
        {"topics": [{"name": topic}, {"name": f"{topic}-none"}]},
    )
    replies = ask("delete_topics", version, timeout=5000, **(new if version >= 6 else old)).responses
    codes = {reply.name: reply.error_code for reply in replies}
    assert codes == {topic: 0, f"{topic}-none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@versions("create_partitions")
def test_create_partitions(ask: Callable[..., Any], topic: str, version: int) -> None:
    asked = [{"name": topic, "count": 3, "assignments": None}]
    (grown,) = ask("create_partitions", version, timeout=5000, topics=asked).results
    assert (grown.name, grown.error_code) == (topic, 0)
    eventually(lambda: len(ask("metadata", 9, topics=[{"name": topic}]).topics[0].partitions), 3)


@versions("delete_records")
def test_delete_records(ask: Callable[..., Any], wire: Connection, topic: str, version: int) -> None:
    raw.produce(wire, topic, batch(b"a", b"b", b"c"))
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 2}]}]
    (reply,) = ask("delete_records", version, timeout=5000, topics=asked).topics
    assert [(part.error_code, part.low_watermark) for part in reply.partitions] == [(0, 2)]


@versions("describe_configs")
def test_describe_configs(ask: Callable[..., Any], name: str, create: Create, version: int) -> None:
    create(name, configs={"retention.ms": "4321"})
    names = ["retention.ms", "segment.bytes"]
    resource = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": names}
    (reply,) = ask("describe_configs", version, resources=[resource]).results
    found = {config.name: config for config in reply.configs}
    assert {name: config.value for name, config in found.items()} == {
        "retention.ms": "4321",
        "segment.bytes": "1073741824",
    }
    if version == 0:
        assert (found["retention.ms"].is_default, found["segment.bytes"].is_default) == (False, True)
    else:
        assert (found["retention.ms"].config_source, found["segment.bytes"].config_source) == (1, 5)


@pytest.mark.parametrize(
    ("api", "version"),
    [(api, version) for api in ("alter_configs", "incremental_alter_configs") for version in raw.versions_known(api)],
)
def test_alter_configs(ask: Callable[..., Any], topic: str, api: str, version: int) -> None:
    configs = [{"name": "retention.ms", "value": "5555", "config_operation": 0}]
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
    (done,) = ask(api, version, resources=[resource]).responses
    assert (done.resource_name, done.error_code) == (topic, 0)
    asked = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["retention.ms"]}
    eventually(lambda: ask("describe_configs", 4, resources=[asked]).results[0].configs[0].value, "5555")


@versions("describe_cluster")
def test_describe_cluster(ask: Callable[..., Any], broker: str, version: int) -> None:
    reply = ask("describe_cluster", version, endpoint_type=1)
    (node,) = reply.brokers
    assert (reply.error_code, f"{node.host}:{node.port}", node.broker_id) == (0, broker, reply.controller_id)


@versions("describe_log_dirs")
def test_describe_log_dirs(ask: Callable[..., Any], wire: Connection, topic: str, version: int) -> None:
    sent = batch(b"a" * 100)
    raw.produce(wire, topic, sent)
    (reply,) = ask("describe_log_dirs", version, topics=[{"topic": topic, "partitions": [0]}]).results
    (found,) = reply.topics
    assert (found.name, [part.partition_size for part in found.partitions]) == (topic, [len(sent)])
