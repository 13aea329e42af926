"""`levada completion`: scripts, and the names that they complete."""

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.support.broker import BrokerThread, free_port
from tests.support.shell import Ended, Shell

from levada.pipelines.runs.run import Run

Complete = Callable[..., list[str]]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: Shell, name: str) -> None:
    script = shell("completion", name)
    assert script.code == 0
    assert "_LEVADA_COMPLETE" in script.out


def run_completion(shell: Shell, words: str, **environment: str) -> Ended:
    count = str(len(words.split(" ")) - 1)
    asked = {"_LEVADA_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": count}
    return shell(environment=asked | environment)


@pytest.fixture
def complete(shell: Shell) -> Complete:
    """The completions of the last word."""

    def completed(words: str, **environment: str) -> list[str]:
        lines = run_completion(shell, words, **environment).lines()
        return [line.removeprefix("plain,") for line in lines if line]

    return completed


def test_topics(shell: Shell, complete: Complete) -> None:
    shell("topic", "create", "orders", "payments")
    assert complete("levada topic describe o") == ["orders"]
    assert complete("levada consume ") == ["orders", "payments"]
    assert complete("levada consume orders p") == ["payments"]
    assert complete("levada config describe topic pay") == ["payments"]
    assert complete("levada top") == ["topic"]


def test_without_a_broker_there_is_nothing_to_complete(shell: Shell) -> None:
    for words in ("levada consume ", "levada group lag "):
        silent = run_completion(shell, words, LEVADA_BOOTSTRAP=f"127.0.0.1:{free_port()}")
        assert (silent.code, silent.out.strip(), silent.err) == (0, "", "")


def test_groups_and_brokers(shell: Shell, broker: BrokerThread, complete: Complete) -> None:
    shell("topic", "create", "orders")
    for name in ("billing", "shipping"):
        client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name})
        client.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
        client.close()
    for words in ("group describe", "group lag", "group reset", "group delete --yes", "config describe group"):
        assert complete(f"levada {words} b") == ["billing"], words
    assert complete("levada consume --group s") == ["shipping"]
    assert complete("levada group lag billing -b nowhere:1 s") == []
    assert complete("levada config describe broker ") == ["1"]
    assert shell("group", "delete", "--yes", "billing", "shipping").code == 0


def test_settings(complete: Complete) -> None:
    assert complete("levada config describe topic orders retention.") == ["retention.bytes", "retention.ms"]
    assert complete("levada config set topic orders retention.m") == ["retention.ms="]
    assert complete("levada config unset group billing consumer.s") == ["consumer.session.timeout.ms"]
    assert complete("levada config set broker 1 node.i") == []  # it cannot change
    assert complete("levada config describe broker 1 node.i") == ["node.id"]
    assert complete("levada topic create orders -c retention.m") == ["retention.ms="]
    assert complete("levada topic alter orders --unset segment.by") == ["segment.bytes"]
    assert complete("levada start --set log.dirs") == ["log.dirs="]
    assert complete("levada topic list -X bootstrap") == ["bootstrap.servers="]


def test_runs_of_pipelines(complete: Complete, tmp_path: Path) -> None:
    for name in ("archive", "sql-totals"):
        with Run(str(tmp_path), name).hold("archive", {}, 0):
            pass
    for words in ("status", "stop", "forget", "run archive --name"):
        assert complete(f"levada pipeline {words} s", LEVADA_PIPELINES=str(tmp_path)) == ["sql-totals"], words
    assert complete(f"levada pipeline status --home {tmp_path} ") == ["archive", "sql-totals"]
