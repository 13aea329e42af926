"""The commit protocol of the sink: exactly once with kills and late tasks at every step."""

import random
from collections.abc import Callable

import pytest
from tests.spark.support.sink_world import ROWS, TWO_PHASE_TIMEOUT_MS, Bugs, Dead, Steps, World

from levada.client.producer.transactions import PreparedTransaction
from levada.core.transactions.state import EPOCH_MAX
from levada.spark.write.commit_log import decode_commit, encode_commit
from levada.spark.write.commit_protocol import (
    NO_COMMIT,
    UNKNOWN_CONTENT,
    BatchContent,
    CommitRecord,
    plan_commit,
)

BATCHES = 3
SEEDS = 400


def run(
    seed: int, bugs: Bugs | None = None, first_epoch: int = 0, *, restored: bool = False, days_pass: bool = False
) -> tuple[World, list[tuple[int, int]]]:
    """Drivers come, die or fall asleep; at the end a healthy one finishes. The world, and what must be visible.

    If `days_pass`, all of them die before, and what they have left open is aborted.
    """
    chance = random.Random(seed)
    world = World(first_epoch, bugs or Bugs(), coordinators(chance))
    actors: list[Steps] = []

    def again() -> bool:
        return chance.random() < 0.3

    def fails() -> bool:
        return chance.random() < 0.1

    def driver() -> None:
        steps = world.driver(chance.randint(1, 4), BATCHES, actors.append, again, fails)
        actors.append(steps)

    driver()
    for _ in range(chance.randint(50, 400)):
        if not actors:
            break
        kind = chance.random()
        if chance.random() < 0.01:
            world.let_time_out()
        if kind < 0.02:
            actors.pop(chance.randrange(len(actors)))  # dies
        elif kind < 0.04 or (kind < 0.3 and len(actors) == 1):
            driver()  # a supervisor believes that the one before is dead
        else:
            step(actors, chance.choice(actors))
    if days_pass:
        actors.clear()
        world.let_time_out(TWO_PHASE_TIMEOUT_MS)
    while actors:  # those who slept wake up, and go on for as long as they are let
        step(actors, chance.choice(actors))
        if actors and chance.random() < 0.05:
            actors.pop(chance.randrange(len(actors)))
    world.moves = lambda _: False
    world.refused = False
    if restored:
        world.restore_checkpoint()
    world.lost.clear()
    for world.goes_on in (False, True):  # an operator lets it go on, once it has said that a batch may be lost
        actors.append(world.driver(2, BATCHES + 1, actors.append, never, never))  # undisturbed, and one batch more
        while actors:
            step(actors, chance.choice(actors))
        if not world.lost:
            break
    if world.refused:  # of what was committed nothing is lost or doubled, and nothing was added
        return world, [(batch, row) for batch in range(world.last().batch + 1) for row in range(ROWS)]
    return world, sorted((batch, row) for batch in world.commits for row in range(world.plans[batch]))


def never() -> bool:
    return False


def coordinators(chance: random.Random) -> Callable[[str], bool]:
    """Whether that of a transactional id is on its way, which it is for a while; in some worlds often."""
    leaving, away = chance.choice((0, 0.1, 0.3)), set[str]()

    def moves(name: str) -> bool:
        if chance.random() < (0.2 if name in away else leaving):
            away.symmetric_difference_update({name})
        return name in away

    return moves


def step(actors: list[Steps], actor: Steps) -> None:
    try:
        next(actor)
    except (StopIteration, Dead):
        actors.remove(actor)


def is_right(seed: int, bugs: Bugs | None = None, first_epoch: int = 0, *, restored: bool = False) -> bool:
    world, wanted = run(seed, bugs, first_epoch, restored=restored)
    return sorted(world.visible) == wanted and not world.open() and (restored or not world.refused)


@pytest.mark.parametrize("first_epoch", [0, EPOCH_MAX - 6])
def test_each_row_is_there_once_and_nothing_stays_open_with_kills_and_late_tasks(first_epoch: int) -> None:
    wrong = [seed for seed in range(SEEDS) if not is_right(seed, first_epoch=first_epoch)]
    assert wrong == []


def test_a_checkpoint_restored_by_a_batch_loses_nothing_unless_a_driver_says_so() -> None:
    worlds = {seed: run(seed, restored=True) for seed in range(SEEDS)}
    assert {world.refused for world, _ in worlds.values()} == {True, False}
    assert [seed for seed in worlds if not is_right(seed, restored=True)] == []
    assert any(not is_right(seed, Bugs(uncounted=True), restored=True) for seed in range(SEEDS))


def says_what_is_lost(seed: int, bugs: Bugs | None = None) -> bool:
    world, wanted = run(seed, bugs, days_pass=True)
    missing = {batch for batch, _ in set(wanted) - set(world.visible)}
    return missing <= world.lost and len(set(world.visible)) == len(world.visible) and not world.open()


def test_a_committed_batch_that_was_aborted_after_days_is_refused() -> None:
    worlds = [run(seed, days_pass=True) for seed in range(SEEDS)]
    assert any(world.lost for world, _ in worlds) and not all(world.lost for world, _ in worlds)
    assert [seed for seed in range(SEEDS) if not says_what_is_lost(seed)] == []
    assert any(not says_what_is_lost(seed, Bugs(unread=True)) for seed in range(SEEDS))


