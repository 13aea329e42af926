"""Exactly once into a database: the results and the offsets are saved in one commit of the database.

The group's committed offsets are not used: the next offset is a row beside the results. A worker that was replaced
without noticing it finds that the offset has changed, and changes nothing.

--database is a file for SQLite, or an address like postgresql://user@host/name for PostgreSQL (pip install psycopg).
"""

import sqlite3
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition
from stream import batches, consumer, crash_point, customer_and_amount, options, positions

TABLES = [
    "CREATE TABLE IF NOT EXISTS totals (customer TEXT PRIMARY KEY, amount BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS positions (topic TEXT, part INT, following BIGINT, PRIMARY KEY (topic, part))",
]
ADD = """INSERT INTO totals VALUES (?, ?)
         ON CONFLICT (customer) DO UPDATE SET amount = totals.amount + excluded.amount"""
BEGIN = "INSERT INTO positions VALUES (?, ?, 0) ON CONFLICT DO NOTHING"
POSITION = "SELECT following FROM positions WHERE topic = ? AND part = ?"
ADVANCE = "UPDATE positions SET following = ? WHERE topic = ? AND part = ? AND following = ?"


class Totals:
    """The total of each customer, and the offsets up to which orders are counted."""

    def __init__(self, address: str) -> None:
        self._postgres = address.startswith("postgresql:")
        if self._postgres:
            import psycopg

            self._database: Any = psycopg.connect(address)
        else:
            self._database = sqlite3.connect(address)
        self._expected: dict[tuple[str, int], int] = {}  # the offsets this worker has read and written
        for table in TABLES:
            self._execute(table)
        self._database.commit()

    def take_over(self, source: Consumer, parts: list[TopicPartition]) -> None:
        """Start newly assigned partitions at the offsets in the database."""
        for part in parts:
            key = (part.topic, part.partition)
            self._execute(BEGIN, *key)
            (part.offset,) = self._execute(POSITION, *key).fetchone()
            self._expected[key] = part.offset
        self._database.commit()
        source.assign(parts)

    def add(self, batch: list[Message]) -> None:
        """Add the results of a batch and the offsets after it, without a commit."""
        for order in batch:
            self._execute(ADD, *customer_and_amount(order))
        for part in positions(batch):
            key = (part.topic, part.partition)
            if self._execute(ADVANCE, part.offset, *key, self._expected[key]).rowcount != 1:
                self._database.rollback()
                raise SystemExit(f"{part.topic}-{part.partition} has been taken over by another worker")
            self._expected[key] = part.offset

    def commit(self) -> None:
        self._database.commit()

    def _execute(self, statement: str, *values: object) -> Any:
        return self._database.execute(statement.replace("?", "%s") if self._postgres else statement, values)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--database", default="totals.sqlite", help="file or address (%(default)s)")
    given = parser.parse_args()
    totals = Totals(given.database)
    source = consumer(given, "exactly-once-database")
    source.subscribe([given.topic], on_assign=totals.take_over)
    for number, batch in enumerate(batches(source, given), 1):
        totals.add(batch)
        crash_point(given, number)
        totals.commit()
    source.close()


if __name__ == "__main__":
    main()
