"""Exactly once from topic to topic: the results and the position are saved in one transaction.

Readers of the results (isolation.level=read_committed) see all of a batch or nothing of it. After a crash the next run
starts at the last committed position, and what the crashed one had written since then is aborted.
"""

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from stream import batches, consumer, crash_point, customer_and_amount, options, positions


def invoice(order: Message) -> str:
    customer, amount = customer_and_amount(order)
    return f"{customer} owes {amount}"


def begin_again(source: Consumer) -> None:
    """After an abort: back to the committed positions, since the consumer itself has gone on."""
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
            "metadata.recovery.strategy": "none",  # else a restarted broker may be waited for in vain: librdkafka #5511
        }
    )
    target.init_transactions()  # waits for, or aborts, what a crashed worker of this name left, and fences it
    source.subscribe([given.topic])
    for number, batch in enumerate(batches(source, given), 1):
        member = source.consumer_group_metadata()  # as of now: a worker that loses its place must not commit
        target.begin_transaction()
        try:
            for order in batch:
                target.produce(given.results, invoice(order), order.key())
            target.send_offsets_to_transaction(positions(batch), member)
            target.flush()  # all of it is in the log now, and no reader of committed records sees it
            crash_point(given, number)
            target.commit_transaction()
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise  # somebody else has taken this worker's place
            target.abort_transaction()
            begin_again(source)
    source.close()


if __name__ == "__main__":
    main()
