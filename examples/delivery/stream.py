"""Shared by the examples of delivery semantics: options, a consumer, batches, and a crash at the worst moment.

The semantics themselves are the order of the steps in each example's own loop.
"""

import argparse
import os
import signal
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition


def options(description: str) -> argparse.ArgumentParser:
    """The options of every example; its module docstring is its help."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-b", "--bootstrap", default="127.0.0.1:9092", help="the broker's address (%(default)s)")
    parser.add_argument("--topic", default="shop-orders", help="the topic to read (%(default)s)")
    parser.add_argument("--instance", default="1", help="the name of this worker in the group (%(default)s)")
    parser.add_argument("--batch", type=int, default=50, help="orders per batch (%(default)s)")
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the topic")
    parser.add_argument(
        "--crash-at", type=int, default=0, metavar="N", help="die by SIGKILL between the two steps of batch N"
    )
    return parser


def consumer(given: argparse.Namespace, group: str) -> Consumer:
    """A consumer of a group, without auto-commit, that sees committed records only.

    With static membership a restarted worker gets the partitions of the crashed one at once, not after the session
    timeout.
    """
    return Consumer(
        {
            "bootstrap.servers": given.bootstrap,
            "group.id": group,
            "group.instance.id": f"{group}-{given.instance}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )


def batches(source: Consumer, given: argparse.Namespace) -> Iterator[list[Message]]:
    """Batches of orders as they arrive; with --until-end up to the end of every assigned partition."""
    at_end: set[tuple[str, int]] = set()
    while True:
        found: list[Message] = []
        for message in source.consume(given.batch, timeout=1.0):
            error = message.error()
            partition = (message.topic(), message.partition())
            if error is None:
                found.append(message)
                at_end.discard(partition)
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(partition)
            elif not error.retriable():
                raise KafkaException(error)
        if found:
            yield found
        owned = {(part.topic, part.partition) for part in source.assignment()}
        if given.until_end and owned and owned <= at_end:
            return


def customer_and_amount(order: Message) -> tuple[str, int]:
    """The customer and amount of an order; any other record ends the example."""
    try:
        return order.key().decode(), int(order.value())
    except (AttributeError, TypeError, ValueError):
        where = f"{order.topic()}-{order.partition()} at offset {order.offset()}"
        raise SystemExit(
            f"{where}: not an order, which has a customer as its key and an amount as its value. "
            "Fill another topic with orders.py, and name it here, too: --topic"
        ) from None


def positions(batch: list[Message]) -> list[TopicPartition]:
    """The next offset of each partition of a batch."""
    following = {(message.topic(), message.partition()): message.offset() + 1 for message in batch}
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in following.items()]


def crash_point(given: argparse.Namespace, number: int) -> None:
    """Crash here if --crash-at names this batch: no handler runs, no buffer is flushed."""
    if number == given.crash_at:
        os.kill(os.getpid(), signal.SIGKILL)
