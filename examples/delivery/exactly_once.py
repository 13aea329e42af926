"""Exactly once from topic to topic: the results and the offsets are committed in one transaction.

Consumers of the results (isolation.level=read_committed) see a whole batch or nothing of it. After a crash the next run
starts at the last committed offsets, and the open transaction of the crashed one is aborted.
"""

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from stream import batches, consumer, crash_point, customer_and_amount, options, positions


def invoice(order: Message) -> str:
    customer, amount = customer_and_amount(order)
    return f"{customer} owes {amount}"


def rewind(source: Consumer) -> None:
    """Seek to the committed offsets after an abort: the consumer itself is past them."""
    for part in source.committed(source.assignment()):
        source.seek(TopicPartition(part.topic, part.partition, max(part.offset, 0)))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--results", default="invoices", help="the topic to write (%(default)s)")
    given = parser.parse_args()
    source = consumer(given, "exactly-once")
    target = Producer(
        {
            "bootstrap.servers": given.bootstrap,
            "transactional.id": f"exactly-once-{given.instance}",
            "metadata.recovery.strategy": "none",  # a restarted broker may never be found otherwise: librdkafka #5511
        }
    )
    target.init_transactions()  # completes or aborts the transaction of a crashed worker of this name, and fences it
    source.subscribe([given.topic])
    for number, batch in enumerate(batches(source, given), 1):
        member = source.consumer_group_metadata()  # current: a worker that has lost its partitions must not commit
        target.begin_transaction()
        try:
            for order in batch:
                target.produce(given.results, invoice(order), order.key())
            target.send_offsets_to_transaction(positions(batch), member)
            target.flush()  # all records are in the log now; read_committed consumers do not see them yet
            crash_point(given, number)
            target.commit_transaction()
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise  # fenced: another worker has this transactional id
            target.abort_transaction()
            rewind(source)
    source.close()


if __name__ == "__main__":
    main()
