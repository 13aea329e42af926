"""The image: changes applied, replayed and stored without loss."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.clusters import alive, topic_records

from levada.core.cluster import metadata_records as records
from levada.core.cluster.changes import (
    BrokerChanged,
    BrokerConfigsChanged,
    BrokerImage,
    BrokerLeaseChanged,
    BrokerRemoved,
    BrokerUnchanged,
    Change,
    Check,
    ClusterFormed,
    ControllerChanged,
    ControllerEpochChanged,
    ControllerUnchanged,
    GroupConfigsChanged,
    PartitionChanged,
    PartitionRemoved,
    ProducerIdsAllocated,
    TopicChanged,
    TopicConfigsChanged,
    TopicRemoved,
    TopicUnchanged,
)
from levada.core.cluster.image import ClusterImage, PartitionImage
from levada.core.cluster.topic_image import Creation
from levada.model import Endpoint

A, B = UUID(int=1), UUID(int=2)
ONE = PartitionImage((1,), (1,), 1, isr_epochs=(1,))

names = st.sampled_from(["a", "a.b", "orders"])
topic_ids = st.sampled_from([A, B])
settings = st.dictionaries(st.sampled_from(["segment.bytes", "retention.ms"]), st.text(max_size=5))
ids = st.integers(0, 2**31 - 1)
brokers_of_partitions = st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def partitions(draw: Any) -> PartitionImage:
    replicas = draw(brokers_of_partitions)
    isr = replicas[: draw(st.integers(1, len(replicas)))]
    return PartitionImage(
        replicas,
        isr,
        draw(st.sampled_from([-1, *isr])),
        draw(ids),
        draw(ids),
        draw(st.sampled_from([(), tuple(UUID(int=number) for number in replicas)])),
        draw(st.sampled_from([(), isr])),
        draw(st.sampled_from([(), replicas[:1]])),
        draw(st.sampled_from([(), replicas[1:]])),
    )


endpoints = st.builds(Endpoint, st.text(max_size=5), st.just("PLAINTEXT"), st.text(max_size=5), st.integers(0, 65_535))
brokers = st.builds(
    BrokerImage,
    id=st.integers(0, 3),
    endpoints=st.tuples(endpoints),
    rack=st.none() | st.text(max_size=3),
    epoch=st.integers(0, 3),
    unclean_epoch=st.integers(0, 3),
    recovering=st.booleans(),
    shutting_down=st.booleans(),
)
creations = st.none() | st.builds(Creation, ids, ids, ids)
written = st.one_of(
    st.builds(ClusterFormed, st.text(max_size=5)),
    st.builds(ControllerEpochChanged, ids),
    st.builds(TopicChanged, names, topic_ids, st.integers(0, 3), creations),
    st.builds(TopicRemoved, names),
    st.builds(PartitionChanged, names, topic_ids, st.integers(0, 3), partitions()),
    st.builds(PartitionRemoved, names, st.integers(0, 3)),
    st.builds(BrokerChanged, brokers),
    st.builds(BrokerRemoved, st.integers(0, 3), ids),
    st.builds(TopicConfigsChanged, names, settings),
    st.builds(BrokerConfigsChanged, st.sampled_from(["", "1"]), settings),
    st.builds(GroupConfigsChanged, st.text(max_size=5), settings),
    st.builds(ProducerIdsAllocated, ids),
)
changes = st.lists(
    st.one_of(
        written,
        st.builds(BrokerLeaseChanged, st.integers(0, 3), st.none() | st.integers(0, 3)),
        st.builds(ControllerChanged, st.integers(-1, 3)),
    ),
    max_size=12,
)


@given(st.lists(written, max_size=8))
def test_changes_survive_being_stored(made: list[Change]) -> None:
    assert [records.decode(*records.encode(change)) for change in made] == made


@given(st.lists(written, max_size=12), st.randoms())
def test_replaying_the_records_that_are_left_rebuilds_the_image(made: list[Change], chance: Any) -> None:
    """In any order: a snapshot may have the partitions before their topic."""
    image = ClusterImage()
    table: dict[str, bytes] = {}
    for change in made:
        image = image.apply([change], revision=0)
        key, value = records.encode(change)
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    items = list(table.items())
    chance.shuffle(items)
    decoded = [records.decode(key, value) for key, value in items]
    assert ClusterImage().apply([change for change in decoded if change is not None], revision=0) == image


@given(changes)
def test_many_changes_at_once_are_the_same_as_one_by_one(made: list[Change]) -> None:
    one_by_one = ClusterImage()
    for change in made:
        one_by_one = one_by_one.apply([change], revision=9)
    assert ClusterImage().apply(made, revision=9 if made else 0) == one_by_one


@given(changes)
def test_a_topic_exists_with_all_its_records_only(made: list[Change]) -> None:
    image = ClusterImage().apply(made)
    table = {records.encode(change)[0]: change for change in made if isinstance(change, TopicChanged | TopicRemoved)}
    states = {
        (change.topic, change.index): change
        for change in made
        if isinstance(change, PartitionChanged | PartitionRemoved)
    }
    for change in table.values():
        if not isinstance(change, TopicChanged):
            assert change.name not in image.topics
            continue
        found = [states.get((change.name, index)) for index in range(change.partitions)]
        own = [one for one in found if isinstance(one, PartitionChanged) and one.topic_id == change.id]
        if change.partitions and len(own) == change.partitions:
            assert [one.partition for one in own] == list(image.topics[change.name].partitions)
        else:
            assert change.name not in image.topics


@given(changes)
def test_topics_are_found_by_exactly_their_ids(made: list[Change]) -> None:
    image = ClusterImage().apply(made)
    # Only in these tests two topics have the same id.
    if len({topic.id for topic in image.topics.values()}) == len(image.topics):
        assert image.topic_names == {topic.id: name for name, topic in image.topics.items()}


def test_an_image_is_never_edited() -> None:
    before = ClusterImage()
    after = before.apply(topic_records("a", A, [ONE]))
    again = after.apply([TopicRemoved("a")])
    assert (list(before.topics), list(after.topics), list(again.topics)) == ([], ["a"], [])
    assert [before.revision, after.revision, again.revision] == [0, 1, 2]


def test_what_has_not_changed_is_shared() -> None:
    """Observers compare topics by identity, and a copy of ten thousand partitions for each change is slow."""
    image = ClusterImage().apply([*topic_records("a", A, [ONE] * 3), *topic_records("b", B, [ONE])])
    changed = image.apply([PartitionChanged("a", A, 1, PartitionImage((2,), (2,), 2))])
    assert changed.topics["b"] is image.topics["b"]
    assert changed.topic_names is image.topic_names and changed.brokers is image.brokers
    assert changed.topics["a"].partitions[0] is image.topics["a"].partitions[0]
    assert [state.leader for state in changed.topics["a"].partitions] == [1, 2, 1]


def test_a_name_used_again_forgets_the_old_id() -> None:
    image = ClusterImage().apply([*topic_records("a", A, [ONE]), *topic_records("a", B, [ONE])])
    assert dict(image.topic_names) == {B: "a"}


def test_records_of_a_deleted_topic_are_not_part_of_its_successor() -> None:
    image = ClusterImage().apply([*topic_records("a", A, [ONE] * 2), TopicRemoved("a")])
    assert image.topics == {} and sorted(image.detached["a"].partitions) == [0, 1]
    again = image.apply(topic_records("a", B, [ONE]))
    assert len(again.topics["a"].partitions) == 1 and list(again.detached["a"].partitions) == [1]
    grown = again.apply([TopicChanged("a", B, 2)])
    assert grown.topics == {}, "partition 1 is of the former topic"
    assert grown.apply([PartitionRemoved("a", 1), TopicChanged("a", B, 1)]).detached == {}


def test_a_broker_is_alive_while_its_lease_has_the_epoch_of_its_registration() -> None:
    first, second = BrokerImage(1, (), epoch=5), BrokerImage(1, (), epoch=6)
    image = ClusterImage().apply(alive(first))
    assert image.brokers == {1: first}
    restarting = image.apply([BrokerLeaseChanged(1, 6)])
    assert restarting.brokers == {} and restarting.registered == {1: first}
    assert restarting.apply([BrokerChanged(second)]).brokers == {1: second}
    stopped = image.apply([BrokerLeaseChanged(1, None)])
    assert stopped.brokers == {} and stopped.registered == {1: first}
    gone = stopped.apply([BrokerRemoved(1, 5)])
    assert gone.registered == {} and gone.last_epoch(1) == 5


def test_checks_name_records_and_change_nothing() -> None:
    image = ClusterImage().apply(topic_records("a", A, [ONE]))
    checks: list[Check] = [TopicUnchanged("a"), BrokerUnchanged(7), ControllerUnchanged()]
    assert image.apply([*checks], image.revision) == image
    assert [records.check_key(check) for check in checks] == [
        "/brokers/topics/a",
        "/levada/broker_epochs/7",
        "/controller_epoch",
    ]


def test_the_keys_are_kafkas_znodes() -> None:
    keys = [
        records.encode(change)[0]
        for change in (
            ClusterFormed("x"),
            TopicRemoved("a.b"),
            PartitionRemoved("a.b", 7),
            TopicConfigsChanged("a", {}),
            BrokerConfigsChanged("", {}),
            BrokerConfigsChanged("3", {}),
            ControllerEpochChanged(1),
            ProducerIdsAllocated(1),
        )
    ]
    assert keys == [
        "/cluster/id",
        "/brokers/topics/a.b",
        "/brokers/topics/a.b/partitions/7/state",
        "/config/topics/a",
        "/config/brokers/<default>",
        "/config/brokers/3",
        "/controller_epoch",
        "/latest_producer_id_block",
    ]


def test_leases_are_records_that_end() -> None:
    broker = BrokerImage(3, (Endpoint("PLAINTEXT", "PLAINTEXT", "host", 9092),), "b", epoch=8)
    key, value = records.broker_lease(broker)
    assert key == "/brokers/ids/3" and b'"PLAINTEXT://host:9092"' in value
    assert records.decode(key, value) == BrokerLeaseChanged(3, 8)
    assert records.decode(key, None) == BrokerLeaseChanged(3, None)
    key, value = records.controller_lease(3)
    assert (key, value) == ("/controller", b'{"brokerid":3}')
    assert records.decode(key, value) == ControllerChanged(3)
    assert records.decode(key, None) == ControllerChanged(-1)


@pytest.mark.parametrize(
    "key",
    [
        *("/somewhere/else", "/controller/x", "/cluster/id/x", "/brokers/ids/x", "/levada/broker_epochs/x"),
        *("/brokers/topics/a/partitions", "/brokers/topics/a/partitions/0", "/brokers/topics/a/partitions/x/state"),
    ],
)
def test_records_of_others_are_left_alone(key: str) -> None:
    assert records.decode(key, b"{}") is None
    assert records.decode(key, b"not json") is None


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("/brokers/topics/a", b"not json", "not json"),
        ("/brokers/topics/a", b"{}", "missing required field"),
        ("/brokers/topics/a/partitions/0/state", b"{}", "missing required field"),
        ("/config/topics/a", b'{"a":1}', "Expected `str`"),
        (
            "/brokers/topics/a/partitions/0/state",
            b'{"topic_id":"00000000-0000-0000-0000-000000000001","replicas":[1],"isr":[1],"leader":2}',
            "leader 2 is not in the ISR",
        ),
        (
            "/brokers/topics/a/partitions/0/state",
            b'{"topic_id":"00000000-0000-0000-0000-000000000001","replicas":[1],"isr":[1],"isr_epochs":[1,2]}',
            "as many epochs",
        ),
    ],
)
def test_a_damaged_record_is_named(key: str, value: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        records.decode(key, value)
    assert key in str(caught.value)
