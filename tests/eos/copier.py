"""A process that copies a topic to another in transactions, and writes down what it does; made to be killed.

Its journal is a file of JSON lines, each written before the next step is taken, so that what a killed copier had asked
for and what it knew can be told afterwards:
`positioned` it was given partitions or went back, `begin` what it read, `produced` and `offsets` what is in the
transaction by now, `end` it is about to commit, `done` how that ended, with the offsets of what it sent.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

FILL_S = 1.0  # how long to wait for a full transaction
LINGER_S = 0.05  # at most, between the steps of a transaction
TIMEOUT_S = 30.0  # for one call; what takes longer is tried again


class Copier:
    """Consume, produce, commit the offsets in the transaction; abort and go back when told to, or by chance."""

    def __init__(self, given: argparse.Namespace, journal: TextIO) -> None:
        self._given = given
        self._journal = journal
        self._chance = random.Random(given.seed)
        self._batch: list[Message] = []
        self._sent: list[tuple[int, str, int | None]] = []  # of this transaction: partition, value, offset
        self._outcome = "ok"  # of this transaction
        settings: dict[str, object] = {
            "bootstrap.servers": given.bootstrap,
            "reconnect.backoff.max.ms": 200,
            "metadata.recovery.strategy": "none",  # else send_offsets_to_transaction may hang: librdkafka #5511
        } | ({"debug": os.environ["COPIER_DEBUG"]} if "COPIER_DEBUG" in os.environ else {"log_level": 0})
        self._source = Consumer(
            settings
            | {
                "group.id": given.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
            | _group_settings(given)
        )
        self._target = Producer(
            settings
            | {
                "transactional.id": given.transactional_id,
                "transaction.timeout.ms": given.transaction_timeout_ms,
            }
        )

    def run(self) -> None:
        self._retried(lambda: self._target.init_transactions(TIMEOUT_S))
        self._source.subscribe([self._given.source], on_assign=self._assigned, on_revoke=self._revoked)
        while True:
            batch = self._fill()
            if batch:
                self._copy(batch)

    def _assigned(self, source: Consumer, parts: list[TopicPartition]) -> None:
        self._step("positioned", parts=[part.partition for part in parts])

    def _revoked(self, source: Consumer, parts: list[TopicPartition]) -> None:
        """What was read of them is for others to copy."""
        gone = {part.partition for part in parts}
        self._batch[:] = [message for message in self._batch if message.partition() not in gone]

    def _fill(self) -> list[Message]:
        """Poll until a transaction is full; a rebalance in between may take from it."""
        self._batch.clear()
        deadline = time.monotonic() + FILL_S
        while len(self._batch) < self._given.size and time.monotonic() < deadline:
            message = self._source.poll(0.1)
            error = None if message is None else message.error()
            if error is not None and error.fatal():
                raise KafkaException(error)
            if message is not None and error is None:
                self._batch.append(message)
        return list(self._batch)

    def _copy(self, batch: list[Message]) -> None:
        # Whose member this is must be asked before anything else: it may lose its place at any later step.
        group = self._source.consumer_group_metadata()
        records = [(message.partition(), message.offset(), _text(message.value())) for message in batch]
        self._step("begin", records=records)
        self._sent = []
        self._outcome = "failed"
        self._target.begin_transaction()
        try:
            self._transact(batch, group)
        except (KafkaException, _AbortWanted) as error:
            if isinstance(error, KafkaException) and not error.args[0].txn_requires_abort():
                self._step("done", outcome=self._outcome, sent=self._sent, error=str(error))
                raise
            self._retried(lambda: self._target.abort_transaction(TIMEOUT_S))
            self._outcome = "failed"
        self._step("done", outcome=self._outcome, sent=self._sent)
        if self._outcome == "failed":
            self._go_back()

    def _transact(self, batch: list[Message], group: object) -> None:
        for message in batch:
            self._target.produce(
                self._given.target,
                message.value(),
                message.key(),
                message.partition() or 0,
                on_delivery=self._delivered,
            )
            self._target.poll(0)
        self._target.flush(TIMEOUT_S)
        self._step("produced")
        following = {message.partition() or 0: (message.offset() or 0) + 1 for message in batch}
        offsets = [TopicPartition(self._given.source, index, offset) for index, offset in following.items()]
        self._retried(lambda: self._target.send_offsets_to_transaction(offsets, group, TIMEOUT_S))
        self._step("offsets")
        if self._chance.random() < self._given.aborted_share:
            raise _AbortWanted
        self._step("end")
        self._outcome = "unknown"
        self._retried(lambda: self._target.commit_transaction(TIMEOUT_S))
        self._outcome = "ok"

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        offset = message.offset() if error is None else None
        self._sent.append((message.partition() or 0, _text(message.value()), offset))

    def _go_back(self) -> None:
        """To the committed positions; a rebalance meanwhile gives them as well."""
        self._step("positioned", parts=[])
        try:
            for part in self._source.committed(self._source.assignment(), TIMEOUT_S):
                self._source.seek(TopicPartition(part.topic, part.partition, max(part.offset, 0)))
        except KafkaException as error:
            raise SystemExit(f"cannot go back: {error}") from error

    def _retried(self, call: Callable[[], Any]) -> None:
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def _step(self, what: str, **more: object) -> None:
        """Write down what comes next, and give faults a chance to come before it."""
        self._journal.write(json.dumps({"what": what, "tick": time.monotonic_ns(), **more}) + "\n")
        self._journal.flush()
        if what == self._given.halt_at:
            self._given.halt_at = None
            os.kill(os.getpid(), signal.Signals[self._given.halt_by])
        time.sleep(self._chance.uniform(0, LINGER_S))


class _AbortWanted(Exception):
    """Chance wants this transaction aborted."""


def _text(content: bytes | str | None) -> str:
    return content.decode() if isinstance(content, bytes) else content or ""


def _group_settings(given: argparse.Namespace) -> dict[str, object]:
    if given.protocol == "consumer":
        return {"group.protocol": "consumer"}
    return {"session.timeout.ms": given.session_timeout_ms, "heartbeat.interval.ms": 500}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "source", "target", "group", "transactional-id", "journal"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--protocol", default="classic", choices=["classic", "consumer"])
    parser.add_argument("--size", type=int, default=750)
    parser.add_argument("--transaction-timeout-ms", type=int, default=10_000)
    parser.add_argument("--session-timeout-ms", type=int, default=3000)
    parser.add_argument("--aborted-share", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--halt-at", choices=["begin", "produced", "offsets", "end"], help="stop there, once")
    parser.add_argument("--halt-by", choices=["SIGKILL", "SIGSTOP"], default="SIGKILL")
    given = parser.parse_args()
    with open(given.journal, "a") as journal:
        try:
            Copier(given, journal).run()
        except KafkaException as error:
            sys.exit(f"cannot go on: {error}")


if __name__ == "__main__":
    main()
