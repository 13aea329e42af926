"""`levada txn`: lists and ends open, prepared and hanging transactions."""

import asyncio
import uuid

import pytest
from tests.support import raw
from tests.support.shell import Shell
from tests.support.waiting import until

from levada.cli.errors import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_USAGE
from levada.client.admin import transactions as txn_admin
from levada.client.admin.transactions import OpenTransaction, TransactionAdmin, TransactionState
from levada.client.client import Client
from levada.errors import ErrorCode
from levada.testing import EmbeddedBroker
from levada.wire.batches import TRANSACTIONAL_BIT

PLACE = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}


@pytest.fixture
def shell(broker: EmbeddedBroker) -> Shell:
    return Shell(broker.bootstrap)


@pytest.fixture
def name(wire: raw.Connection) -> str:
    """A transactional id of its own."""
    chosen = f"billing-{uuid.uuid4().hex[:8]}"
    assert (
        not wire.call("find_coordinator", 4, {"key_type": 1, "coordinator_keys": [chosen]}).coordinators[0].error_code
    )
    return chosen


def begin(wire: raw.Connection, name: str, topic: str, two_phase: bool = False) -> tuple[int, int]:
    """A producer that has written in a transaction and left it open."""
    fields = {
        "transactional_id": name,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    producer = wire.call("init_producer_id", 6, fields | {"enable2_pc": two_phase})
    assert not producer.error_code
    write(wire, name, topic, (producer.producer_id, producer.producer_epoch))
    return producer.producer_id, producer.producer_epoch


def write(wire: raw.Connection, name: str, topic: str, producer: tuple[int, int]) -> None:
    records = raw.batch(b"v", producer=(*producer, 0), attributes=TRANSACTIONAL_BIT)
    place = {"name": topic, "partition_data": [{"index": 0, "records": records}]}
    answer = wire.call("produce", 12, {"transactional_id": name, "acks": -1, "timeout": 5_000, "topic_data": [place]})
    assert not answer.responses[0].partition_responses[0].error_code


def end(wire: raw.Connection, name: str, producer: tuple[int, int], commit: bool) -> ErrorCode:
    fields = {"transactional_id": name, "producer_id": producer[0], "producer_epoch": producer[1]}
    return ErrorCode(wire.call("end_txn", 5, fields | {"committed": commit}).error_code)


def stable_offset(wire: raw.Connection, topic: str) -> int:
    return int(raw.fetch(wire, topic, 0).last_stable_offset)


def test_open_transactions_are_listed_and_described(
    shell: Shell, wire: raw.Connection, broker: EmbeddedBroker, name: str
) -> None:
    topic = broker.topic()
    producer = begin(wire, name, topic)
    rows = {row["transactional_id"]: row for row in shell("txn", "list", "--open", "-o", "json").json()}
    found = rows[name]
    assert (found["state"], found["producer_id"], found["epoch"]) == ("Ongoing", *producer)
    assert (found["partitions"], found["timeout_seconds"], found["two_phase"]) == (
        [f"{topic}-0"],
        60.0,
        False,
    )
    assert shell("txn", "describe", name, "-o", "json").json()["state"] == "Ongoing"
    described = shell("txn", "describe", name)
    assert described.code == 0 and f"  {topic}-0" in described.out
    assert name not in shell("txn", "list", "--longer-than", "3600").out
    assert end(wire, name, producer, commit=True) is ErrorCode.NONE
    assert name in shell("txn", "list").out and name not in shell("txn", "list", "--open").out


def test_many_are_asked_for_in_pieces(
    shell: Shell, wire: raw.Connection, broker: EmbeddedBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    names = [f"{name}-{number}" for number in range(5)]
    producers = [begin(wire, each, topic) for each in names]
    monkeypatch.setattr(txn_admin, "IDS_PER_REQUEST", 2)
    listed = shell("txn", "list", "--open", "-o", "json").json()
    assert {row["transactional_id"] for row in listed} >= set(names)
    for each, producer in zip(names, producers, strict=True):
        end(wire, each, producer, commit=False)


def test_an_open_transaction_is_aborted_and_its_producer_fenced(
    shell: Shell, wire: raw.Connection, broker: EmbeddedBroker, name: str
) -> None:
    topic = broker.topic()
    producer = begin(wire, name, topic)
    asked = shell("txn", "abort", name)
    assert asked.code == EXIT_FAILED and "--yes" in asked.err
    assert stable_offset(wire, topic) == 0
    done = shell("txn", "abort", name, "--yes")
    assert (done.code, done.err) == (0, f"aborted {name}\n")
    assert stable_offset(wire, topic) == 2
    assert end(wire, name, producer, commit=True) is ErrorCode.PRODUCER_FENCED
    assert shell("txn", "describe", name, "-o", "json").json()["timeout_seconds"] == 60.0  # that of the producer
    again = shell("txn", "abort", name, "--yes")
    assert again.code == EXIT_FAILED and "no open transaction" in again.err


@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_a_prepared_transaction_is_ended_in_the_place_of_its_owner(
    shell: Shell, wire: raw.Connection, broker: EmbeddedBroker, name: str, verb: str
) -> None:
    """KIP-939: it waits for its owner, so an operator must be able to end it."""
    topic = broker.topic()
    producer = begin(wire, name, topic, two_phase=True)
    assert shell("txn", "describe", name, "-o", "json").json()["two_phase"] is True
    done = shell("txn", verb, name, "-y")
    assert (done.code, done.err) == (0, f"{verb}{'ted' if verb == 'commit' else 'ed'} {name}\n")
    assert stable_offset(wire, topic) == 2
    fields = {"isolation_level": 1, "max_bytes": 1 << 20, "topics": [{"topic": topic, "partitions": [PLACE]}]}
    part = wire.call("fetch", 12, fields).responses[0].partitions[0]
    assert len(part.aborted_transactions) == (verb == "abort")
    expected = "CompleteCommit" if verb == "commit" else ("Empty", "CompleteAbort")
    assert shell("txn", "describe", name, "-o", "json").json()["state"] in expected
    assert end(wire, name, producer, commit=True) is ErrorCode.PRODUCER_FENCED


def test_a_prepared_transaction_without_an_owner_times_out(name: str) -> None:
    timeout = {"levada.transaction.two.phase.commit.timeout.ms": "300"}
    with EmbeddedBroker(timeout) as own, raw.Connection(own.bootstrap) as wire:
        wire.call("find_coordinator", 4, {"key_type": 1, "coordinator_keys": [name]})
        topic, shell = own.topic(), Shell(own.bootstrap)
        begin(wire, name, topic, two_phase=True)
        until(lambda: stable_offset(wire, topic) == 2, "the transaction holds the last stable offset")
        (row,) = shell("txn", "list", "-o", "json").json()
        assert (row["state"], row["timeout_seconds"], row["two_phase"]) == ("CompleteAbort", 0.3, True)


@pytest.mark.parametrize(("setting", "shown"), [(None, 7 * 24 * 3600.0), ("-1", None)])
def test_the_timeout_of_prepared_transactions_is_shown(name: str, setting: str | None, shown: float | None) -> None:
    timeout = {} if setting is None else {"levada.transaction.two.phase.commit.timeout.ms": setting}
    with EmbeddedBroker(timeout) as own, raw.Connection(own.bootstrap) as wire:
        wire.call("find_coordinator", 4, {"key_type": 1, "coordinator_keys": [name]})
        begin(wire, name, own.topic(), two_phase=True)
        described = Shell(own.bootstrap)("txn", "describe", name, "-o", "json").json()
        assert (described["timeout_seconds"], described["two_phase"]) == (shown, True)


def test_the_longest_timeout_of_a_broker_does_not_bind_operators() -> None:
    with (
        EmbeddedBroker({"transaction.max.timeout.ms": "1000"}) as hasty,
        raw.Connection(hasty.bootstrap) as wire,
    ):
        wire.call("find_coordinator", 4, {"key_type": 1, "coordinator_keys": ["t"]})
        shell = Shell(hasty.bootstrap)
        for verb in ("commit", "abort"):
            begin(wire, "t", hasty.topic(), two_phase=True)
            assert shell("txn", verb, "t", "-y").code == 0


def test_only_prepared_transactions_can_be_committed(
    shell: Shell, wire: raw.Connection, broker: EmbeddedBroker, name: str
) -> None:
    begin(wire, name, broker.topic())
    refused = shell("txn", "commit", name, "-y")
    assert refused.code == EXIT_FAILED and f"levada txn abort {name}" in refused.err


def test_a_transaction_that_hangs_is_found_and_ended(
    shell: Shell, wire: raw.Connection, broker: EmbeddedBroker, name: str
) -> None:
    """Its coordinator ended it, and an old broker let a late batch in: here its coordinator forgets it."""
    topic = broker.topic()
    producer_id, epoch = begin(wire, name, topic)
    assert shell("txn", "list", "--hanging", "--topic", topic).err == "no hanging transactions\n"
    broker._call(lambda: broker._server.broker.transactions.shard(name).ready.transactions.pop(name))
    (found,) = shell("txn", "list", "--hanging", "--topic", topic, "-o", "json").json()
    assert (found["topic"], found["partition"], found["start_offset"]) == (topic, 0, 0)
    assert (found["producer_id"], found["epoch"]) == (producer_id, epoch)
    assert shell("txn", "abort", "--hanging", "--topic", topic).code == EXIT_FAILED
    done = shell("txn", "abort", "--hanging", "--topic", topic, "--yes")
    assert done.code == 0 and f"aborted the transaction of producer {producer_id} in {topic}-0" in done.err
    assert stable_offset(wire, topic) == 2
    assert shell("txn", "abort", "--hanging", "--topic", topic, "--yes").err == "no hanging transactions\n"


def test_a_transaction_that_ends_meanwhile_does_not_hang(
    wire: raw.Connection, broker: EmbeddedBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker for it would end the next one of its producer, if that is of version 1."""
    topic = broker.topic()
    producer = begin(wire, name, topic)

    async def work() -> list[OpenTransaction]:
        async with Client(broker.bootstrap) as client:
            admin = TransactionAdmin(client)
            known = admin.list_transactions

            async def known_once_it_has_ended() -> list[TransactionState]:
                assert end(wire, name, producer, commit=True) is ErrorCode.NONE
                async with asyncio.timeout(60):
                    while (await admin.describe(name)).state != "CompleteCommit":
                        await asyncio.sleep(0)
                return await known()

            monkeypatch.setattr(admin, "list_transactions", known_once_it_has_ended)
            assert [one.producer_id for one in await admin.find_open([topic])] == [producer[0]]
            return await admin.find_hanging([topic])

    assert asyncio.run(work()) == []


def test_what_is_not_there_is_reported_with_a_suggestion(
    shell: Shell, wire: raw.Connection, broker: EmbeddedBroker, name: str
) -> None:
    begin(wire, name, broker.topic())
    missing = shell("txn", "describe", name[:-1])
    assert missing.code == EXIT_NOT_FOUND and f"did you mean {name}?" in missing.err
    assert shell("txn", "abort").code == EXIT_USAGE
    assert shell("txn", "abort", name, "--hanging").code == EXIT_USAGE
    assert shell("txn", "list", "--hanging", "--open").code == EXIT_USAGE
    assert "omit --open" in shell("txn", "list", "--hanging", "--longer-than", "5").err
    assert shell("txn", "list", "--hanging", "--topic", "no-such-topic").code == EXIT_NOT_FOUND


def test_a_topic_is_named_only_where_hanging_ones_are_looked_for(
    shell: Shell, wire: raw.Connection, broker: EmbeddedBroker, name: str
) -> None:
    """Elsewhere it would change nothing, and the user would not notice."""
    topic = broker.topic()
    begin(wire, name, topic)
    for command in (["list"], ["list", "--open"], ["abort", "--yes", name]):
        refused = shell("txn", *command, "--topic", topic)
        assert (refused.code, refused.out) == (EXIT_USAGE, ""), command
        assert "--topic needs --hanging" in refused.err
    assert shell("txn", "describe", name, "-o", "json").json()["state"] == "Ongoing"


def test_a_list_without_transactions_says_what_there_is_none_of(shell: Shell) -> None:
    assert shell("txn", "list", "--longer-than", "99999").err == "no transaction has been open for more than 99999 s\n"
    with EmbeddedBroker() as broker:
        assert Shell(broker.bootstrap)("txn", "list", "--open").err == "no open transactions\n"
