"""At least once: process, then commit the offsets.

A crash between the two repeats the batch: the next run starts before it. No record is lost.
For idempotent processing: writing a row by its key, warming a cache, replacing a file.
"""

from stream import batches, consumer, crash_point, options, positions


def main() -> None:
    given = options(__doc__).parse_args()
    source = consumer(given, "at-least-once")
    source.subscribe([given.topic])
    for number, batch in enumerate(batches(source, given), 1):
        for order in batch:
            print(order.partition(), order.offset(), order.value().decode(), flush=True)
        crash_point(given, number)
        source.commit(offsets=positions(batch), asynchronous=False)
    source.close()


if __name__ == "__main__":
    main()
