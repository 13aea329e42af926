"""`levada group`: output, exit codes and effects."""

import json
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.support.shell import TIMEOUT_S, Shell

from levada.testing import EmbeddedBroker


@pytest.fixture
def shell(levada: EmbeddedBroker) -> Iterator[Shell]:
    shell = Shell(levada.bootstrap)
    yield shell
    for name in shell("group", "list", "-q").out.split():
        shell("group", "delete", "--yes", name)


@pytest.fixture
def topic(levada: EmbeddedBroker) -> str:
    """Ten records an hour old in partition 0, and as many of now in partition 1."""
    name = levada.topic(partitions=2)
    producer = Producer({"bootstrap.servers": levada.bootstrap})
    old_ms = int((datetime.now(UTC) - timedelta(hours=1)).timestamp() * 1000)
    for _ in range(10):
        producer.produce(name, b"old", partition=0, timestamp=old_ms)
        producer.produce(name, b"new", partition=1)
    producer.flush()
    return name


def consumer(levada: EmbeddedBroker, topic: str, count: int) -> Consumer:
    """A member of the group `billing` that has read and committed so many records of partition 0."""
    member = Consumer(
        {
            "bootstrap.servers": levada.bootstrap,
            "group.id": "billing",
            "client.id": "till",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    member.subscribe([topic])
    seen = 0
    while seen < count:
        message = member.poll(10)
        assert message is not None and message.error() is None
        if message.partition() == 0:
            seen += 1
            member.commit(message=message, asynchronous=False)
    return member


def test_no_groups(shell: Shell) -> None:
    listed = shell("group", "list")
    assert (listed.code, listed.out) == (0, "")
    assert "no groups" in listed.err
    assert shell("group", "list", "-o", "json").json() == []
    missing = shell("group", "describe", "billing")
    assert (missing.code, missing.out) == (4, "")
    assert "no such group: billing" in missing.err


def test_a_group_at_work(levada: EmbeddedBroker, shell: Shell, topic: str) -> None:
    member = consumer(levada, topic, 4)
    assert shell("group", "list").out == "GROUP     STATE    KIND\nbilling   Stable   classic\n"
    assert shell("group", "list", "-q").out == "billing\n"
    described = shell("group", "describe", "billing", "-o", "json").json()
    assert (described["state"], described["kind"], described["assignor"]) == ("Stable", "classic", "range")
    (found,) = described["members"]
    assert (found["client"], found["partitions"]) == ("till", [f"{topic}-0", f"{topic}-1"])
    first, second = described["offsets"]
    assert (first["committed"], first["end"], first["lag"], first["member"]) == (4, 10, 6, found["member"])
    assert 3_590 < first["seconds_behind"] < 3_700
    assert (second["committed"], second["lag"]) == (None, None)
    (row,) = shell("group", "lag", "-o", "json").json()
    assert (row["group"], row["members"], row["lag"], row["uncommitted"]) == ("billing", 1, 6, 1)
    assert row["seconds_behind"] == pytest.approx(first["seconds_behind"], abs=30)
    rows = shell("group", "lag", "billing", "--partitions", "-o", "json").json()
    assert [(one["partition"], one["lag"]) for one in rows] == [(0, 6), (1, None)]
    assert "till" in shell("group", "describe", "billing").out
    for refused in (("reset", "billing", "--to-latest", "--execute"), ("delete", "--yes", "billing")):
        printed = shell("group", *refused)
        assert printed.code == 1
        assert "in use" in printed.err
    assert "did you mean billing?" in shell("group", "lag", "biling").err
    member.close()


def test_a_group_named_to_paint_the_terminal(levada: EmbeddedBroker, shell: Shell, topic: str) -> None:
    """A name is data: a table shows it, JSON and -q give it as it is."""
    name = "red\x1b[31m\talert"
    client = Consumer({"bootstrap.servers": levada.bootstrap, "group.id": name})
    client.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    client.close()
    for shown in (shell("group", "list"), shell("group", "describe", name), shell("group", "lag")):
        assert (shown.code, "\x1b[31m" in shown.out) == (0, False)
        assert "red\\x1b[31m\\talert" in shown.out
    assert [row["group"] for row in shell("group", "list", "-o", "json").json()] == [name]
    assert shell("group", "list", "-q").out == f"{name}\n"
    assert shell("group", "delete", "--yes", name).code == 0


def test_the_lag_of_a_group_that_has_committed_nothing_is_not_known(
    levada: EmbeddedBroker, shell: Shell, topic: str
) -> None:
    """It depends on where the consumers begin; 0 would say that all is read."""
    member = consumer(levada, topic, 0)
    while not member.assignment():
        member.poll(0.1)
    (row,) = shell("group", "lag", "billing", "-o", "json").json()
    assert (row["members"], row["lag"], row["seconds_behind"]) == (1, None, None)
    member.close()


def test_partitions_without_commits_are_counted_also_without_members(
    levada: EmbeddedBroker, shell: Shell, topic: str
) -> None:
    consumer(levada, topic, 4).close()
    rows = shell("group", "lag", "billing", "--partitions", "-o", "json").json()
    assert [(row["partition"], row["committed"], row["lag"]) for row in rows] == [(0, 4, 6), (1, None, None)]
    assert shell("group", "lag", "billing").lines()[0].split()[-1] == "UNCOMMITTED"
    (row,) = shell("group", "lag", "billing", "-o", "json").json()
    assert (row["lag"], row["uncommitted"]) == (6, 1)


def test_lag_is_watched_until_ctrl_c(levada: EmbeddedBroker, shell: Shell, topic: str) -> None:
    consumer(levada, topic, 4).close()
    watch = ["group", "lag", "--watch", "--every", "0.1", "-o", "jsonl"]
    process = shell.start(*watch, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["lag"] == 6
    shell("group", "reset", "billing", "--to-offset", "9", "--execute")
    while (lag := json.loads(process.stdout.readline())["lag"]) == 6:
        pass
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert (lag, process.returncode, errors.strip()) == (1, 130, b"")


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-offset", "7"], 7),
        (["--to-offset", "99"], 10),
        (["--shift-by", "-3"], 1),
        (["--shift-by", "-30"], 0),
        (["--shift-by", "2"], 6),
        (["--to-datetime", "2020-01-01T00:00"], 0),
        (["--to-datetime", "1969-12-31T23:59:59.999+00:00"], 0),
        (["--to-datetime", "1950-01-01"], 0),
        (["--to-datetime", "2199-01-01T00:00+00:00"], 10),
    ],
)
def test_reset(levada: EmbeddedBroker, shell: Shell, topic: str, goal: list[str], expected: int) -> None:
    consumer(levada, topic, 4).close()
    preview = shell("group", "reset", "billing", *goal, "-o", "json")
    assert preview.code == 1, "nobody said yes"
    assert "--execute" in preview.err
    assert f'"new": {expected}' in preview.out
    assert levada.committed("billing") == {(topic, 0): 4}
    (done,) = shell("group", "reset", "billing", *goal, "--execute", "-o", "json").json()
    assert (done["committed"], done["new"], done["lag"]) == (4, expected, 10 - expected)
    assert levada.committed("billing") == {(topic, 0): expected}


@pytest.mark.parametrize(
    ("goal", "printed"),
    [
        (["--to-offset", "99"], "{}-0 ends at 10: billing continues there, not at 99"),
        (["--shift-by", "7"], "{}-0 ends at 10: billing continues there, not at 11"),
        (["--shift-by", "-3"], "{}-0 begins at 2: billing continues there, not at 1"),
        (["--to-offset", "1"], "{}-0 begins at 2: billing continues there, not at 1"),
        (
            ["--to-datetime", "2199-01-01T00:00+00:00"],
            "{}-0 has no records from that time on: billing continues at its end, 10",
        ),
        (["--to-offset", "2"], None),
        (["--to-offset", "10"], None),
        (["--to-earliest"], None),
        (["--to-latest"], None),
        (["--to-datetime", "2020-01-01T00:00"], None),
    ],
)
def test_reset_says_where_a_log_does_not_reach_so_far(
    levada: EmbeddedBroker, shell: Shell, topic: str, goal: list[str], printed: str | None
) -> None:
    consumer(levada, topic, 4).close()
    admin = AdminClient({"bootstrap.servers": levada.bootstrap})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 2)]).values():
        deleted.result()
    notices = [printed.format(topic)] if printed else []
    done = shell("group", "reset", "billing", *goal, "--execute")
    assert (done.code, done.err.splitlines()) == (0, [*notices, "reset 1 offset of billing"])


