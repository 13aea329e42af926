"""The client's hand-written messages agree with kio, the reference implementation."""

from io import BytesIO
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer
from tests.support.random_messages import kio_class, random_message

from levada.client import data, metadata
from levada.client.connection import MALFORMED
from levada.client.metadata import Api, TopicInfo
from levada.model import TopicPartition
from levada.wire.schema.versions import APIS

ORDERS = TopicInfo("orders", UUID(int=7), False, (), 0)
CLICKS = TopicInfo("clicks", UUID(int=8), False, (), 0)
TOPICS = {"orders": ORDERS, "clicks": CLICKS}
PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 5), TopicPartition("clicks", 2)]
ROUNDS = 40


def versions(*apis: Api) -> list[Any]:
    return [pytest.param(api, version, id=f"{api.name}-{version}") for api in apis for version in api.versions]


def as_kio_reads(api: Api, version: int, body: bytes | bytearray) -> Any:
    """The request in `body`, which must end where it ends."""
    message, size = entity_reader(kio_class(APIS[api.key], version, "request"))(bytes(body), 0)
    assert size == len(body)
    return message


def as_kio_writes(message: Any) -> memoryview:
    out = BytesIO()
    entity_writer(type(message))(out, message)
    return memoryview(out.getvalue())


def random_responses(api: Api, version: int) -> list[Any]:
    random = Random(f"{api.name} {version}")
    return [random_message(random, APIS[api.key], version, "response") for _ in range(ROUNDS)]


def topic_of(entry: Any, version: int) -> Any:
    """What names a topic in an entry of Produce or Fetch: its name, or from 13 on its id."""
    if version >= data.TOPIC_IDS_FROM:
        return entry.topic_id
    return entry.name if hasattr(entry, "name") else entry.topic


def test_api_versions() -> None:
    request = as_kio_reads(metadata.API_VERSIONS, 3, metadata.write_api_versions())
    assert request.client_software_name == "levada"
    for message in random_responses(metadata.API_VERSIONS, 3):
        if message.error_code == 0:
            expected = {key.api_key: range(key.min_version, key.max_version + 1) for key in message.api_keys}
            found = metadata.read_api_versions(as_kio_writes(message))
            assert found.apis == expected
            assert found.features == {feature.name: feature.max_version_level for feature in message.finalized_features}


@pytest.mark.parametrize(("api", "version"), versions(metadata.METADATA))
@pytest.mark.parametrize("topics", [None, [], ["orders", "clicks"]])
def test_metadata_request(api: Api, version: int, topics: list[str] | None) -> None:
    request = as_kio_reads(api, version, metadata.write_metadata(version, topics, create=True))
    assert request.allow_auto_topic_creation
    asked = None if request.topics is None else [topic.name for topic in request.topics]
    assert asked == topics


@pytest.mark.parametrize(("api", "version"), versions(metadata.METADATA))
def test_metadata_response(api: Api, version: int) -> None:
    for message in random_responses(api, version):
        found = metadata.read_metadata(as_kio_writes(message))
        assert (found.cluster_id, found.controller_id) == (message.cluster_id, message.controller_id)
        assert found.brokers == {
            broker.node_id: (broker.node_id, broker.host, broker.port, broker.rack) for broker in message.brokers
        }
        for topic in {topic.name or "": topic for topic in message.topics}.values():
            info = found.topics[topic.name or ""]
            assert info[1:3] + info[4:] == (topic.topic_id, topic.is_internal, topic.error_code)
            assert info.partitions == tuple(
                sorted(
                    (
                        part.partition_index,
                        part.leader_id,
                        part.leader_epoch,
                        part.replica_nodes,
                        part.isr_nodes,
                        part.offline_replicas,
                        part.error_code,
                    )
                    for part in topic.partitions
                )
            )


@pytest.mark.parametrize("size", [200, data.COPIED_BYTES_MAX])
@pytest.mark.parametrize("transactional_id", [None, "billing-1"])
@pytest.mark.parametrize(("api", "version"), versions(data.PRODUCE))
def test_produce_request(api: Api, version: int, transactional_id: str | None, size: int) -> None:
    """Large batches are parts of their own: nothing copies them."""
    batches = {partition: bytes([partition.partition]) * size for partition in PARTITIONS}
    parts = data.write_produce(version, -1, 1_234, batches, TOPICS, transactional_id)
    uncopied = {id(part.obj) for part in parts if isinstance(part, memoryview)}
    assert uncopied == ({id(batch) for batch in batches.values()} if size > 200 else set())
    request = as_kio_reads(api, version, b"".join(parts))
    assert (request.acks, request.timeout.total_seconds()) == (-1, 1.234)
    assert request.transactional_id == transactional_id
    sent = {
        (topic_of(topic, version), part.index): part.records
        for topic in request.topic_data
        for part in topic.partition_data
    }
    by_id = version >= data.TOPIC_IDS_FROM
    assert sent == {
        (TOPICS[topic].topic_id if by_id else topic, index): batch for (topic, index), batch in batches.items()
    }


