"""The commit log: what it tells about open transactions, and how records of queries that are gone are deleted."""

from contextlib import nullcontext
from time import monotonic
from uuid import uuid4

import pytest
from tests.spark.support.sink_tasks import Job, Query, killed_at, rows
from tests.support.shell import Shell
from tests.support.waiting import until

from levada.cli.errors import EXIT_FAILED
from levada.client.admin.transactions import TransactionAdmin
from levada.client.producer.partitioner import partition_for_key
from levada.client.producer.transactions import PreparedTransaction
from levada.model import TopicPartition
from levada.spark import blocking
from levada.spark.errors import CommitRefused
from levada.spark.write import commit_log
from levada.spark.write.commit_log import append_commit, encode_commit, read_commits, read_last_commit
from levada.spark.write.commit_protocol import CommitRecord
from levada.spark.write.owners import find_owners
from levada.spark.write.transactions import begin_stream_task, driver_transactional_id, task_transactional_id
from levada.testing import EmbeddedBroker


def owner(bootstrap: str, name: str) -> dict[str, object]:
    found: dict[str, object] = Shell(bootstrap)("txn", "describe", name, "-o", "json").json()["owner"]
    return found


def test_transactions_show_which_query_owns_them_and_whether_they_are_committed(broker: EmbeddedBroker) -> None:
    query = Query(broker.bootstrap, str(uuid4()), broker.topic(), queryName="loud")
    name = task_transactional_id(query.name, 0, 0)
    message = query.attempt(7, "a")
    expected = {"kind": "query", "id": query.name, "task": 0}
    known = owner(broker.bootstrap, name)
    assert expected.items() <= known.items()
    assert (known["name"], known["last_batch"], known["is_committed"]) == (None, None, False)
    with killed_at("_commit"):
        query.commit(7, message)
    known = owner(broker.bootstrap, name)
    assert expected.items() <= known.items()
    assert (known["name"], known["run"], known["last_batch"]) == ("loud", f"{query.name}-0", 7)
    assert known["is_committed"] is True
    shell = Shell(broker.bootstrap)
    assert "spark query loud, task 0, committed, not ended yet" in shell("txn", "list", "--open").out
    described = shell("txn", "describe", name).out
    assert f"  id: {query.name}\n" in described and "  name: loud\n" in described
    refused = shell("txn", "abort", name, "--yes")
    assert refused.code == EXIT_FAILED and refused.err == (
        f"error: batch 7 of the query of {name} is committed, not ended yet, and an abort loses its rows\n"
        f"  try: levada txn commit {name}, or --force\n"
    )
    query.restarted()
    query.commit(7, query.attempt(7, "a"))
    assert query.visible() == ["a"]
    assert owner(broker.bootstrap, name)["is_committed"] is False


@pytest.mark.parametrize(("words", "left"), [(("commit",), ["a"]), (("abort", "--force"), [])])
def test_operators_end_a_committed_transaction(broker: EmbeddedBroker, words: tuple[str, ...], left: list[str]) -> None:
    query = Query(broker.bootstrap, str(uuid4()), broker.topic())
    message = query.attempt(7, "a")
    with killed_at("_commit"):
        query.commit(7, message)
    ended = Shell(broker.bootstrap)("txn", *words, task_transactional_id(query.name, 0, 0), "--yes")
    assert ended.code == 0 and query.visible() == left
    query.restarted()
    with nullcontext() if left else pytest.raises(CommitRefused, match=f"{query.name}-0-0 was aborted, by an operator"):
        query.commit(7, query.attempt(7, "a"))
    query.commit(8, query.attempt(8, "b"))
    assert query.visible() == [*left, "b"]


def test_an_offline_commit_log_does_not_keep_operators_waiting() -> None:
    """Its disk is damaged, which is when they end transactions by hand."""
    with EmbeddedBroker() as broker:
        hurt, fine = (Query(broker.bootstrap, name, broker.topic()) for name in in_different_partitions())
        names = [task_transactional_id(query.name, 0, 0) for query in (hurt, fine)]
        for query in (hurt, fine):
            message = query.attempt(7, "a")
            with killed_at("_commit"):
                query.commit(7, message)
        take_offline(broker, partition_for_key(hurt.name.encode(), commit_log.PARTITIONS))
        shell, began = Shell(broker.bootstrap), monotonic()
        listed = shell("txn", "list", "--open", "-o", "json")
        assert listed.err == "commit log not readable: owners are incomplete\n"
        owners = {row["transactional_id"]: row["owner"] for row in listed.json()}
        assert [(owners[name]["id"], owners[name]["is_committed"]) for name in names] == [
            (hurt.name, None),
            (fine.name, True),
        ]
        refused = shell("txn", "abort", names[0], "--yes")
        assert refused.code == EXIT_FAILED and refused.err.startswith(
            f"error: commit log not readable: the batch of {names[0]} may be committed, not ended yet, and an abort"
        )
        assert hurt.name in shell("txn", "list", "--open").out
        aborted = shell("txn", "abort", names[0], "--yes", "--force")
        assert (aborted.code, aborted.err) == (0, f"aborted {names[0]}\n")
        readable = shell("txn", "describe", names[1], "-o", "json")
        assert readable.err == "" and readable.json()["owner"]["last_batch"] == 7
        assert monotonic() - began < 15
        blocking.close()


