"""The rules for fields that Kafka moved between versions, checked against all of kio's classes."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader
from tests.support.random_messages import MESSAGES, kio_class

from levada.errors import ErrorCode, KafkaError
from levada.wire.schema import messages
from levada.wire.schema.compiler import parse_path
from levada.wire.schema.fields import Field, Struct, struct_of
from levada.wire.schema.lazy_imports import lazy_imports
from levada.wire.schema.versions import (
    APIS,
    DERIVED_FIELDS,
    EMPTY_MEANT_NULL,
    FALLBACK_FIELDS,
    MOVED_FIELDS,
    NEVER,
    SHAPES,
    Api,
)

with lazy_imports():
    import kio.schema.add_partitions_to_txn.v5 as add_partitions_to_txn
    import kio.schema.delete_topics.v6 as delete_topics
    import kio.schema.find_coordinator.v6 as find_coordinator
    import kio.schema.join_group.v9 as join_group
    import kio.schema.leave_group.v5 as leave_group
    import kio.schema.update_features.v2 as update_features

    import levada.wire.schema.shapes.fetch as fetch
    import levada.wire.schema.shapes.metadata as metadata
    import levada.wire.schema.shapes.offset_commit as offset_commit
    import levada.wire.schema.shapes.offset_fetch as offset_fetch

TOPIC_ID = UUID(int=7)
NO_TIME = timedelta(0)


def structs(path: str, old: Struct, shape: Struct) -> Iterator[tuple[str, Struct, Struct]]:
    """All pairs of an old version's struct and the shape's, with the path that the rules use."""
    yield path, old, shape
    for field in old.fields:
        place = place_of(field, path, shape)
        if field.struct is not None and place is not None:
            assert place.struct is not None, f"{path}.{field.name} is no struct any more"
            yield from structs(f"{path}.{field.name}", field.struct, place.struct)


def place_of(field: Field, path: str, shape: Struct) -> Field | None:
    """Where the shape keeps a field: under its name, or where a rule says."""
    here = shape.find(field.name)
    move = MOVED_FIELDS.get(path, {}).get(field.name)
    if here is not None or move is None:
        return here
    for place in parse_path(move.path):
        here = shape.find(place.name)
        assert here is not None, f"{path}.{field.name}: no {place.name} in the shape"
        shape = here.struct or shape
    return here


def all_structs() -> Iterator[tuple[int, str, Struct, Struct]]:
    for api, kind in MESSAGES:
        for version in messages.versions_known(api.key):
            path, old, shape = messages.structs(api, version, kind)
            for found in structs(path, old, shape):
                yield version, *found


def test_every_api_and_version_of_kio_is_in_the_table() -> None:
    """A new kio with a new API or version must not be half known."""
    for key, name in api_key_map.items():
        versions = sorted(schema_name_map[name])
        flexible = [version for version in versions if kio_class(APIS[key], version, "request").__flexible__]
        expected = Api(key, name, versions[0], versions[-1], min(flexible, default=NEVER))
        assert APIS[key] == expected
    assert set(APIS) == set(api_key_map)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_headers_are_flexible_where_kio_says(api: Api) -> None:
    for version in messages.versions_known(api.key):
        request = kio_class(api, version, "request").__header_schema__
        response = kio_class(api, version, "response").__header_schema__
        assert messages.request_header_is_flexible(api.key, version) == request.__flexible__
        assert messages.response_header_is_flexible(api.key, version) == response.__flexible__


def test_no_field_of_any_version_is_lost() -> None:
    """Every field of every version has a place in the shape, of the same type."""
    for version, path, old, shape in all_structs():
        for field in old.fields:
            place = place_of(field, path, shape)
            assert place is not None, f"{path}.{field.name} of v{version} has no place in the shape and no rule"
            moved = MOVED_FIELDS.get(path, {}).get(field.name)
            if moved is None or moved.from_shape is None:
                assert place.kafka_type == field.kafka_type, f"{path}.{field.name} of v{version}"
            if moved is None:
                assert place.is_array == field.is_array, f"{path}.{field.name} of v{version}"


def test_only_known_fields_became_nullable() -> None:
    """Versions without null for a field: a response has empty instead, which must be right."""
    extended = {
        f"{path}.{field.name}"
        for _, path, old, shape in all_structs()
        for field in old.fields
        if (place := place_of(field, path, shape)) and place.nullable and not field.nullable
    }
    assert extended == {
        "delete_topics.request.topic_names",  # by name only: a topic's name is there
        "delete_topics.response.responses.name",  # asked for by name
        "join_group.response.protocol_name",  # empty while no protocol is chosen, as in Kafka
        "metadata.request.topics",  # v0: empty means all
        "metadata.request.topics.name",  # topics are asked for by name before v10
        "metadata.response.topics.name",
        "offset_fetch.request.topics",  # v1 cannot ask for all topics
    }


def test_every_rule_is_used() -> None:
    used: set[tuple[str, str]] = set()
    for _, path, old, shape in all_structs():
        used |= {(path, field.name) for field in old.fields if shape.find(field.name) is None}
    assert used == {(path, name) for path, names in MOVED_FIELDS.items() for name in names}
    paths = {path for _, path, _, _ in all_structs()}
    assert {*DERIVED_FIELDS, *FALLBACK_FIELDS, *EMPTY_MEANT_NULL} <= paths
    assert set(api_key_map.values()) >= SHAPES


def test_shapes_add_to_the_newest_version() -> None:
    """Whatever kio's newest class has, the shape has too, with the same default."""
    for api, kind in MESSAGES:
        _, newest, shape = messages.structs(api, api.last, kind)
        for path, old, ours in structs(f"{api.name}.{kind}", newest, shape):
            for field in old.fields:
                here = ours.find(field.name)
                assert here is not None and (field.struct or here.default == field.default), f"{path}.{field.name}"


