"""Fills a topic of three partitions with orders, as input of the examples.

The producer is idempotent: it neither loses nor duplicates an order. The customer is the key, so the orders of one
customer stay in order; the value is an amount.
"""

import argparse
import random

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

CUSTOMERS = ["alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi"]


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    try:
        admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def send(bootstrap: str, topic: str, count: int) -> None:
    """Produce with idempotence and acks=all: a retry after a lost response neither duplicates nor reorders records."""
    chance = random.Random(count)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            raise KafkaException(error)

    for _ in range(count):
        producer.produce(topic, str(chance.randint(1, 99)), chance.choice(CUSTOMERS), on_delivery=delivered)
        producer.poll(0)
    producer.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-b", "--bootstrap", default="127.0.0.1:9092", help="the broker's address (%(default)s)")
    parser.add_argument("--topic", default="shop-orders", help="the topic to fill (%(default)s)")
    parser.add_argument("--count", type=int, default=1000, help="how many orders (%(default)s)")
    given = parser.parse_args()
    create(given.bootstrap, given.topic)
    send(given.bootstrap, given.topic, given.count)
    print(f"{given.count} orders are in {given.topic}")


if __name__ == "__main__":
    main()
