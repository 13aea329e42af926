"""A process that copies a topic to another in transactions, and writes down what it does; made to be killed.

Its journal is a file of JSON lines, each written before the next step is taken, so that what a killed copier had asked
for and what it knew can be told afterwards:
`positioned` it was given partitions or went back, `begin` what it read, `end` it is about to commit or abort,
`done` how that ended, with the offsets of what it sent.
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

FILL_S = 1.0  # how long to wait for a full transaction
ABORTED_SHARE = 0.1
PATIENCE_S = 30.0  # for one call; what takes longer is tried again


class Copier:
    """Consume, produce, commit the offsets in the transaction; abort and go back when told to, or by chance."""

    def __init__(self, given: argparse.Namespace, journal: TextIO) -> None:
        self._given = given
        self._journal = journal
        self._chance = random.Random(given.seed)
        self._batch: list[Message] = []
        settings: dict[str, object] = (
            {
                "bootstrap.servers": given.bootstrap,
                "reconnect.backoff.max.ms": 200,
                "metadata.recovery.strategy": "none",  # else send_offsets_to_transaction may hang: librdkafka #5511
            }
            | ({"debug": os.environ["COPIER_DEBUG"]} if "COPIER_DEBUG" in os.environ else {"log_level": 0})
        )
        self._source = Consumer(
            settings
            | {
                "group.id": given.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
            | _group_settings(given.protocol)
        )
        self._target = Producer(
            settings
            | {
                "transactional.id": given.transactional_id,
                "transaction.timeout.ms": given.transaction_timeout_ms,
            }
        )

    def run(self) -> None:
        self._retried(lambda: self._target.init_transactions(PATIENCE_S))
        self._source.subscribe([self._given.source], on_assign=self._assigned, on_revoke=self._revoked)
        while True:
            batch = self._fill()
            if batch:
                self._copy(batch)

    def _assigned(self, source: Consumer, parts: list[TopicPartition]) -> None:
        self._write("positioned", parts=[part.partition for part in parts])

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
        records = [(message.partition(), message.offset(), _text(message.value())) for message in batch]
        self._write("begin", records=records)
        sent: list[tuple[int, str, int | None]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset() if error is None else None
            sent.append((message.partition() or 0, _text(message.value()), offset))

        self._target.begin_transaction()
        outcome = "failed"
        try:
            for message in batch:
                index = message.partition() or 0
                self._target.produce(
                    self._given.target, message.value(), message.key(), index, on_delivery=delivered
                )
                self._target.poll(0)
            following = {message.partition(): (message.offset() or 0) + 1 for message in batch}
            offsets = [
                TopicPartition(self._given.source, index or 0, offset) for index, offset in following.items()
            ]
            group = self._source.consumer_group_metadata()
            self._retried(lambda: self._target.send_offsets_to_transaction(offsets, group, PATIENCE_S))
            self._target.flush(PATIENCE_S)
            if self._chance.random() < ABORTED_SHARE:
                raise _AbortWanted
            self._write("end")
            outcome = "unknown"
            self._retried(lambda: self._target.commit_transaction(PATIENCE_S))
            outcome = "ok"
        except (KafkaException, _AbortWanted) as error:
            if isinstance(error, KafkaException) and not _abortable(error):
                self._write("done", outcome=outcome, sent=sent, error=str(error))
                raise
            self._retried(lambda: self._target.abort_transaction(PATIENCE_S))
            outcome = "failed"
        self._write("done", outcome=outcome, sent=sent)
        if outcome == "failed":
            self._go_back()

    def _go_back(self) -> None:
        """To the committed positions; a rebalance meanwhile gives them as well."""
        self._write("positioned", parts=[])
        try:
            for part in self._source.committed(self._source.assignment(), PATIENCE_S):
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

    def _write(self, what: str, **more: object) -> None:
        self._journal.write(json.dumps({"what": what, "tick": time.monotonic_ns(), **more}) + "\n")
        self._journal.flush()


class _AbortWanted(Exception):
    """Chance wants this transaction aborted."""


def _abortable(error: KafkaException) -> bool:
    return bool(error.args[0].txn_requires_abort())


def _text(content: bytes | str | None) -> str:
    return content.decode() if isinstance(content, bytes) else content or ""


def _group_settings(protocol: str) -> dict[str, object]:
    if protocol == "consumer":
        return {"group.protocol": "consumer"}
    return {"session.timeout.ms": 3000, "heartbeat.interval.ms": 500}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "source", "target", "group", "transactional-id", "journal"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--protocol", default="classic", choices=["classic", "consumer"])
    parser.add_argument("--size", type=int, default=750)
    parser.add_argument("--transaction-timeout-ms", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with open(given.journal, "a") as journal:
        try:
            Copier(given, journal).run()
        except KafkaException as error:
            sys.exit(f"cannot go on: {error}")


if __name__ == "__main__":
    main()
