"""The command line: output, errors and exit codes."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.support.broker import BrokerThread, free_port
from tests.support.shell import Shell

from levada.cli.main import levada as levada_command

BATCH_S = 60  # no command takes so long; a hang must not stop the tests


def test_the_life_of_a_topic(shell: Shell) -> None:
    created = shell("topic", "create", "orders", "-p", "3", "-c", "retention.ms=86400000")
    assert (created.code, created.out, created.err) == (0, "", "created orders (3 partitions)\n")

    assert shell("topic", "list").out == "NAME     PARTITIONS   REPLICAS\norders            3          1\n"
    assert shell("topic", "list", "-q").out == "orders\n"
    (listed,) = shell("topic", "list", "-o", "json").json()
    assert (listed["name"], listed["partitions"], listed["replicas"], listed["internal"]) == (
        "orders",
        3,
        1,
        False,
    )

    described = shell("topic", "describe", "orders", "-o", "json").json()
    assert described["configs"] == {"retention.ms": "86400000"}
    assert [(part["partition"], part["latest"]) for part in described["partitions"]] == [
        (0, 0),
        (1, 0),
        (2, 0),
    ]
    assert "retention.ms=86400000" in shell("topic", "describe", "orders").out

    assert (
        shell("topic", "alter", "orders", "-p", "5", "-c", "segment.bytes=200000", "--unset", "retention.ms").code == 0
    )
    described = shell("topic", "describe", "orders", "-o", "json").json()
    assert (described["configs"], len(described["partitions"])) == ({"segment.bytes": "200000"}, 5)

    deleted = shell("topic", "delete", "--yes", "orders")
    assert (deleted.code, deleted.out, deleted.err) == (0, "", "deleted orders\n")
    assert shell("topic", "list", "-o", "jsonl").out == ""
    assert "no topics" in shell("topic", "list").err


def test_what_exists_and_what_does_not(shell: Shell) -> None:
    shell("topic", "create", "orders")
    again = shell("topic", "create", "orders")
    assert (again.code, again.out) == (1, "")
    assert "TOPIC_ALREADY_EXISTS" in again.err
    assert "--if-not-exists" in again.err
    (row,) = shell("topic", "create", "orders", "--if-not-exists", "-o", "json").json()
    assert row["created"] is False

    several = shell("topic", "create", "first", "orders", "last")
    assert several.code == 1 and "no topic is created" in several.err and "--if-not-exists" in several.err
    assert shell("topic", "list", "-q").lines() == ["orders"]
    rest = shell("topic", "create", "first", "orders", "last", "--if-not-exists")
    assert [line.split(" (")[0] for line in rest.err.splitlines()] == [
        "created first",
        "exists already: orders",
        "created last",
    ]

    for command in (
        ["topic", "describe", "ordrs"],
        ["topic", "alter", "ordrs", "-p", "2"],
        ["topic", "delete", "--yes", "ordrs"],
        ["consume", "ordrs", "-e"],
        ["config", "describe", "topic", "ordrs"],
        ["config", "set", "topic", "ordrs", "retention.ms=1"],
    ):
        missing = shell(*command)
        assert (missing.code, missing.out) == (4, ""), command
        assert "no such topic: ordrs; did you mean orders?" in missing.err
    assert shell("topic", "delete", "--yes", "--if-exists", "ordrs").code == 0


def test_nothing_is_deleted_without_a_yes(shell: Shell) -> None:
    shell("topic", "create", "orders")
    refused = shell("topic", "delete", "orders")
    assert refused.code == 1
    assert "try: --yes" in refused.err
    assert shell("topic", "list", "-q").out == "orders\n"


@pytest.mark.parametrize(
    ("mistake", "what", "where"),
    [
        (["topc", "list"], "no such command: topc; did you mean topic?", "levada --help"),
        (["topic", "lst"], "no such command", "levada topic --help"),
        (["topic", "list", "--nope"], "no such option", "levada topic list --help"),
        (["topic", "describe"], "missing argument", "levada topic describe --help"),
    ],
)
def test_mistakes_are_reported_like_other_failures(shell: Shell, mistake: list[str], what: str, where: str) -> None:
    """What, why and what to try, in two lines on standard error."""
    failed = shell(*mistake)
    message, hint = failed.err.splitlines()
    assert (failed.code, failed.out, hint) == (2, "", f"  try: {where}")
    assert message.startswith(f"error: {what}")


def test_exit_codes(shell: Shell, broker: BrokerThread) -> None:
    """0 ok, 1 failed, 2 usage, 3 cannot connect, 4 not found, 5 denied, 6 timeout."""
    assert shell.apart("--version").out.startswith("levada ")
    assert shell("topic", "create", "bad name").code == 1
    assert shell("topic", "create", "x", "-c", "nonsense").code == 2
    assert shell("topic", "create", "x", "-c", "no.such.setting=1").code == 2
    assert shell("topic", "lst").code == 2
    assert shell("topic", "alter", "x").code == 2
    assert shell("consume", "x", "--from", "yesterday").code == 2
    assert shell("topic", "list", "-b", "nonsense:nonsense").code == 2
    refused = shell("topic", "list", "-b", f"127.0.0.1:{free_port()}")
    assert refused.code == 3
    assert "Connection refused" in refused.err
    assert "try: levada start" in refused.err
    broker.fail_next("create_topics", "TOPIC_AUTHORIZATION_FAILED")
    assert shell("topic", "create", "secret").code == 5
    broker.delay("metadata", 30)
    late = shell("topic", "list", "--timeout", "1")
    assert late.code == 6
    assert "did not respond within 1 s" in late.err
    with socket.create_server(("127.0.0.1", 0)) as suspended:
        silent = shell("topic", "list", "--timeout", "1", "-b", f"127.0.0.1:{suspended.getsockname()[1]}")
    assert silent.code == 6
    assert "accepts connections and does not respond" in silent.err


def commands() -> Iterator[list[str]]:
    """Every noun, and every noun with its verbs."""
    context = click.Context(levada_command)
    for noun in levada_command.list_commands(context):
        yield [noun]
        command = levada_command.get_command(context, noun)
        if isinstance(command, click.Group):
            yield from ([noun, verb] for verb in command.list_commands(context))


def test_every_command_has_help_with_examples(shell: Shell) -> None:
    for command in [[], *commands()]:
        helped = shell(*command, "--help")
        assert helped.code == 0
        assert "Examples:" in helped.out, command
        assert helped.err == ""


def test_the_page_names_every_command() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text()
    shown = re.findall(r"^    levada (\w+)(.*)$", page, re.MULTILINE)
    for noun, *verbs in commands():
        rest = [words for found, words in shown if found == noun]
        assert rest, f"docs/cli.md does not name levada {noun}"
        assert all(re.search(rf"\b{verb}\b", rest[0]) for verb in verbs), (noun, verbs)


def test_lines_become_records_and_records_lines(shell: Shell) -> None:
    shell("topic", "create", "orders")
    assert shell("produce", "orders", stdin=b"one\ntwo\n\nlast without newline").code == 0
    assert shell("consume", "orders", "-e").out == "one\ntwo\n\nlast without newline\n"
    assert shell("consume", "orders", "-c", "1").out == "one\n"
    assert shell("consume", "orders", "--from", "-1", "-e").out == "last without newline\n"
    assert shell("consume", "orders", "--from", "1", "-c", "1").out == "two\n"
    assert shell("consume", "orders", "--from", "end", "-e").out == ""


def test_keys_headers_nulls_and_formats(shell: Shell) -> None:
    shell("topic", "create", "orders", "-p", "4")
    sent = shell("produce", "orders", "-K:", "-H", "a=1", "-H", "b=2", "-p", "2", "-Z", stdin=b"k:v:w\nx:\nnokey\n:z\n")
    assert sent.code == 0
    shown = shell("consume", "orders", "-e", "-Z", "-f", r"%t/%p/%o %k(%K) %s(%S) %h 100%%\n")
    assert shown.lines() == [
        "orders/2/0 k(1) v:w(3) a=1,b=2 100%",
        "orders/2/1 x(1) NULL(-1) a=1,b=2 100%",
        "orders/2/2 NULL(-1) nokey(5) a=1,b=2 100%",
        "orders/2/3 NULL(-1) z(1) a=1,b=2 100%",
    ]
    assert shell("consume", "orders", "-e", "-K", "=>", "-D", ";").out == "k=>v:w;x=>;=>nokey;=>z;"
    assert shell("consume", "orders", "-e", "-p", "1").out == ""
    wrong = shell("consume", "orders", "-f", "%y")
    assert wrong.code == 2
    assert "unknown token %y" in wrong.err


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_pipe_of_many_lines(shell: Shell, codec: str) -> None:
    shell("topic", "create", "orders")
    text = b"".join(b"%d\n" % number for number in range(20_000))
    assert shell.apart("produce", "orders", "-z", codec, stdin=text).code == 0
    assert shell.apart("consume", "orders", "-e").out.encode() == text


def test_files_are_records_or_lines(shell: Shell, tmp_path: Path) -> None:
    shell("topic", "create", "orders")
    binary = bytes(range(256))
    (tmp_path / "a").write_bytes(binary)
    (tmp_path / "b").write_bytes(b"two\nlines\n")
    assert shell("produce", "orders", str(tmp_path / "a"), str(tmp_path / "b")).code == 0
    assert shell("consume", "orders", "-e", "-f", "%S ").out == "256 10 "
    assert shell("produce", "orders", "-l", str(tmp_path / "b"), "-c", "1").code == 0
    assert shell("consume", "orders", "--from", "2", "-e").out == "two\n"
    missing = shell("produce", "orders", str(tmp_path / "none"))
    assert missing.code == 2


def test_json_goes_out_and_in_again(shell: Shell, tmp_path: Path) -> None:
    shell("topic", "create", "orders", "copy")
    (tmp_path / "binary").write_bytes(b"\xff\0")
    shell("produce", "orders", "-K:", "-H", "a=1", "-Z", stdin="k:é\nx:\n".encode())
    shell("produce", "orders", str(tmp_path / "binary"))
    lines = shell("consume", "orders", "-e", "-o", "jsonl")
    records = [json.loads(line) for line in lines.lines()]
    assert records[0] == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": records[0]["timestamp"],
        "key": "k",
        "value": "é",
        "headers": [{"name": "a", "value": "1"}],
    }
    assert (records[1]["value"], records[2]["value_base64"]) == (None, "/wA=")
    assert shell("consume", "orders", "-e", "-o", "json").json() == records
    assert shell("consume", "orders", "-e", "-p", "0", "--from", "end", "-o", "json").json() == []
    assert "OFFSET" in shell("consume", "orders", "-e", "-o", "table").out

    assert shell("produce", "copy", "-i", "jsonl", stdin=lines.out.encode()).code == 0
    copied = [json.loads(line) for line in shell("consume", "copy", "-e", "-o", "jsonl").lines()]
    assert [{**record, "topic": "orders"} for record in copied] == records
    assert shell("produce", "copy", "-i", "jsonl", stdin=b'{"value": {"n": 1}}\n').code == 0
    assert shell("consume", "copy", "--from", "-1", "-e").out == '{"n":1}\n'
    for wrong in (
        '{"value": "v", "timestamp": "x"}',
        '{"value": "v", "timestamp": 1e9}',
        '{"value": "v", "timestamp": 9223372036854775808}',
        '{"value": "v", "partition": "x"}',
        '{"value": "v", "partition": true}',
        '{"value": "v", "headers": [1]}',
        '{"value": "v", "headers": "x"}',
        '{"value_base64": "#"}',
        "[]",
    ):
        refused = shell("produce", "copy", "-i", "jsonl", stdin=wrong.encode())
        assert refused.code == 2 and refused.err.startswith("error: line 1 of the input: "), wrong
        assert refused.err.endswith("  sent before it: 0 records\n")
    broken = shell("produce", "copy", "-i", "jsonl", stdin=b'{"value": "ok"}\n{"value": \n')
    assert broken.code == 2
    assert "line 2 of the input" in broken.err


def test_a_topic_is_copied_into_one_with_as_many_partitions(shell: Shell) -> None:
    shell("topic", "create", "orders", "-p", "3")
    for partition in range(3):
        shell("produce", "orders", "-p", str(partition), stdin=b"a\nb\n")
    lines = shell("consume", "orders", "-e", "-o", "jsonl").out.encode()
    small = shell("produce", "small", "-i", "jsonl", stdin=b'{"value": "a"}\n{"value": "b", "partition": 2}\n')
    assert (small.code, small.out) == (4, "")
    assert small.err.splitlines() == [
        "error: small has 1 partition, no partition 2 (UNKNOWN_TOPIC_OR_PARTITION)",
        "  sent before it: 1 record",
        "  try: levada topic alter small --partitions 3, or more if other records need more",
    ]
    assert shell("topic", "alter", "small", "--partitions", "3").code == 0
    assert shell("produce", "small", "-i", "jsonl", stdin=lines).code == 0
    beyond = shell("produce", "orders", "-p", "3", stdin=b"a\n")
    assert beyond.err.startswith("error: orders has 3 partitions, no partition 3 (")

    shell("topic", "create", "copy", "-p", "3")
    assert shell("produce", "copy", "-i", "jsonl", stdin=lines).code == 0
    shown = sorted(shell("consume", "copy", "-e", "-f", "%p %s\\n").lines())
    assert shown == ["0 a", "0 b", "1 a", "1 b", "2 a", "2 b"]


def test_topics_of_levadas_own_are_listed_only_when_asked_for(shell: Shell) -> None:
    own = "__levada_spark_commit_log"
    shell("topic", "create", "orders", "__levad", own)
    try:
        assert shell("topic", "list", "-q").lines() == ["__levad", "orders"]
        assert [row["name"] for row in shell("topic", "list", "-o", "json").json()] == ["__levad", "orders"]
        listed = shell("topic", "list", "-o", "json", "--internal").json()
        assert {row["name"]: row["internal"] for row in listed}[own]  # other clients leave it out of patterns as well
        assert shell("topic", "describe", own).code == 0
    finally:
        shell("topic", "delete", "--yes", own)


def test_consume_by_time(shell: Shell) -> None:
    shell("topic", "create", "orders")
    stamped = "".join(
        json.dumps({"value": str(n), "timestamp": 1_700_000_000_000 + n * 60_000}) + "\n" for n in range(5)
    )
    shell("produce", "orders", "-i", "jsonl", stdin=stamped.encode())
    assert shell("consume", "orders", "-e", "--from", "s@1700000120000").lines() == ["2", "3", "4"]
    assert shell("consume", "orders", "-e", "--from", "s@2023-11-14T22:16:20+00:00").lines() == ["3", "4"]
    assert shell("consume", "orders", "-e", "-f", "%T\\n", "-c", "1").out == "1700000000000\n"


def test_a_record_that_is_refused(shell: Shell) -> None:
    shell("topic", "create", "orders", "-c", "max.message.bytes=1000")
    large = shell("produce", "orders", stdin=b"x" * 5_000)
    assert large.code == 1
    assert "MESSAGE_TOO_LARGE" in large.err
    assert "levada config set topic orders max.message.bytes" in large.err


def test_a_reader_that_has_enough_ends_the_command_quietly(shell: Shell) -> None:
    shell("topic", "create", "orders")
    line = b"more than a pipe holds, also of a kernel with large pages\n"
    shell("produce", "orders", stdin=line * 50_000)
    process = shell.start("consume", "orders", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == line
    process.stdout.close()
    assert process.wait(BATCH_S) == 0
    with process.stderr as errors:
        assert errors.read() == b""


@pytest.mark.parametrize("command", [["consume", "orders"], ["produce", "orders", "-T"]])
def test_ctrl_c_ends_a_command_quietly(shell: Shell, command: list[str]) -> None:
    shell("topic", "create", "orders")
    shell("produce", "orders", stdin=b"hello\n")
    process = shell.start(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"hello\n"  # it runs
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=BATCH_S)
    assert (process.returncode, errors.strip()) == (130, b"")


def test_settings(shell: Shell) -> None:
    shell("topic", "create", "orders")
    assert "has only default settings" in shell("config", "describe", "topic", "orders").err
    assert shell("config", "set", "topic", "orders", "retention.ms=1000", "segment.bytes=200000").code == 0
    shown = shell("config", "describe", "topic", "orders")
    assert shown.lines()[1:] == ["retention.ms    1000     topic", "segment.bytes   200000   topic"]
    assert shell("config", "unset", "topic", "orders", "retention.ms").code == 0
    (row,) = shell("config", "describe", "topic", "orders", "retention.ms", "-o", "json").json()
    assert (row["value"], row["source"]) == ("604800000", "default")
    near = shell("config", "describe", "topic", "orders", "retention.m")
    assert near.code == 4
    assert "did you mean retention.ms?" in near.err
    everything = shell("config", "describe", "broker", "1", "--all", "-o", "json").json()
    assert {"node.id", "log.retention.hours"} <= {row["name"] for row in everything}
    assert shell("config", "describe", "broker", "7").code == 4
    assert shell("config", "set", "group", "billing", "consumer.session.timeout.ms=50000").code == 0
    (row,) = shell("config", "describe", "group", "billing", "-o", "json").json()
    assert (row["name"], row["value"], row["source"]) == ("consumer.session.timeout.ms", "50000", "group")
    assert "share groups are not available" in shell("config", "set", "group", "g", "share.x=1").err
    assert shell("config", "describe", "broker", "x").code == 2
    assert shell("config", "set", "topic", "orders", "retention.ms=soon").code == 2


def test_the_cluster(shell: Shell, broker: BrokerThread) -> None:
    shell("topic", "create", "orders", "-p", "3")
    described = shell("cluster", "describe", "-o", "json").json()
    host, port = broker.bootstrap.split(":")
    assert (described["topics"], described["partitions"], described["offline_partitions"]) == (1, 3, 0)
    (node,) = described["brokers"]
    assert (node["host"], node["port"], node["leads"], node["controller"]) == (host, int(port), 3, True)
    assert json.loads(shell("cluster", "describe", "-o", "jsonl").out) == node
    assert described["cluster_id"] in shell("cluster", "describe").out


def test_no_broker_means_no_kafka_classes(shell: Shell) -> None:
    """`topic list` answers within 150 ms because it loads neither Kafka's message classes nor anything else heavy."""
    code = (
        "import sys; from levada.cli.main import run; code = run(['topic', 'list']);"
        "heavy = {'kio', 'uvloop', 'rich', 'structlog', 'msgspec', 'cramjam', 'sqlite3', 'json', 'hypothesis'};"
        "sys.exit(code or ', '.join(heavy & set(sys.modules)) or 0)"
    )
    process = subprocess.run([sys.executable, "-c", code], env=shell.environment, capture_output=True, timeout=BATCH_S)
    assert (process.returncode, process.stderr) == (0, b"no topics; try: levada topic create NAME\n")