def test_reset_what_is_named(levada: EmbeddedBroker, shell: Shell, topic: str) -> None:
    consumer(levada, topic, 4).close()
    assert shell("group", "reset", "billing", "--topic", f"{topic}:1", "--to-offset", "2", "--execute").code == 0
    assert levada.committed("billing") == {(topic, 0): 4, (topic, 1): 2}
    assert shell("group", "reset", "billing", "--topic", topic, "--to-earliest", "--execute").code == 0
    assert levada.committed("billing") == {(topic, 0): 0, (topic, 1): 0}
    assert shell("group", "reset", "billing", "--topic", f"{topic}:7", "--to-earliest").code == 4
    assert shell("group", "reset", "billing", "--topic", "nothing", "--to-earliest").code == 4
    assert shell("group", "reset", "billing", "--topic", f"{topic}:x", "--to-earliest").code == 2
    assert shell("group", "reset", "billing").code == 2
    assert shell("group", "reset", "billing", "--to-latest", "--to-offset", "1").code == 2
    assert shell("group", "reset", "billing", "--to-earliest", "--to-latest", "--execute").code == 2
    assert shell("group", "reset", "billing", "--to-datetime", "tomorrow").code == 2
    assert shell("group", "reset", "billing", "--to-datetime", "9999-12-31T23:59:59-23:59").code == 2
    assert "is not UTF-8" in shell("group", "describe", "\udcff").err