@pytest.mark.parametrize(
    "bug", ["tasks_abort", "no_fence", "no_driver_fence", "abort_first", "listed_only", "believes", "keeps_timeouts"]
)
def test_a_step_left_out_is_found(bug: str) -> None:
    assert any(not is_right(seed, Bugs(**{bug: True})) for seed in range(10 * SEEDS))


A, B, C = (PreparedTransaction(f"spark-q-{index}-0", 7, index) for index in range(3))


def open_now(*prepared: PreparedTransaction) -> dict[str, PreparedTransaction]:
    return {one.transactional_id: one for one in prepared}


def test_the_transactions_of_a_batch_are_committed_and_others_aborted() -> None:
    plan = plan_commit(NO_COMMIT, 0, [B, A], open_now(A, B, C))
    assert plan == (
        CommitRecord(0, (A, B)),
        (A.transactional_id, B.transactional_id),
        (C.transactional_id,),
        None,
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BatchContent(0), "has 0 rows now and had 3"),
        (BatchContent(4, "p"), "has 4 rows now and had 3"),
        (BatchContent(3, "q"), "ends at other offsets now"),
        (BatchContent(4, "q"), "ends at other offsets now"),
        (BatchContent(3, "p"), None),
        (BatchContent(3), None),
        (UNKNOWN_CONTENT, None),
    ],
)
def test_a_repeated_batch_that_is_another_is_refused_and_the_one_before_finished(
    content: BatchContent, message: str | None
) -> None:
    last = CommitRecord(4, (A, B), BatchContent(3, "p"))
    plan = plan_commit(last, 4, [C], open_now(B, C), content=content)
    assert plan[:3] == (last, (B.transactional_id,), (C.transactional_id,))
    assert (plan.conflict is None) if message is None else (message in (plan.conflict or ""))
    assert plan_commit(last, 4, [C], open_now(B, C), content=content, failed=True).conflict is None
    assert plan_commit(CommitRecord(4, (A, B)), 4, [C], open_now(B, C), content=content).conflict is None


def test_a_committed_batch_is_finished_with_the_transactions_of_its_commit_record() -> None:
    again = A._replace(transactional_id="spark-q-0-1")
    plan = plan_commit(CommitRecord(4, (A, B)), 4, [again], open_now(B, again))
    assert plan == (CommitRecord(4, (A, B)), (B.transactional_id,), (again.transactional_id,), None)


@pytest.mark.parametrize("batch", [4, 5, 6])
def test_open_transactions_of_the_commit_record_are_committed_whichever_batch_comes_next(batch: int) -> None:
    last = CommitRecord(5, (A, B))
    plan = plan_commit(last, batch, [C], open_now(B, C))
    assert plan.record == (CommitRecord(6, (B, C)) if batch == 6 else last)
    assert B.transactional_id in plan.commit
    assert (C.transactional_id in plan.commit) == (batch == 6)
    failed = plan_commit(last, batch, [C], open_now(B, C), failed=True)
    assert failed[:3] == (last, (B.transactional_id,), (C.transactional_id,))


def test_a_failed_batch_is_aborted_unless_it_is_in_the_commit_log() -> None:
    assert plan_commit(CommitRecord(4, (A,)), 5, [B], open_now(B), failed=True)[1:3] == (
        (),
        (B.transactional_id,),
    )
    assert plan_commit(CommitRecord(4, (A,)), 4, [A], open_now(A), failed=True)[1:3] == (
        (A.transactional_id,),
        (),
    )


def test_a_transaction_that_is_not_open_any_more_fails_its_batch() -> None:
    taken = B._replace(producer_epoch=9)
    plan = plan_commit(CommitRecord(4, (C,)), 5, [A, B], open_now(A, taken))
    assert plan.record == CommitRecord(4, (C,)) and plan.commit == ()
    assert plan.conflict is not None and B.transactional_id in plan.conflict


def test_a_driver_that_is_behind_commits_nothing_and_leaves_others_alone() -> None:
    plan = plan_commit(CommitRecord(6, (C,)), 5, [A], open_now(A, B))
    assert plan[:3] == (CommitRecord(6, (C,)), (), (A.transactional_id,))
    assert plan.conflict is not None and "checkpoint" in plan.conflict


@pytest.mark.parametrize(
    "commit",
    [
        NO_COMMIT,
        CommitRecord(1 << 40, (A, B)),
        CommitRecord(3, (A,), BatchContent(1 << 40, "p")),
        CommitRecord(3, (A,), BatchContent(2, None, (1 << 64) - 1)),
    ],
)
def test_a_commit_record_is_read_as_it_was_written(commit: CommitRecord) -> None:
    assert decode_commit(encode_commit(commit)) == commit


def test_a_commit_record_of_a_writer_that_did_not_count_is_read() -> None:
    assert decode_commit(b'[1,4,[["spark-q-0-0",7,0]]]') == CommitRecord(4, (A,), UNKNOWN_CONTENT)
    before_digests = b'[1,4,[["spark-q-0-0",7,0]],[2,"p"],["name","run","checkpoint"]]'
    assert decode_commit(before_digests).content == BatchContent(2, "p")