def test_a_record_behind_an_open_transaction_is_unknown_to_operators(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a driver that died while it appended to the same partition of the commit log."""
    monkeypatch.setattr(commit_log, "partition_for_key", lambda key, count: 0)
    monkeypatch.setattr(commit_log, "FIND_POLICY", commit_log.FIND_POLICY._replace(timeout_ms=100))
    query, dead = str(uuid4()), str(uuid4())
    name = task_transactional_id(query, 0, 0)
    log = TopicPartition(commit_log.TOPIC, 0)

    async def find() -> tuple[object, ...]:
        owners = await find_owners(client, [await TransactionAdmin(client).describe(name)])
        return owners[name].is_committed, owners[name].last_batch

    async def scenario() -> list[tuple[object, ...]]:
        task = await begin_stream_task(client, query, 0, 60_000)
        async with client.producer(transactional_id=driver_transactional_id(query)) as driver:
            await read_last_commit(client, query)  # which creates the log
            record = CommitRecord(7, (PreparedTransaction(*task),))
            async with client.producer(transactional_id=driver_transactional_id(dead)) as other:
                async with other.transaction() as open_one:
                    future = await open_one.send(
                        log.topic, encode_commit(CommitRecord(1, ())), key=dead.encode(), partition=0
                    )
                    await future
                    await append_commit(driver, query, record, 0)
                    found = [await find()]
                found.append(await find())
        return found

    client = blocking.client(broker.bootstrap)
    assert blocking.run(scenario()) == [(None, None), (False, 7)]


def in_different_partitions() -> tuple[str, str]:
    """The names of two queries whose records are in different partitions of the commit log."""
    by_partition: dict[int, str] = {}
    while len(by_partition) < 2:
        name = str(uuid4())
        by_partition[partition_for_key(name.encode(), commit_log.PARTITIONS)] = name
    first, second = by_partition.values()
    return first, second


def take_offline(broker: EmbeddedBroker, number: int) -> None:
    """Take a partition of the commit log offline."""
    own = broker._server.broker
    broker._call(lambda: own.log_dirs.fail_partition(own.partitions[commit_log.TOPIC, number], "a batch is corrupt"))


def test_transactions_show_which_job_owns_them(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    named, unnamed = Job(broker, topic=topic, txnAppId=f"{topic}/ä-1", txnVersion=1), Job(broker, topic=topic)
    for job in (named, unnamed):
        job.attempt(rows("a"), 3)
    listed = Shell(broker.bootstrap)("txn", "list", "--open", "-o", "json").json()
    owners = [row["owner"] for row in listed if row["partitions"] == [f"{topic}-0"]]
    assert sorted((one["kind"], one["id"], one["task"]) for one in owners) == [
        ("job", unnamed.writer._job, 3),
        ("txnAppId", f"{topic}/ä-1", 3),
    ]
    for job in (named, unnamed):
        job.writer.abort([None])


def test_records_of_queries_that_are_gone_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a log with one partition and less time, whose segments are rolled by the next commit."""
    assert commit_log.SETTINGS["cleanup.policy"] == "compact,delete"
    monkeypatch.setattr(commit_log, "PARTITIONS", 1)
    monkeypatch.setattr(commit_log, "SETTINGS", commit_log.SETTINGS | {"retention.ms": "1000", "segment.ms": "500"})
    with EmbeddedBroker({"log.retention.check.interval.ms": "200"}) as broker:
        gone, running = (Query(broker.bootstrap, name, broker.topic()) for name in ("gone", "running"))
        gone.commit(0, gone.attempt(0, "a"))
        batches = iter(range(1_000))

        def only_the_running_query_is_left() -> bool:
            batch = next(batches)
            running.commit(batch, running.attempt(batch, "b"))
            commits = blocking.run(read_commits(blocking.client(broker.bootstrap)))
            return set(commits) == {"running"} and commits["running"].batch == batch

        until(only_the_running_query_is_left, "the record of the other query stays")
        gone.commit(1, gone.attempt(1, "c"))
        assert gone.visible() == ["a", "c"]
        blocking.close()
