"""The output of queries from topic to topic under kills: every message once and in order, every hour counted once."""

from collections import Counter
from pathlib import Path

from confluent_kafka.admin import NewTopic
from tests.spark.chaos.chaos import HOUR, PARTITIONS, Chaos
from tests.spark.chaos.program import COPIES, COUNTS, SOURCE, TOPICS
from tests.support.broker import BrokerProcess
from tests.support.reading import read_committed

LATE_HOURS = 10  # the watermark of the program: so long after its end an hour is told


class Copies:
    """Topics with a copy of the messages, and with counts of them."""

    options = {"to": TOPICS, "batch": "1000"}
    topics = [NewTopic(COPIES, PARTITIONS), NewTopic(COUNTS, 1)]

    def __init__(self, server: BrokerProcess, folder: Path) -> None:
        self._server = server

    def count(self) -> int:
        return len(self._values(COPIES))

    def look(self, *, still: bool) -> None:
        """Open transactions hide what is under way; that the rest is whole is seen at the end."""

    def check(self, pipeline: Chaos) -> str:
        """All is there, each message and each hour once; what was done, as a line for people."""
        pipeline.feed((LATE_HOURS + 2) * HOUR)
        hours = range((pipeline.fed - 1) // HOUR - LATE_HOURS)  # those that are told
        pipeline.wait(lambda: len(self._values(COUNTS)) >= len(hours), "all counts")
        pipeline.finish()
        sent, copied = self._values(SOURCE), self._values(COPIES)
        lost, doubled = Counter(sent) - Counter(copied), Counter(copied) - Counter(sent)
        assert not lost and not doubled, f"lost {list(lost)[:10]}, doubled {list(doubled)[:10]}"
        self._check_order()
        counts = self._pairs(COUNTS)
        expected = [(str(hour * 3600), str(HOUR)) for hour in hours]
        assert sorted(counts, key=lambda one: int(one[0])) == expected
        return f"{len(copied)} messages copied, {len(counts)} hours counted"

    def _check_order(self) -> None:
        """The messages of a key are in the order in which they were sent."""
        by_key: dict[str, list[int]] = {}
        for key, value in self._pairs(COPIES):
            by_key.setdefault(key, []).append(int(value))
        for key, values in by_key.items():
            assert values == sorted(values), f"key {key} is out of order"

    def _pairs(self, topic: str) -> list[tuple[str, str]]:
        found = read_committed(self._server.bootstrap, topic)
        return [(record.key, record.value) for records in found.values() for record in records]

    def _values(self, topic: str) -> list[str]:
        return [value for _, value in self._pairs(topic)]
