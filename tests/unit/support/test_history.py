"""The checker of histories finds each anomaly, and none in clean histories."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.history import (
    History,
    Kind,
    Operation,
    Outcome,
    Partition,
    Poll,
    Positioned,
    Seen,
    Send,
    anomalies,
)

P0, P1 = ("orders", 0), ("orders", 1)


def sent(process: str, *records: tuple[int | None, str], outcome: Outcome = Outcome.OK) -> Operation:
    """Sends to partition 0 outside of transactions."""
    return Operation(process, tuple(Send(P0, value, offset) for offset, value in records), outcome)


def transaction(process: str, *steps: Send | Poll, outcome: Outcome = Outcome.OK, end_asked_tick: int = 0) -> Operation:
    return Operation(process, steps, outcome, transactional=True, end_asked_tick=end_asked_tick)


def poll(*records: tuple[int, str], partition: Partition = P0, tick: int = 100) -> Poll:
    return Poll(tuple(Seen(partition, offset, value) for offset, value in records), tick)


def polled(process: str, *records: tuple[int, str], tick: int = 100) -> Operation:
    return Operation(process, (poll(*records, tick=tick),))


def kinds(history: History, *, caught_up: bool = True) -> list[Kind]:
    return [anomaly.kind for anomaly in anomalies(history, caught_up=caught_up)]


FROM_START = Positioned("reader", assigned=True, offsets={P0: 0})
UNKNOWN, FAILED = Outcome.UNKNOWN, Outcome.FAILED

CLEAN: dict[str, History] = {
    "nothing": [],
    "all seen in order": [
        sent("a", (0, "x")),
        sent("b", (1, "y")),
        FROM_START,
        polled("reader", (0, "x"), (1, "y")),
    ],
    "an unknown send that was not stored": [sent("a", (None, "x"), outcome=UNKNOWN)],
    "an unknown send that was stored": [sent("a", (None, "x"), outcome=UNKNOWN), polled("reader", (0, "x"))],
    "an acknowledged send without offset": [sent("a", (None, "x")), polled("reader", (7, "x"))],
    "markers leave holes that are no skips": [
        transaction("a", Send(P0, "x", 0)),
        transaction("a", Send(P0, "y", 2)),
        FROM_START,
        polled("reader", (0, "x"), (2, "y")),
    ],
    "an aborted transaction that nobody saw": [transaction("a", Send(P0, "x", 0), outcome=FAILED)],
    "a value sent again after its transaction was aborted": [
        transaction("a", Send(P0, "x", 0), outcome=FAILED),
        transaction("a", Send(P0, "x", 2)),
        polled("reader", (2, "x")),
    ],
    "the same without the offset of the aborted one": [
        transaction("a", Send(P0, "x"), outcome=FAILED),
        transaction("a", Send(P0, "x")),
        polled("reader", (2, "x")),
    ],
    "an unknown transaction of which nothing is seen": [
        transaction("a", Send(P0, "x", 0), Send(P1, "y", 0), outcome=UNKNOWN)
    ],
    "an unknown transaction that was committed": [
        transaction("a", Send(P0, "x", 0), Send(P1, "y", 0), outcome=UNKNOWN),
        Operation("reader", (poll((0, "x")), poll((0, "y"), partition=P1))),
    ],
    "seen after its end was asked for": [
        transaction("a", Send(P0, "x", 0), end_asked_tick=100),
        polled("reader", (0, "x"), tick=100),
    ],
    "seen before the acknowledgement, without a transaction": [
        polled("reader", (0, "x"), tick=1),
        Operation("a", (Send(P0, "x", 0),), end_asked_tick=100),
    ],
    "a copy into another topic": [
        sent("a", (0, "x")),
        transaction("copier", poll((0, "x")), Send(("copies", 0), "x", 0)),
        Operation("reader", (poll((0, "x"), partition=("copies", 0)),)),
    ],
    "transactions that read in a row": [
        transaction("a", Send(P0, "x", 0)),
        transaction("b", poll((0, "x")), Send(P1, "y", 0)),
        transaction("c", poll((0, "y"), partition=P1)),
    ],
    "write cycles are allowed (G0)": [
        transaction("a", Send(P0, "x", 0), Send(P1, "y", 1)),
        transaction("b", Send(P0, "z", 1), Send(P1, "w", 0)),
        Operation("reader", (poll((0, "x"), (1, "z")), poll((0, "w"), (1, "y"), partition=P1))),
    ],
    "polls again after a rebalance": [
        sent("a", (0, "x"), (1, "y")),
        polled("reader", (0, "x"), (1, "y")),
        Positioned("reader"),
        polled("reader", (0, "x"), (1, "y")),
    ],
    "a skip under subscribe": [
        sent("a", (0, "x"), (1, "y"), (2, "z")),
        Positioned("member"),
        polled("member", (0, "x"), (2, "z")),
        polled("other", (1, "y")),
    ],
}


@pytest.mark.parametrize("history", CLEAN.values(), ids=CLEAN.keys())
def test_clean(history: History) -> None:
    assert anomalies(history) == []


ONE_EACH: dict[str, tuple[Kind, History]] = {
    "readers went past it": (Kind.LOST_WRITE, [sent("a", (0, "x"), (1, "y")), polled("reader", (1, "y"))]),
    "half of an unknown transaction": (
        Kind.LOST_WRITE,
        [transaction("a", Send(P0, "x", 0), Send(P0, "y", 1), outcome=UNKNOWN), polled("reader", (1, "y"))],
    ),
    "the end was not reached": (
        Kind.UNSEEN,
        [sent("a", (0, "x"), (1, "y")), FROM_START, polled("reader", (0, "x"))],
    ),
    "one partition of an unknown transaction": (
        Kind.UNSEEN,
        [transaction("a", Send(P0, "x", 0), Send(P1, "y"), outcome=UNKNOWN), polled("reader", (0, "x"))],
    ),
    "polled at two offsets": (Kind.DUPLICATE, [sent("a", (None, "x")), polled("reader", (0, "x"), (1, "x"))]),
    "in two partitions of a topic": (
        Kind.DUPLICATE,
        [sent("a", (0, "x")), Operation("reader", (poll((0, "x")), poll((0, "x"), partition=P1)))],
    ),
    "committed, and committed again": (
        Kind.DUPLICATE,
        [
            transaction("a", Send(P0, "x", 0), outcome=UNKNOWN),
            transaction("b", Send(P0, "x", 2)),
            polled("reader", (0, "x"), (2, "x")),
        ],
    ),
    "two readers, two values": (
        Kind.INCONSISTENT_OFFSETS,
        [polled("reader", (0, "x")), polled("other", (0, "y"))],
    ),
    "an aborted record in the place of another": (
        Kind.INCONSISTENT_OFFSETS,
        [
            transaction("a", Send(P0, "x", 0), outcome=FAILED),
            transaction("b", Send(P0, "y", 0), outcome=FAILED),
        ],
    ),
    "G1a by its place": (
        Kind.ABORTED_READ,
        [transaction("a", Send(P0, "x", 0), outcome=FAILED), polled("reader", (0, "x"))],
    ),
    "G1a by its value": (
        Kind.ABORTED_READ,
        [transaction("a", Send(P0, "x"), outcome=FAILED), polled("reader", (0, "x"))],
    ),
    "before its end was asked for": (
        Kind.PRECOMMITTED_READ,
        [transaction("a", Send(P0, "x", 0), end_asked_tick=100), polled("reader", (0, "x"), tick=99)],
    ),
    "in its own transaction": (Kind.PRECOMMITTED_READ, [transaction("a", Send(P0, "x", 0), poll((0, "x")))]),
    "two transactions that read from each other": (
        Kind.CIRCULAR_FLOW,
        [
            transaction("a", Send(P0, "x", 0), poll((0, "y"), partition=P1)),
            transaction("b", poll((0, "x")), Send(P1, "y", 0)),
        ],
    ),
    "three of them": (
        Kind.CIRCULAR_FLOW,
        [
            transaction("a", Send(P0, "x", 0), poll((0, "y"), partition=P1)),
            transaction("b", poll((0, "x")), Send(P0, "z", 5)),
            transaction("c", poll((5, "z")), Send(P1, "y", 0)),
            transaction("d", poll((0, "x"))),
        ],
    ),
    "back within an operation": (
        Kind.NONMONOTONIC_SEND,
        [sent("a", (1, "x"), (0, "y")), polled("reader", (0, "y"), (1, "x"))],
    ),
    "back between operations": (
        Kind.NONMONOTONIC_SEND,
        [sent("a", (1, "x")), sent("a", (0, "y")), polled("reader", (0, "y"), (1, "x"))],
    ),
    "back within a poll": (
        Kind.NONMONOTONIC_POLL,
        [sent("a", (0, "x"), (1, "y")), polled("reader", (1, "y"), (0, "x"))],
    ),
    "the same record again": (
        Kind.NONMONOTONIC_POLL,
        [sent("a", (0, "x")), polled("reader", (0, "x")), polled("reader", (0, "x"))],
    ),
    "before where it was put": (
        Kind.NONMONOTONIC_POLL,
        [
            sent("a", (0, "x"), (1, "y")),
            polled("other", (0, "x"), (1, "y")),
            Positioned("reader", offsets={P0: 1}),
            polled("reader", (0, "x")),
        ],
    ),
    "left out under assign": (
        Kind.SKIPPED,
        [
            sent("a", (0, "x"), (1, "y"), (2, "z")),
            polled("other", (1, "y")),
            FROM_START,
            polled("reader", (0, "x")),
            polled("reader", (2, "z")),
        ],
    ),
    "left out at the start under assign": (
        Kind.SKIPPED,
        [sent("a", (0, "x"), (1, "y")), polled("other", (0, "x")), FROM_START, polled("reader", (1, "y"))],
    ),
}


@pytest.mark.parametrize(("kind", "history"), ONE_EACH.values(), ids=ONE_EACH.keys())
def test_each_anomaly_is_found_and_nothing_else(kind: Kind, history: History) -> None:
    assert set(kinds(history)) == {kind}


def test_every_kind_has_a_history() -> None:
    assert {kind for kind, _ in ONE_EACH.values()} == set(Kind)


def test_unseen_is_not_judged_before_the_end() -> None:
    assert kinds([sent("a", (0, "x"))], caught_up=False) == []
    assert kinds([sent("a", (0, "x"))]) == [Kind.UNSEEN]


def test_an_anomaly_says_where_to_look() -> None:
    (found,) = anomalies([sent("alice", (3, "x")), polled("reader", (4, "y"))])
    assert found.partition == P0 and "x of alice at 3" in found.detail


class Model:
    """A broker of one topic, with holes for markers, and the history of its clients; it may have a bug."""

    def __init__(self, chance: random.Random, partitions: int, bug: str = "") -> None:
        self.chance = chance
        self.bug = bug
        self.logs: dict[Partition, list[str | None]] = {("t", index): [] for index in range(partitions)}
        self.history: list[Operation | Positioned] = []
        self.positions: dict[str, dict[Partition, int]] = {}
        self.tick = 0
        self.values = 0

    def run(self, steps: int) -> History:
        for _ in range(steps):
            self.tick += 1
            self.chance.choice([self.transact, self.transact, self.poll, self.position])()
        self.position("last", at_start=True)
        self.poll("last")
        return self.history

    def transact(self) -> None:
        self.tick += 1
        outcome = self.chance.choice([Outcome.OK, Outcome.OK, FAILED, UNKNOWN])
        committed = outcome is Outcome.OK or (outcome is UNKNOWN and self.chance.random() < 0.5)
        sends = []
        for partition in self.chance.sample(list(self.logs), self.chance.randint(1, len(self.logs))):
            for _ in range(self.chance.randint(1, 3)):
                self.values += 1
                sends.append(self.store(partition, f"v{self.values}", committed))
            self.logs[partition].append(None)
        process = f"producer-{self.chance.randrange(3)}"
        asked = self.tick + (self.bug == "answers early") * 1000
        self.history.append(Operation(process, tuple(sends), outcome, True, asked))

    def store(self, partition: Partition, value: str, committed: bool) -> Send:
        log = self.logs[partition]
        offset = len(log)
        if self.bug == "forgets" and committed:
            log.append(None)
        elif self.bug == "stores twice" and committed:
            log += [value, value]
        elif self.bug == "overwrites" and log:
            log[-1], offset = value, offset - 1
        else:
            log.append(value if committed or self.bug == "shows what was aborted" else None)
        return Send(partition, value, offset if self.chance.random() < 0.9 else None)

    def position(self, process: str | None = None, at_start: bool = False) -> None:
        process = process or f"reader-{self.chance.randrange(3)}"
        offsets = {
            partition: 0 if at_start else self.chance.randint(0, len(log)) for partition, log in self.logs.items()
        }
        self.positions[process] = dict(offsets)
        self.history.append(Positioned(process, assigned=True, offsets=offsets))

    def poll(self, process: str | None = None) -> None:
        if process is None:
            if not self.positions:
                return
            process = self.chance.choice(list(self.positions))
        records: list[Seen] = []
        for partition, log in self.logs.items():
            start = self.positions[process][partition]
            end = len(log) if process == "last" else self.chance.randint(start, len(log))
            self.positions[process][partition] = end
            if self.bug == "skips" and process != "last":
                start = min(start + 1, end)
            found = [Seen(partition, at, value) for at, value in enumerate(log[start:end], start) if value]
            records += reversed(found) if self.bug == "turns round" else found
        self.history.append(Operation(process, (Poll(tuple(records), self.tick),)))


@given(st.integers(0, 2**32))
def test_histories_of_a_correct_broker_are_clean(seed: int) -> None:
    chance = random.Random(seed)
    assert anomalies(Model(chance, chance.randint(1, 4)).run(chance.randint(1, 60))) == []


BUGS = {
    "forgets": {Kind.LOST_WRITE, Kind.UNSEEN},
    "stores twice": {Kind.DUPLICATE},
    "overwrites": {Kind.INCONSISTENT_OFFSETS},
    "shows what was aborted": {Kind.ABORTED_READ},
    "answers early": {Kind.PRECOMMITTED_READ},
    "skips": {Kind.SKIPPED},
    "turns round": {Kind.NONMONOTONIC_POLL},
}


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("seed", range(5))
def test_a_bug_in_the_broker_is_found(bug: str, seed: int) -> None:
    assert BUGS[bug] & set(kinds(Model(random.Random(seed), 2, bug).run(80)))


@pytest.mark.slow
def test_a_long_history_is_checked_in_one_pass() -> None:
    """100,000 sends and polls, as in the long runs."""
    count = 100_000
    sends = [sent("a", (offset, f"v{offset}")) for offset in range(count)]
    reads = [polled("reader", *((at, f"v{at}") for at in range(at, at + 500))) for at in range(0, count, 500)]
    assert anomalies([*sends, FROM_START, *reads]) == []
