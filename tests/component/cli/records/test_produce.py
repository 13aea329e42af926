"""`levada produce`: what it refuses, and why a topic cannot be created."""

import subprocess

import pytest
from tests.support.broker import BrokerThread
from tests.support.shell import TIMEOUT_S, Shell


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"key": "a"}', 'a record needs the field "value"'),
        ("{}", 'a record needs the field "value"'),
        ('{"value": ' + "[" * 100_000, "JSON that is nested too deeply"),
        ('{"value": ' + "[" * 100_000 + "]" * 100_000 + "}", "JSON that is nested too deeply"),
        ('{"value": NaN}', "not JSON (NaN is not a number of JSON)"),
        ('{"value": {"price": -Infinity}}', "not JSON (-Infinity is not a number of JSON)"),
        ('{"value": {"price": 1e999}}', "value has a number that is too large"),
        ('{"value": "a", "value_base64": "eA=="}', "'value' and 'value_base64' exclude each other"),
        ('{"value": "a", "key": null, "key_base64": "eA=="}', "'key' and 'key_base64' exclude each other"),
        (
            '{"value": "a", "headers": [{"name": "h", "value": "a", "value_base64": "eA=="}]}',
            "'value' and 'value_base64' exclude each other",
        ),
        ('{"value": "x", "value": "y"}', "the field 'value' comes twice"),
        ('{"value": {"shop": "tea", "shop": "coffee"}}', "the field 'shop' comes twice"),
        ('{"valeu": "x"}', "a record has no field 'valeu'; did you mean value?"),
        ('{"value": "x", "shop": "tea"}', "a record has no field 'shop'"),
        ('{"value": "x", "headers": [{"name": "a"}]}', 'a header needs the field "value"'),
        ('{"value": "x", "headers": [{"name": "a", "value": "1", "vlaue": "2"}]}', "a header has no field 'vlaue'"),
    ],
)
def test_a_line_that_is_no_record_is_refused(shell: Shell, line: str, why: str) -> None:
    """Nothing of it is stored; what was sent before is stored and counted."""
    shell("topic", "create", "orders")
    refused = shell("produce", "orders", "-i", "jsonl", stdin=f'{{"value": "a"}}\n{{"value": "b"}}\n{line}\n'.encode())
    message, sent = refused.err.splitlines()
    assert (refused.code, refused.out) == (2, "")
    assert message.startswith(f"error: line 3 of the input: {why}")
    assert sent == "  sent before it: 2 records"
    assert shell("consume", "orders", "-e").lines() == ["a", "b"]


def test_a_null_that_is_written_out_is_a_tombstone(shell: Shell) -> None:
    shell("topic", "create", "orders")
    assert shell("produce", "orders", "-i", "jsonl", stdin=b'{"key": "k", "value": null}\n').code == 0
    (record,) = shell("consume", "orders", "-e", "-o", "json").json()
    assert (record["key"], record["value"]) == ("k", None)


def test_blank_lines_are_no_records(shell: Shell) -> None:
    shell("topic", "create", "orders")
    assert shell("produce", "orders", "-i", "jsonl", stdin=b'{"value": "a"}\n\n{"value": "b"}\n \n').code == 0
    assert shell("consume", "orders", "-e").lines() == ["a", "b"]


def test_a_topic_that_the_broker_does_not_create_is_explained(shell: Shell) -> None:
    with BrokerThread(auto_create_topics_enable=False) as broker:
        strict = Shell(broker.bootstrap)
        strict("topic", "create", "orders")
        refused = strict("produce", "ordrs", stdin=b"a\n")
        assert (refused.code, refused.out) == (4, "")
        assert refused.err.splitlines() == [
            "error: no such topic: ordrs, and the broker creates none by itself (auto.create.topics.enable=false); "
            "did you mean orders?",
            "  try: levada topic create ordrs",
        ]
        assert strict("topic", "list", "-q").lines() == ["orders"]
        broker.fail_next("create_topics", "TOPIC_AUTHORIZATION_FAILED")
        denied = strict("produce", "ordrs", stdin=b"a\n")
        assert denied.code == 5
        assert "the broker cannot create it" in denied.err


@pytest.mark.filterwarnings("ignore:default.replication.factor=3 needs more brokers:UserWarning")
def test_a_topic_that_the_broker_cannot_create_is_explained() -> None:
    with BrokerThread(default_replication_factor=3) as broker:
        shell = Shell(broker.bootstrap)
        refused = shell("produce", "orders", stdin=b"a\n")
        assert (refused.code, refused.out) == (4, "")
        message, hint = refused.err.splitlines()
        assert message.startswith("error: topic orders does not exist, and the broker cannot create it: ")
        assert "INVALID_REPLICATION_FACTOR" in message
        assert hint == "  try: levada topic create orders -r 1"
        assert shell(*hint.split()[2:]).code == 0
        assert shell("produce", "orders", stdin=b"a\n").code == 0


def test_a_closed_copy_on_standard_output_is_an_error(shell: Shell) -> None:
    """Unlike a reader of `consume`: records that are not sent yet are missing."""
    shell("topic", "create", "orders")
    process = shell.start(
        "produce", "orders", "-T", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"a\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"a\n"
    process.stdout.close()
    process.stdout = None
    _, errors = process.communicate(b"b\nc\n", timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert errors.decode().splitlines() == [
        "error: the reader of standard output (-T) has closed it",
        "  sent before it: 1 record",
    ]


def test_settings_of_the_producer(shell: Shell, broker: BrokerThread) -> None:
    shell("topic", "create", "orders", "plain")
    lines = b"one and the same line\n" * 100
    assert shell("produce", "plain", "--acks", "1", stdin=lines).code == 0
    assert shell("produce", "orders", "-X", "compression.type=gzip", "-X", "acks=1", stdin=lines).code == 0
    assert shell("consume", "orders", "-e").out.encode() == lines
    assert broker.partition("orders").log.size_bytes < broker.partition("plain").log.size_bytes / 2
    assert shell("produce", "orders", "-X", "compression.type=gzip", "-z", "none", stdin=lines).code == 0
    assert broker.partition("orders").log.size_bytes > broker.partition("plain").log.size_bytes
    wrong = shell("produce", "orders", "-X", "enable.idempotence=true", "--acks", "1", stdin=b"a\n")
    assert (wrong.code, wrong.err) == (2, 'error: an idempotent producer needs acks="all"\n')
