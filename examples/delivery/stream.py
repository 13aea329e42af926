"""What the examples of delivery semantics share: options, a consumer, batches, and a crash at the worst moment.

What makes the semantics is not in here: it is the order of the steps in each example's own loop.
"""

import argparse
import os
import signal
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition


def options(description: str) -> argparse.ArgumentParser:
    """The options of every example; its module docstring is its help."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-b", "--bootstrap", default="127.0.0.1:9092", help="where the broker is (%(default)s)"
    )
    parser.add_argument("--topic", default="shop-orders", help="the topic to read (%(default)s)")
    parser.add_argument(
        "--instance", default="1", help="the name of this worker among its like (%(default)s)"
    )
    parser.add_argument("--batch", type=int, default=50, help="orders to take at once (%(default)s)")
    parser.add_argument("--until-end", action="store_true", help="stop when all there is has been read")
    parser.add_argument(
        "--crash-at", type=int, default=0, metavar="N", help="die by SIGKILL between the two steps of batch N"
    )
    return parser


def consumer(given: argparse.Namespace, group: str) -> Consumer:
    """A member of a group that commits nothing by itself.

    It sees committed records only. A restarted worker has the name of the one that died (static membership), and so
    gets its partitions back at once instead of after the session timeout.
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
    """Batches of orders as they come; with --until-end they end when every assigned partition is read."""
    at_end: set[tuple[str, int]] = set()
    while True:
        found: list[Message] = []
        for message in source.consume(given.batch, timeout=1.0):
            error = message.error()
            place = (message.topic(), message.partition())
            if error is None:
                found.append(message)
                at_end.discard(place)
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(place)
            elif not error.retriable():
                raise KafkaException(error)
        if found:
            yield found
        owned = {(part.topic, part.partition) for part in source.assignment()}
        if given.until_end and owned and owned <= at_end:
            return


def customer_and_amount(order: Message) -> tuple[str, int]:
    """What an order says; a record that is none ends the example."""
    try:
        return order.key().decode(), int(order.value())
    except (AttributeError, TypeError, ValueError):
        place = f"{order.topic()}-{order.partition()} at offset {order.offset()}"
        raise SystemExit(
            f"{place}: no order, which has a customer as its key and an amount as its value. "
            "Fill another topic with orders.py, and name it here, too: --topic"
        ) from None


def positions(batch: list[Message]) -> list[TopicPartition]:
    """Where to go on after this batch, for each partition in it."""
    following = {(message.topic(), message.partition()): message.offset() + 1 for message in batch}
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in following.items()]


def crash_point(given: argparse.Namespace, number: int) -> None:
    """The power goes out here, if asked for: no handler runs, no buffer is flushed."""
    if number == given.crash_at:
        os.kill(os.getpid(), signal.SIGKILL)
