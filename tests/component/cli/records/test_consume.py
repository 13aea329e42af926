"""`levada consume`: groups, several topics, ranges, closed pipes, and options of other tools."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from tests.support.broker import BrokerThread
from tests.support.shell import TIMEOUT_S, Shell


@pytest.fixture
def orders(shell: Shell) -> str:
    """A topic with the records 0 to 9."""
    shell("topic", "create", "orders")
    shell("produce", "orders", stdin=b"".join(b"%d\n" % number for number in range(10)))
    return "orders"


def groups_end(shell: Shell, *names: str) -> None:
    for name in names:
        assert shell("group", "delete", "--yes", name).code == 0


def test_a_range_of_offsets(shell: Shell, orders: str) -> None:
    assert shell("consume", orders, "--from", "3", "--until", "6").lines() == ["3", "4", "5"]
    assert shell("consume", orders, "--offset", "8", "-e").lines() == ["8", "9"]
    assert shell("consume", orders, "--until", "2").lines() == ["0", "1"]
    assert shell("consume", orders, "--from", "8", "--until", "99", "-e").lines() == ["8", "9"]
    assert shell("consume", orders, "--from", "-2", "--until", "9").lines() == ["8"]
    for wrong in (["--from", "6", "--until", "6"], ["--until", "soon"], ["--until", "-3"]):
        assert shell("consume", orders, *wrong).code == 2


def test_a_range_of_times(shell: Shell) -> None:
    shell("topic", "create", "orders")
    lines = [json.dumps({"value": str(n), "timestamp": 1_700_000_000_000 + n * 60_000}) for n in range(5)]
    shell("produce", "orders", "-i", "jsonl", stdin="\n".join(lines).encode())
    between = ["--from", "s@1700000060000", "--until", "s@1700000180000"]
    assert shell("consume", "orders", *between).lines() == ["1", "2"]
    assert shell("consume", "orders", "--from", "3", "--until", "s@2199-01-01").lines() == ["3", "4"]


def test_an_offset_beyond_the_end_names_the_end(shell: Shell, orders: str) -> None:
    beyond = shell("consume", orders, "--from", "99")
    message, hint = beyond.err.splitlines()
    assert (beyond.code, beyond.out) == (1, "")
    assert message == "error: offset 99 is beyond the end: orders-0 ends at 10 (OFFSET_OUT_OF_RANGE)"
    assert "--from end" in hint
    assert shell("consume", orders, "--from", "10", "-e").out == ""


def test_several_topics_and_patterns(shell: Shell, orders: str) -> None:
    shell("topic", "create", "payments", "ordinary")
    shell("produce", "payments", stdin=b"paid\n")
    shell("produce", "ordinary", stdin=b"plain\n")
    shown = shell("consume", "payments", "ordinary", "-e", "-f", "%t=%s\\n")
    assert sorted(shown.lines()) == ["ordinary=plain", "payments=paid"]
    assert len(shell("consume", "--pattern", "ord.*", "-e").lines()) == 11
    assert len(shell("consume", "payments", "--pattern", "orders|payments", "-e").lines()) == 11
    assert "TOPIC" in shell("consume", "payments", orders, "-e", "-o", "table").lines()[0]
    assert "TOPIC" not in shell("consume", "payments", "-e", "-o", "table").lines()[0]
    missing = shell("consume", "--pattern", "ord", "-e")
    assert (missing.code, missing.err.splitlines()[0]) == (4, "error: no topic matches ord")
    assert shell("consume", "--pattern", "(", "-e").code == 2
    assert "name a topic" in shell("consume", "-e").err


def test_a_group_continues_where_it_stopped(shell: Shell, broker: BrokerThread, orders: str) -> None:
    assert shell("consume", "--group", "billing", orders, "-c", "3").lines() == ["0", "1", "2"]
    assert broker.committed("billing") == {(orders, 0): 3}
    (group,) = shell("group", "list", "-o", "json").json()
    assert (group["group"], group["state"]) == ("billing", "Empty")  # it has left
    assert shell("consume", "-g", "billing", orders, "-c", "2").lines() == ["3", "4"]
    assert shell("consume", "-X", "group.id=billing", orders, "-e").lines() == ["5", "6", "7", "8", "9"]
    assert broker.committed("billing") == {(orders, 0): 10}
    assert shell("consume", "--group", "billing", orders, "-e").out == ""
    assert shell("consume", "--group", "late", "--from", "end", orders, "-e").out == ""
    assert len(shell("consume", "--group", "all", "--pattern", "ord.*", "-e").lines()) == 10
    for wrong in (["-p", "0"], ["--until", "3"]):
        assert shell("consume", "--group", "billing", orders, *wrong).code == 2
    groups_end(shell, "billing", "late", "all")


def test_a_group_whose_offset_is_not_in_the_log(shell: Shell, orders: str) -> None:
    shell("consume", "--group", "billing", orders, "-c", "3")
    shell("topic", "trim", orders, "--to-offset", "8", "--yes")
    lost = shell("consume", "--group", "billing", orders, "-e")
    message, hint = lost.err.splitlines()[-2:]
    assert (lost.code, lost.out) == (1, "")
    assert message == "error: group billing is at offset 3 of orders-0, which has 8 to 10 (OFFSET_OUT_OF_RANGE)"
    assert "-X auto.offset.reset=earliest" in hint and "levada group reset billing --to-earliest" in hint
    assert shell("consume", "--group", "billing", orders, "-e", "-X", "auto.offset.reset=earliest").lines() == [
        "8",
        "9",
    ]


def test_a_group_does_not_commit_an_offset_that_it_could_not_read(shell: Shell, orders: str) -> None:
    beyond = shell("consume", "--group", "billing", orders, "--from", "99", "-e")
    assert beyond.code == 1 and "is at offset 99 of orders-0, which has 0 to 10" in beyond.err
    assert len(shell("consume", "--group", "billing", orders, "-e").lines()) == 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_makes_a_member_commit_and_leave(
    shell: Shell, broker: BrokerThread, orders: str, number: signal.Signals
) -> None:
    process = shell.start("consume", "--group", "billing", orders, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(10)] == [b"%d\n" % one for one in range(10)]
    process.send_signal(number)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, errors.strip()) == (130, b"")
    described = shell("group", "describe", "billing", "-o", "json").json()
    assert (described["state"], described["members"]) == ("Empty", [])
    assert broker.committed("billing") == {(orders, 0): 10}
    groups_end(shell, "billing")


def test_a_reader_that_closes_the_pipe_ends_the_command_without_another_record(shell: Shell, orders: str) -> None:
    """`consume | head -1`: no further record comes that could not be written."""
    for words in ([orders], ["--group", "heads", orders]):
        process = shell.start("consume", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == 0
        with process.stderr as errors:
            assert errors.read() == b""
    groups_end(shell, "heads")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["consume", "orders", "-o", "beginning"], "--from beginning"),
        (["consume", "orders", "-o", "-10"], "--from -10"),
        (["consume", "orders", "-o", "5"], "--from 5"),
        (["consume", "orders", "-o", "0x1f"], "--from 31"),
        (["consume", "orders", "-o", "-0x1"], "--from -1"),
        (["consume", "orders", "-o", "b"], "--from beginning"),
        (["consume", "orders", "-o", "e"], "--from end"),
        (["consume", "orders", "-o", "store"], "--group GROUP, which continues at the committed offsets"),
        (["consume", "orders", "-o", "s@1700000000000"], "--from s@1700000000000"),
        (["consume", "orders", "-o", "e@1700000000000"], "--until s@1700000000000"),
        (["consume", "orders", "-o", "stored"], "--group GROUP, which continues at the committed offsets"),
        (["consume", "-C", "-t", "orders"], "levada consume orders, without -C"),
        (["consume", "-t", "orders"], "levada consume orders, without -t"),
        (["consume", "orders", "-J"], "-o jsonl"),
        (["consume", "--from-beginning", "orders"], "without it, that is the default"),
        (["produce", "-t", "orders"], "levada produce orders, without -t"),
        (["consume", "orders", "--offset", "stored"], "--group GROUP, which continues at the committed offsets"),
        (["consume", "orders", "--from", "e@1700000000000"], "--until s@1700000000000"),
        (["consume", "-L"], "levada cluster describe, levada topic list"),
        (["consume", "-Q", "-t", "orders"], "levada consume orders --from s@TIME -c 1"),
        (["consume", "-G", "billing", "orders"], "levada consume --group billing TOPIC"),
        (["consume", "orders", "--skip-message-on-error"], "without it, records are printed as they are"),
        (["consume", "orders", "--formatter-config", "f"], "-K TEXT for keys, or -f FORMAT"),
        (["consume", "orders", "-m", "5"], "--timeout SECONDS"),
        (["produce", "orders", "--retry-backoff-ms", "5"], "-X retry.backoff.ms=MS"),
        (["produce", "orders", "--metadata-expiry-ms", "5"], "-X metadata.max.age.ms=MS"),
        (["produce", "orders", "--max-block-ms", "5"], "--timeout SECONDS"),
        (["produce", "orders", "--max-partition-memory-bytes", "5"], "-X batch.size=BYTES"),
        (["produce", "orders", "--line-reader", "r"], "-K TEXT for keys, or -i jsonl"),
        (["produce", "orders", "--reader-config", "f"], "-K TEXT for keys, or -i jsonl"),
        (["produce", "-G", "billing", "orders"], "levada consume --group billing TOPIC"),
        (["produce", "-L"], "levada cluster describe, levada topic list"),
        (["-C", "-t", "orders"], "levada consume orders"),
        (["-t", "orders", "-P"], "levada produce orders"),
        (["-t", "orders"], "levada consume orders, or levada produce orders"),
        (
            ["-b", "127.0.0.1:9092", "-L", "-t", "orders"],
            "levada cluster describe, levada topic list, levada topic describe orders",
        ),
        (["-X", "acks=1", "-P", "-t", "orders"], "levada produce orders"),
        (["-X", "acks=1"], "levada COMMAND -X KEY=VALUE"),
        (["-F", "client.properties"], "levada COMMAND -F FILE"),
        (["-J"], "levada consume TOPIC -o jsonl"),
        (["-b", "127.0.0.1:9092", "topic", "list"], "levada COMMAND -b HOST:PORT"),
        (["topic", "--list"], "levada topic list"),
        (["topic", "--bootstrap-server", "127.0.0.1:9092", "--list"], "levada topic list"),
        (["topic", "--describe", "--topic", "orders"], "levada topic describe orders"),
        (["topic", "--topic", "orders", "--create", "--partitions", "3"], "levada topic create orders"),
        (["topic", "describe", "--topic", "orders"], "levada topic describe orders, without --topic"),
        (["topic", "list", "--bootstrap-server", "127.0.0.1:9092"], "-b HOST:PORT"),
        (["group", "--list"], "levada group list"),
        (["group", "--describe", "--group", "billing"], "levada group describe billing, or levada group lag billing"),
        (["group", "--group", "billing"], "levada group describe billing"),
        (["group", "--group", "billing", "--reset-offsets", "--to-earliest"], "levada group reset billing"),
    ],
)
def test_options_of_other_tools_are_answered_with_the_right_one(shell: Shell, words: list[str], hint: str) -> None:
    failed = shell(*words)
    message, shown = failed.err.splitlines()
    assert (failed.code, failed.out) == (2, "")
    assert message.startswith("error: ")
    assert shown.startswith(f"  try: {hint}")


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("-d", "the client has no debug log"),
        ("-E", "the client retries what can be retried"),
        ("-v", "errors are printed in full"),
    ],
)
def test_options_of_other_tools_that_have_no_equal_are_answered_with_the_reason(
    shell: Shell, option: str, why: str
) -> None:
    failed = shell("consume", "orders", option)
    message, shown = failed.err.splitlines()
    assert (failed.code, message) == (2, f"error: no such option: {option}")
    assert shown.startswith(f"  there is no such option: {why}")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["-d", "consume", "orders", "-b", "localhost:1"], "-d"),
        (["-v", "topic", "list", "-b", "localhost:1"], "-v"),
        (["topic", "-v", "list", "--list"], "-v"),
    ],
)
def test_options_after_the_subcommand_are_not_blamed(shell: Shell, words: list[str], option: str) -> None:
    assert shell(*words).err.startswith(f"error: no such option: {option}\n")


def test_an_option_that_no_tool_has_is_answered_with_the_help(shell: Shell) -> None:
    assert shell("topic", "list", "--nope").err.splitlines()[1] == "  try: levada topic list --help"


def test_tokens_of_other_tools(shell: Shell, orders: str) -> None:
    assert "unknown token %v: the value is %s" in shell("consume", orders, "-f", "%v").err
    assert "not one of" in shell("consume", orders, "-o", "xml").err


@pytest.mark.filterwarnings("ignore:offsets.topic.replication.factor=3 needs more brokers:UserWarning")
def test_an_offsets_topic_that_cannot_be_created_is_an_error_at_once(tmp_path: Path) -> None:
    """More attempts would not help: 40 seconds of them by default."""
    with BrokerThread(tmp_path, offsets_topic_replication_factor=3) as own:
        own.create("orders")
        shell = Shell(own.bootstrap)
        for words in (["consume", "orders", "-g", "billing", "-e"], ["group", "describe", "billing"]):
            refused = shell(*words, "--timeout", "3")
            assert refused.code == 1
            assert refused.err.startswith("error: __consumer_offsets cannot be created: ")
            assert "(INVALID_REPLICATION_FACTOR)\n" in refused.err


def test_mistakes_are_answered_with_what_helps(shell: Shell, orders: str) -> None:
    for arguments, hint in (
        (["consume", "or.*"], "try: levada consume --pattern 'or.*'"),
        (["consume", "nope"], "try: levada topic create nope"),
        (["consume", orders, "-p", "9"], "try: levada topic describe orders"),
        (["topic", "trim", "nope", "--all"], "try: levada topic list"),
        (["topic", "create", "x", "-r", "3"], "levada cluster describe"),
        (["topic", "alter", orders, "-p", "1"], "levada topic describe"),
    ):
        ended = shell(*arguments)
        assert ended.code in (1, 4) and hint in ended.err, ended.err


def test_an_output_excludes_a_format(shell: Shell, orders: str) -> None:
    for wrong in (["-f", "%s\\n"], ["-K", ":"]):
        ended = shell("consume", orders, "-e", "-o", "jsonl", *wrong)
        assert ended.code == 2 and "-o excludes -f and -K" in ended.err


def test_a_wait_for_an_offset_is_announced(shell: Shell, orders: str) -> None:
    process = shell.start("consume", orders, "--from", "8", "--until", "12", stdout=-1, stderr=-1)
    assert process.stderr is not None
    assert process.stderr.readline() == b"waiting for offset 11: orders-0 ends at 10; -e stops there\n"
    shell("produce", orders, stdin=b"10\n11\n12\n")
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out.split()) == (0, [b"8", b"9", b"10", b"11"])