def through(api_name: str, kind: str, version: int, message: Any) -> tuple[Any, Any]:
    """What kio sees of a message in a version, and what comes back from those bytes."""
    key = messages.api_key(api_name)
    read, write = {
        "request": (messages.read_request, messages.write_request),
        "response": (messages.read_response, messages.write_response),
    }[kind]
    data = write(key, version, message)
    old, _ = entity_reader(kio_class(APIS[key], version, kind))(data, 0)
    return old, read(key, version, data)


def test_find_coordinator_by_one_key() -> None:
    request = find_coordinator.FindCoordinatorRequest(key_type=1, coordinator_keys=("payments",))
    old, again = through("find_coordinator", "request", 3, request)
    assert old.key == "payments" and again == request
    response = find_coordinator.FindCoordinatorResponse(
        throttle_time=NO_TIME,
        coordinators=(
            find_coordinator.response.Coordinator(
                key="payments", node_id=4, host="b4", port=9092, error_code=ErrorCode.NONE, error_message="ok"
            ),
        ),
    )
    old, again = through("find_coordinator", "response", 2, response)
    assert (old.node_id, old.host, old.port, old.error_message) == (4, "b4", 9092, "ok")
    assert again.coordinators[0].host == "b4"


def test_two_keys_do_not_fit_into_an_old_version() -> None:
    request = find_coordinator.FindCoordinatorRequest(key_type=0, coordinator_keys=("a", "b"))
    with pytest.raises(KafkaError) as caught:
        messages.write_request(10, 3, request)
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_leave_group_of_one_member() -> None:
    request = leave_group.LeaveGroupRequest(
        group_id="g",
        members=(leave_group.request.MemberIdentity(member_id="m", group_instance_id=None, reason=None),),
    )
    old, again = through("leave_group", "request", 1, request)
    assert old.member_id == "m" and again == request
    member = leave_group.response.MemberResponse(
        member_id="m", group_instance_id=None, error_code=ErrorCode.UNKNOWN_MEMBER_ID
    )
    response = leave_group.LeaveGroupResponse(throttle_time=NO_TIME, error_code=ErrorCode.NONE, members=(member,))
    old, _ = through("leave_group", "response", 1, response)
    assert old.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    old, _ = through("leave_group", "response", 3, response)
    assert old.error_code == ErrorCode.NONE and old.members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_offset_fetch_of_one_group() -> None:
    topic = offset_fetch.OffsetFetchRequestTopics(name="orders", topic_id=None, partition_indexes=(0, 1))
    group = offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=(topic,))
    request = offset_fetch.OffsetFetchRequest(groups=(group,), require_stable=True)
    old, again = through("offset_fetch", "request", 7, request)
    assert old.group_id == "g" and old.topics[0].name == "orders" and again == request
    all_topics = offset_fetch.OffsetFetchRequest(
        groups=(offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=None),)
    )
    old, again = through("offset_fetch", "request", 5, all_topics)
    assert old.topics is None and again == all_topics
    with pytest.raises(KafkaError) as caught:
        messages.write_request(9, 1, all_topics)
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_topics_by_name_or_by_id() -> None:
    """KIP-516: newer versions carry the id, older ones the name; the shape has both."""
    topic = offset_commit.OffsetCommitRequestTopic(topic_id=TOPIC_ID, name="orders", partitions=())
    request = offset_commit.OffsetCommitRequest(group_id="g", member_id="m", topics=(topic,))
    for version, expected in ((9, (None, "orders")), (10, (TOPIC_ID, ""))):
        _, again = through("offset_commit", "request", version, request)
        assert (again.topics[0].topic_id, again.topics[0].name) == expected
    old, _ = through("delete_topics", "request", 5, _deletion("orders", "payments"))
    assert old.topic_names == ("orders", "payments")
    _, again = through("delete_topics", "request", 1, _deletion("orders"))
    assert again.topics == _deletion("orders").topics
    by_id = delete_topics.request.DeleteTopicState(name=None, topic_id=TOPIC_ID)
    with pytest.raises(KafkaError) as caught:
        messages.write_request(20, 5, delete_topics.DeleteTopicsRequest(topics=(by_id,), timeout=NO_TIME))
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