def test_reset_makes_a_group_whose_consumers_start_there(levada: EmbeddedBroker, shell: Shell, topic: str) -> None:
    """As Kafka's own tool does; only what it shall read must be said."""
    unsaid = shell("group", "reset", "billing", "--to-offset", "7", "--execute")
    assert (unsaid.code, unsaid.out) == (4, "")
    goal = ("group", "reset", "billing", "--topic", f"{topic}:0", "--to-offset", "7")
    preview = shell(*goal, "-o", "json")
    assert preview.code == 1, "nobody said yes"
    assert "billing will be a new group" in preview.err
    assert levada.committed("billing") == {}
    (done,) = shell(*goal, "--execute", "-o", "json").json()
    assert (done["committed"], done["new"], done["lag"]) == (None, 7, 3)
    member = consumer(levada, topic, 0)
    offsets: list[int | None] = []
    while len(offsets) < 3:
        message = member.poll(10)
        assert message is not None and message.error() is None
        offsets += [message.offset()] if message.partition() == 0 else []
    member.close()
    assert offsets == [7, 8, 9]
    shell(*goal, "--execute")
    assert "did you mean billing?" in shell("group", "reset", "biling", *goal[3:]).err


def test_delete(levada: EmbeddedBroker, shell: Shell, topic: str) -> None:
    consumer(levada, topic, 1).close()
    assert shell("group", "delete", "billing").code == 1, "nobody said yes"
    deleted = shell("group", "delete", "--yes", "billing")
    assert (deleted.code, deleted.out, deleted.err) == (0, "", "deleted billing\n")
    assert shell("group", "delete", "--yes", "billing").code == 4
    assert levada.committed("billing") == {}


def test_every_verb_has_help_with_examples(shell: Shell) -> None:
    for verb in ([], ["list"], ["describe"], ["lag"], ["reset"], ["delete"]):
        helped = shell("group", *verb, "--help")
        assert helped.code == 0
        assert "Examples:" in helped.out, verb
