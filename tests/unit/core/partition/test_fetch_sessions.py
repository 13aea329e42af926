"""Incremental fetch sessions return what full fetches return."""

from collections.abc import Callable, Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core.partition.fetch_sessions import (
    EVICTION_MS,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchContext,
    FetchPartition,
    FetchSessions,
    TopicKey,
)
from levada.errors import ErrorCode, KafkaError
from levada.wire.primitives import ELEMENTS_MAX


def ids() -> Callable[[], int]:
    drawn = iter(range(1, 1_000_000))
    return lambda: next(drawn)


def want(partition: int, fetch_offset: int = 0, topic: TopicKey = b"t") -> FetchPartition:
    return FetchPartition(topic, partition, fetch_offset, 1 << 20)


class Driver:
    """A client that knows the calling convention."""

    def __init__(self, slots: int = 10, partitions_max: int = 1_000) -> None:
        self.sessions = FetchSessions(slots, ids(), partitions_max)
        self.now_ms = 0

    def begin(
        self,
        session_id: int,
        epoch: int,
        wanted: Sequence[FetchPartition] = (),
        forgotten: Sequence[tuple[TopicKey, int]] = (),
        *,
        by_topic_id: bool = False,
        privileged: bool = False,
    ) -> FetchContext:
        return self.sessions.new_context(
            session_id,
            epoch,
            wanted,
            forgotten,
            by_topic_id=by_topic_id,
            privileged=privileged,
            now_ms=self.now_ms,
        )

    def refused(self, session_id: int, epoch: int, *, by_topic_id: bool = False) -> ErrorCode:
        with pytest.raises(KafkaError) as caught:
            self.begin(session_id, epoch, by_topic_id=by_topic_id)
        return caught.value.code

    def open(self, count: int = 1, *, privileged: bool = False) -> int:
        return self.begin(NO_SESSION, INITIAL_EPOCH, [want(i) for i in range(count)], privileged=privileged).session_id


def order(context: FetchContext) -> list[int]:
    return [partition.partition for partition in context.partitions]


def included(context: FetchContext, high_watermark: int = 0, log_start_offset: int = 0) -> list[int]:
    return [
        partition.partition
        for partition in context.partitions
        if context.include(partition, high_watermark, log_start_offset, 0)
    ]


def test_a_full_request_opens_a_session_and_is_answered_in_full() -> None:
    driver = Driver()
    context = driver.begin(NO_SESSION, INITIAL_EPOCH, [want(2), want(1)])
    assert (context.session_id, order(context), included(context)) == (1, [2, 1], [2, 1])
    assert (len(driver.sessions), driver.sessions.partitions_cached) == (1, 2)