def _deletion(*names: str) -> "delete_topics.DeleteTopicsRequest":
    topics = tuple(delete_topics.request.DeleteTopicState(name=name, topic_id=None) for name in names)
    return delete_topics.DeleteTopicsRequest(topics=topics, timeout=NO_TIME)


def test_replica_id_moved_into_a_struct() -> None:
    request = fetch.FetchRequest(
        replica_state=fetch.request.ReplicaState(replica_id=3, replica_epoch=-1),
        max_wait=NO_TIME,
        min_bytes=1,
        topics=(),
        forgotten_topics_data=(),
    )
    for version in (4, 14, 15, 18):
        old, again = through("fetch", "request", version, request)
        assert again.replica_state.replica_id == 3
        assert version >= 15 or old.replica_id == 3


def test_transactions_of_old_producers() -> None:
    topic = add_partitions_to_txn.request.AddPartitionsToTxnTopic(name="orders", partitions=(1, 2))
    transaction = add_partitions_to_txn.request.AddPartitionsToTxnTransaction(
        transactional_id="t", producer_id=5, producer_epoch=1, topics=(topic,)
    )
    request = add_partitions_to_txn.AddPartitionsToTxnRequest(transactions=(transaction,))
    old, again = through("add_partitions_to_txn", "request", 3, request)
    assert old.v3_and_below_transactional_id == "t" and again == request


def test_metadata_of_all_topics() -> None:
    """v0 asks for all topics with an empty list, later versions with null; an empty list then asks for none."""
    everything = metadata.MetadataRequest(topics=None, include_topic_authorized_operations=False)
    old, again = through("metadata", "request", 0, everything)
    assert old.topics == () and again.topics is None
    assert again.allow_auto_topic_creation is True
    nothing = metadata.MetadataRequest(topics=(), include_topic_authorized_operations=False)
    assert through("metadata", "request", 1, nothing)[1].topics == ()


def test_a_response_of_kios_own_class_may_lack_what_the_shape_adds() -> None:
    response = metadata.response.MetadataResponse(
        throttle_time=NO_TIME, brokers=(), topics=(), error_code=ErrorCode.NONE
    )
    old, _ = through("metadata", "response", 9, response)
    assert old.cluster_authorized_operations == metadata.OPERATIONS_NOT_REQUESTED


def test_the_first_join_group_has_one_timeout() -> None:
    """v0 has no rebalance timeout: Kafka takes the session's."""
    request = join_group.JoinGroupRequest(
        group_id="g",
        session_timeout=timedelta(seconds=10),
        rebalance_timeout=timedelta(seconds=60),
        member_id="",
        protocol_type="consumer",
        protocols=(),
    )
    assert through("join_group", "request", 0, request)[1].rebalance_timeout == timedelta(seconds=10)
    assert through("join_group", "request", 1, request)[1].rebalance_timeout == timedelta(seconds=60)


@pytest.mark.parametrize(("upgrade_type", "allowed"), [(1, False), (2, True), (3, True)])
def test_feature_downgrades(upgrade_type: int, allowed: bool) -> None:
    update = update_features.request.FeatureUpdateKey(
        feature="transaction.version", max_version_level=1, upgrade_type=upgrade_type
    )
    old, again = through(
        "update_features", "request", 0, update_features.UpdateFeaturesRequest(feature_updates=(update,))
    )
    assert old.feature_updates[0].allow_downgrade is allowed
    assert again.feature_updates[0].upgrade_type == (2 if allowed else 1)


def test_defaults_of_fields_that_a_version_lacks() -> None:
    """Kafka's own defaults, not zeros."""
    request = struct_of(fetch.FetchRequest).default()
    read = messages.read_request(1, 4, messages.write_request(1, 4, request))
    assert (read.session_epoch, read.rack_id, read.cluster_id) == (-1, "", None)
    topics = struct_of(metadata.MetadataResponse).default()
    assert messages.read_response(3, 0, messages.write_response(3, 0, topics)).controller_id == -1