@pytest.mark.parametrize(("api", "version"), versions(data.PRODUCE))
def test_produce_response(api: Api, version: int) -> None:
    for message in random_responses(api, version):
        topics = {str(entry.topic_id): entry for entry in message.responses} if version >= 13 else {}
        infos = {name: ORDERS._replace(topic_id=entry.topic_id) for name, entry in topics.items()}
        responses = data.read_produce(version, as_kio_writes(message), infos)
        expected = {}
        for entry in message.responses:
            name = topic_of(entry, version)
            known = (str(name) if name else "") if version >= 13 else name
            for part in entry.partition_responses:
                expected[TopicPartition(known, part.index)] = (
                    part.error_code,
                    part.base_offset,
                    part.error_message,
                )
        assert {
            partition: (
                response.error,
                response.base_offset,
                expected[partition][2] and response.error_message,
            )
            for partition, response in responses.items()
        } == expected


@pytest.mark.parametrize(("api", "version"), versions(data.FETCH))
def test_fetch_request(api: Api, version: int) -> None:
    wanted = [data.FetchPosition(partition, 100 + partition.partition, 4) for partition in PARTITIONS]
    body = data.write_fetch(version, wanted, TOPICS, data.FetchLimits(500, 2, 3, 1, 7))
    request = as_kio_reads(api, version, body)
    assert (request.max_wait.total_seconds(), request.min_bytes, request.max_bytes) == (0.5, 7, 2)
    assert (request.isolation_level, request.session_id, request.session_epoch) == (1, 0, -1)
    asked = {
        (topic_of(topic, version), part.partition): (part.fetch_offset, part.current_leader_epoch)
        for topic in request.topics
        for part in topic.partitions
    }
    by_id = version >= data.TOPIC_IDS_FROM
    assert asked == {
        (
            TOPICS[want.partition.topic].topic_id if by_id else want.partition.topic,
            want.partition.partition,
        ): (want.offset, want.leader_epoch)
        for want in wanted
    }
    assert {part.partition_max_bytes for topic in request.topics for part in topic.partitions} == {3}


@pytest.mark.parametrize(("api", "version"), versions(data.FETCH))
def test_fetch_response(api: Api, version: int) -> None:
    for message in random_responses(api, version):
        entries = {str(entry.topic_id): entry for entry in message.responses} if version >= 13 else {}
        infos = {name: ORDERS._replace(topic_id=entry.topic_id) for name, entry in entries.items()}
        error, responses = data.read_fetch(version, as_kio_writes(message), infos)
        assert error == message.error_code
        expected = {}
        for entry in message.responses:
            name = topic_of(entry, version)
            known = (str(name) if name else "") if version >= 13 else name
            for part in entry.partitions:
                expected[TopicPartition(known, part.partition_index)] = (
                    part.error_code,
                    part.high_watermark,
                    part.last_stable_offset,
                    part.log_start_offset,
                    tuple((one.producer_id, one.first_offset) for one in part.aborted_transactions or ()),
                    part.records or b"",
                )
        assert {partition: (*response[:5], bytes(response[5])) for partition, response in responses.items()} == expected


@pytest.mark.parametrize(("api", "version"), versions(data.LIST_OFFSETS))
def test_list_offsets(api: Api, version: int) -> None:
    times = {PARTITIONS[0]: data.LATEST, PARTITIONS[1]: 1_700_000_000_000, PARTITIONS[2]: data.EARLIEST}
    request = as_kio_reads(api, version, data.write_list_offsets(version, times, isolation_level=1))
    assert request.isolation_level == 1
    assert {
        TopicPartition(topic.name, part.partition_index): part.timestamp
        for topic in request.topics
        for part in topic.partitions
    } == times
    for message in random_responses(api, version):
        assert data.read_list_offsets(as_kio_writes(message)) == {
            (topic.name, part.partition_index): (
                part.error_code,
                part.timestamp,
                part.offset,
                part.leader_epoch,
            )
            for topic in message.topics
            for part in topic.partitions
        }


@pytest.mark.parametrize(("api", "version"), versions(data.INIT_PRODUCER_ID))
def test_init_producer_id(api: Api, version: int) -> None:
    request = as_kio_reads(api, version, data.write_init_producer_id(version))
    assert request.transactional_id is None
    for message in random_responses(api, version):
        expected = (message.error_code, message.producer_id, message.producer_epoch)
        assert data.read_init_producer_id(as_kio_writes(message)) == expected


@settings(max_examples=400, deadline=None)
@given(junk=st.binary(max_size=200), version=st.sampled_from(data.FETCH.versions))
def test_junk_is_refused_and_never_taken_for_more(junk: bytes, version: int) -> None:
    view = memoryview(junk)
    for read in (
        metadata.read_metadata,
        data.read_list_offsets,
        data.read_init_producer_id,
        lambda body: data.read_fetch(version, body, TOPICS),
        lambda body: data.read_produce(9, body, TOPICS),
    ):
        try:
            read(view)
        except MALFORMED:
            pass


def test_every_truncated_response_is_refused() -> None:
    for message in random_responses(data.LIST_OFFSETS, 11):
        whole = as_kio_writes(message)
        for size in range(len(whole) - 1):  # the last byte says that no tagged fields follow
            with pytest.raises(MALFORMED):
                data.read_list_offsets(whole[:size])
