"""The image: changes applied, replayed and stored without loss."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core.cluster import metadata_records as rows
from levada.core.cluster.image import (
    BrokerChanged,
    BrokerConfigsChanged,
    BrokerImage,
    BrokerRemoved,
    Change,
    ClusterFormed,
    ClusterImage,
    ControllerChanged,
    PartitionImage,
    ProducerIdsAllocated,
    TopicChanged,
    TopicImage,
    TopicRemoved,
)
from levada.model import Endpoint

names = st.sampled_from(["a", "a.b", "orders", "ü"])
settings = st.dictionaries(st.sampled_from(["segment.bytes", "retention.ms"]), st.text(max_size=5))
ids = st.integers(0, 2**31 - 1)
partitions = st.builds(
    PartitionImage,
    replicas=st.tuples(ids),
    isr=st.tuples(ids),
    leader=st.integers(-1, 5),
    leader_epoch=ids,
    partition_epoch=ids,
)
topics = st.builds(
    TopicImage,
    name=names,
    id=st.uuids(),
    partitions=st.lists(partitions, max_size=3).map(tuple),
    configs=settings,
)
endpoints = st.builds(Endpoint, st.text(max_size=5), st.just("PLAINTEXT"), st.text(max_size=5), st.integers(0, 65_535))
brokers = st.builds(
    BrokerImage, id=ids, endpoints=st.tuples(endpoints), rack=st.none() | st.text(max_size=3), epoch=ids
)
changes = st.one_of(
    st.builds(ClusterFormed, st.text(max_size=5)),
    st.builds(ControllerChanged, ids),
    st.builds(TopicChanged, topics),
    st.builds(TopicRemoved, names),
    st.builds(BrokerChanged, brokers),
    st.builds(BrokerRemoved, ids),
    st.builds(BrokerConfigsChanged, st.sampled_from(["", "1"]), settings),
    st.builds(ProducerIdsAllocated, ids),
)


@given(st.lists(changes, max_size=8))
def test_changes_survive_being_stored(made: list[Change]) -> None:
    assert [rows.decode(*rows.encode(change)) for change in made] == made


@given(st.lists(changes, max_size=8))
def test_replaying_the_rows_that_are_left_rebuilds_the_image(made: list[Change]) -> None:
    image = ClusterImage()
    table: dict[str, bytes] = {}
    for change in made:
        image = image.apply([change], revision=0)
        key, value = rows.encode(change)
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    decoded = [rows.decode(key, value) for key, value in table.items()]
    assert ClusterImage().apply([change for change in decoded if change is not None], revision=0) == image


@given(st.lists(changes, max_size=8))
def test_many_changes_at_once_are_the_same_as_one_by_one(made: list[Change]) -> None:
    one_by_one = ClusterImage()
    for change in made:
        one_by_one = one_by_one.apply([change], revision=9)
    assert ClusterImage().apply(made, revision=9 if made else 0) == one_by_one


@given(st.lists(changes, max_size=8))
def test_topics_are_found_by_exactly_their_ids(made: list[Change]) -> None:
    image = ClusterImage().apply(made)
    assert image.topic_names == {topic.id: name for name, topic in image.topics.items()}


def test_an_image_is_never_edited() -> None:
    topic = TopicImage("a", UUID(int=1), ())
    before = ClusterImage()
    after = before.apply([TopicChanged(topic)])
    again = after.apply([TopicRemoved("a")])
    assert (list(before.topics), list(after.topics), list(again.topics)) == ([], ["a"], [])
    assert [before.revision, after.revision, again.revision] == [0, 1, 2]


def test_a_name_used_again_forgets_the_old_id() -> None:
    old, new = TopicImage("a", UUID(int=1), ()), TopicImage("a", UUID(int=2), ())
    image = ClusterImage().apply([TopicChanged(old), TopicChanged(new)])
    assert dict(image.topic_names) == {UUID(int=2): "a"}


def test_rows_of_others_are_left_alone_and_damaged_ones_are_named() -> None:
    assert rows.decode("/somewhere/else", b"{}") is None
    with pytest.raises(ValueError, match="not json"):
        rows.decode("/topics/a", b"not json")
    with pytest.raises(ValueError, match="missing required field"):
        rows.decode("/topics/a", b"{}")
