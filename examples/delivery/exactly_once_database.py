"""Exactly once into a database: the results and the position are saved in one commit of the database.

The group's committed offsets are not used: where to go on is a row beside the results. A worker that was replaced
without noticing it finds that the position has moved, and changes nothing.

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
    """What each customer has ordered so far, and of which orders that is the sum."""

    def __init__(self, address: str) -> None:
        self._postgres = address.startswith("postgresql:")
        if self._postgres:
            import psycopg

            self._database: Any = psycopg.connect(address)
        else:
            self._database = sqlite3.connect(address)
        self._expected: dict[tuple[str, int], int] = {}  # positions as this worker knows them
        for table in TABLES:
            self._execute(table)
        self._database.commit()

    def take_over(self, source: Consumer, parts: list[TopicPartition]) -> None:
        """Partitions came to this worker: go on where the database says."""
        for part in parts:
            place = (part.topic, part.partition)
            self._execute(BEGIN, *place)
            (part.offset,) = self._execute(POSITION, *place).fetchone()
            self._expected[place] = part.offset
        self._database.commit()
        source.assign(parts)

    def add(self, batch: list[Message]) -> None:
        """The results of a batch and the position after it, not yet committed."""
        for order in batch:
            self._execute(ADD, *customer_and_amount(order))
        for part in positions(batch):
            place = (part.topic, part.partition)
            if self._execute(ADVANCE, part.offset, *place, self._expected[place]).rowcount != 1:
                self._database.rollback()
                raise SystemExit(f"{part.topic}-{part.partition} has been taken over by another worker")
            self._expected[place] = part.offset

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