def test_an_incremental_request_reads_all_and_names_only_what_changed() -> None:
    driver = Driver()
    included(driver.begin(NO_SESSION, INITIAL_EPOCH, [want(0), want(1), want(2), want(3), want(4)]))
    context = driver.begin(1, 1, [want(1, fetch_offset=7)])
    assert [(p.partition, p.fetch_offset) for p in context.partitions] == [
        (0, 0),
        (1, 7),
        (2, 0),
        (3, 0),
        (4, 0),
    ]
    zero, one, two, three, four = context.partitions
    assert not context.include(zero, 0, 0, 0)
    assert context.include(one, 5, 0, 0)  # a new high watermark
    assert context.include(two, 0, 3, 0)  # a new log start
    assert context.include(three, 0, 0, 100)  # records
    assert context.include(four, 0, 0, 0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    again = driver.begin(1, 2)
    returned = {
        p.partition: again.include(p, *known, 0)
        for p, known in zip(
            sorted(again.partitions, key=lambda p: p.partition),
            [(0, 0), (5, 0), (0, 3), (0, 0), (0, 0)],
            strict=True,
        )
    }
    assert returned == {0: False, 1: False, 2: False, 3: False, 4: True}  # the error went away: that is news


def test_a_partition_that_gave_records_is_read_last_next_time() -> None:
    driver = Driver()
    included(driver.begin(NO_SESSION, INITIAL_EPOCH, [want(0), want(1), want(2)]))
    context = driver.begin(1, 1)
    assert context.include(context.partitions[0], 9, 0, 100)
    assert context.include(context.partitions[1], 9, 0, 0)
    assert order(driver.begin(1, 2)) == [1, 2, 0]


def test_partitions_are_forgotten_and_the_last_one_takes_the_session_along() -> None:
    driver = Driver()
    driver.open(3)
    assert order(driver.begin(1, 1, [want(5)], [(b"t", 1), (b"t", 77)])) == [0, 2, 5]
    assert driver.sessions.partitions_cached == 3
    context = driver.begin(1, 2, (), [(b"t", 0), (b"t", 2), (b"t", 5)])
    assert (context.session_id, order(context), len(driver.sessions)) == (NO_SESSION, [], 0)
    assert driver.sessions.partitions_cached == 0


def test_a_wrong_id_epoch_or_kind_of_topic_is_refused() -> None:
    driver = Driver()
    driver.open()
    assert driver.refused(99, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert driver.refused(NO_SESSION, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert driver.refused(1, 2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert driver.refused(1, -2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert driver.refused(1, 1, by_topic_id=True) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    driver.begin(1, 1)
    assert driver.refused(1, 1) == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_topics_by_id() -> None:
    driver = Driver()
    topic = UUID(int=7).bytes
    driver.begin(NO_SESSION, INITIAL_EPOCH, [want(0, topic=topic), want(1, topic=topic)], by_topic_id=True)
    context = driver.begin(1, 1, (), [(topic, 0)], by_topic_id=True)
    assert [(p.topic, p.partition) for p in context.partitions] == [(topic, 1)]
    assert driver.refused(1, 2) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_the_final_epoch_closes_and_a_full_request_replaces_its_session() -> None:
    driver = Driver()
    driver.open()
    assert driver.begin(1, FINAL_EPOCH, [want(0)]).session_id == NO_SESSION
    assert len(driver.sessions) == 0
    assert driver.open() == 2
    assert driver.begin(2, INITIAL_EPOCH, [want(0)]).session_id == 3
    assert driver.refused(2, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_sessionless_request_includes_everything() -> None:
    driver = Driver()
    context = driver.begin(NO_SESSION, FINAL_EPOCH, [want(0), want(1)])
    assert (context.session_id, included(context), context.superseded) == (NO_SESSION, [0, 1], False)


def test_a_request_overtaken_by_the_next_one_is_superseded() -> None:
    driver = Driver()
    driver.open()
    waiting = driver.begin(1, 1)
    assert not waiting.superseded
    driver.begin(1, 2)
    assert waiting.superseded


def test_the_epoch_wraps_to_one() -> None:
    driver = Driver()
    driver.open()
    driver.sessions._sessions[1].epoch = 0x7FFFFFFF
    driver.begin(1, 0x7FFFFFFF)
    driver.begin(1, 1)


def test_a_full_cache_gives_no_session_to_an_equal() -> None:
    driver = Driver(slots=2)
    driver.open(2)
    driver.open(2)
    assert driver.open(5) == NO_SESSION  # the others are young
    assert driver.sessions.evictions == 0


def test_a_stale_session_makes_room() -> None:
    driver = Driver(slots=2)
    driver.open()
    driver.open()
    driver.now_ms = 1
    driver.begin(1, 1)
    driver.now_ms = EVICTION_MS + 1
    assert driver.open() == 3
    assert driver.refused(2, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert driver.open() == NO_SESSION


def test_a_bigger_session_displaces_an_old_small_one_in_use() -> None:
    driver = Driver(slots=2)
    driver.open(5)
    driver.open(2)
    driver.now_ms = EVICTION_MS + 1
    driver.begin(1, 1)
    driver.begin(2, 1)
    assert driver.open(1) == NO_SESSION
    assert driver.open(3) == 3
    assert driver.refused(2, 2) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_followers_session_displaces_a_consumers_but_never_the_other_way_round() -> None:
    driver = Driver(slots=1)
    driver.open(5)
    assert driver.open(1, privileged=True) == 2
    driver.now_ms = EVICTION_MS + 1
    driver.begin(2, 1, privileged=True)
    assert driver.open(9) == NO_SESSION


def test_the_partitions_remembered_are_bounded() -> None:
    driver = Driver(partitions_max=10)
    assert driver.open(11) == NO_SESSION
    assert driver.open(6) == 1
    assert driver.open(5) == NO_SESSION
    with pytest.raises(KafkaError) as caught:
        driver.begin(1, 1, [want(i) for i in range(11)])
    assert caught.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(driver.sessions), driver.sessions.partitions_cached) == (0, 0)


def test_a_session_does_not_grow_past_what_a_request_may_name() -> None:
    """Each of its small requests would be as much work for the broker as a request that names all."""
    driver = Driver(partitions_max=10 * ELEMENTS_MAX)
    session = driver.open(ELEMENTS_MAX)
    with pytest.raises(KafkaError) as caught:
        driver.begin(session, 1, [want(ELEMENTS_MAX)])
    assert caught.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert driver.sessions.partitions_cached == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans(), st.booleans()), max_size=40))
def test_a_client_that_applies_the_changes_knows_the_truth(steps: list[tuple[int, int, bool, bool]]) -> None:
    """What the client was told of each partition, updated by each answer, equals the broker's state."""
    driver = Driver()
    state = dict.fromkeys(range(5), 0)  # high watermarks
    wanted: set[int] = {0}
    returned: dict[int, int] = {}
    context = driver.begin(NO_SESSION, INITIAL_EPOCH, [want(0)])
    epoch = 1
    for partition, advance, add, fails in steps:
        for each in context.partitions:
            error = 1 if fails and each.partition == partition else 0
            if context.include(each, state[each.partition], 0, 0, error):
                returned[each.partition] = -1 if error else state[each.partition]
        assert all(returned[each] in (state[each], -1) for each in wanted)
        assert {each for each in wanted if returned[each] == -1} <= {partition}
        state[partition] += advance
        if add or wanted == {partition}:
            wanted.add(partition)
            context = driver.begin(1, epoch, [want(partition)])
        else:
            wanted.discard(partition)
            context = driver.begin(1, epoch, (), [(b"t", partition)])
        assert set(order(context)) == wanted
        assert driver.sessions.partitions_cached == len(wanted)
        epoch += 1
