"""At most once: commit the offsets, then process.

A crash between the two loses the batch: the next run starts after it. No record is processed twice.
For records of low value that must not be repeated: samples, metrics, push messages.
"""

from stream import batches, consumer, crash_point, options, positions


def main() -> None:
    given = options(__doc__).parse_args()
    source = consumer(given, "at-most-once")
    source.subscribe([given.topic])
    for number, batch in enumerate(batches(source, given), 1):
        source.commit(offsets=positions(batch), asynchronous=False)
        crash_point(given, number)
        for order in batch:
            print(order.partition(), order.offset(), order.value().decode(), flush=True)
    source.close()


if __name__ == "__main__":
    main()
