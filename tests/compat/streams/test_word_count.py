"""A Kafka Streams application with exactly_once_v2 counts right, however often it and the broker are killed.

It is the heaviest user of transactions there is: a consumer group with its own assignor, a repartition topic whose
records it deletes, a state store with a compacted changelog that it restores from after each crash, all of it written
in one transaction with the committed offsets.
"""

import random
import signal
from collections import Counter, defaultdict
from itertools import chain
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.eos.copying import CLIENT, SETTINGS
from tests.eos.processes import Mortal
from tests.support.broker import BrokerProcess
from tests.support.downloads import Unavailable, must_be_had
from tests.support.kafka_jars import java, streams_jars
from tests.support.reading import read_committed
from tests.support.waiting import until

WORDS = ["water", "stone", "channel", "field", "rain", "laurel", "mist", "terrace", "fern", "stream"]
LINES, TIMEOUT_S = 1500, 180.0
SOURCE = Path(__file__).parent / "WordCount.java"


class WordCount(Mortal):
    """The application, with its state in a folder that survives it."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        super().__init__(folder, "word-count")
        self._bootstrap = bootstrap
        self._jars = streams_jars()

    def _command(self) -> list[str]:
        return java(str(SOURCE), self._bootstrap, str(self._folder / "state"), jars=self._jars)


def lines(chance: random.Random) -> list[str]:
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, 8))) for _ in range(LINES)]


def counts(bootstrap: str) -> dict[str, list[int]]:
    """The numbers that were told of each word, in order."""
    found = defaultdict(list)
    for record in chain.from_iterable(read_committed(bootstrap, "counts").values()):
        found[record.key].append(int(record.value))
    return found


def wait_for(bootstrap: str, total: int) -> None:
    """Until so many counts are committed."""
    until(
        lambda: sum(map(len, counts(bootstrap).values())) >= total,
        f"fewer than {total} counts are committed",
        TIMEOUT_S,
    )


def test_every_word_is_counted_once(tmp_path: Path) -> None:
    """With no cache in the store each word gives 1, 2, 3 ... without a gap or a repetition."""
    chance = random.Random(1)
    text = lines(chance)
    expected = Counter(word for line in text for word in line.split())
    with BrokerProcess(tmp_path, SETTINGS) as server:
        try:
            application = WordCount(tmp_path, server.bootstrap)
        except Unavailable as error:
            must_be_had("Kafka Streams", error)
        admin = AdminClient(CLIENT | {"bootstrap.servers": server.bootstrap})
        for future in admin.create_topics([NewTopic(name, 3, 1) for name in ("lines", "counts")]).values():
            future.result(30)
        producer = Producer(CLIENT | {"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
        application.start()
        try:
            for part, kill in enumerate(["application", "broker", "both", "nobody"], 1):
                for number in range((part - 1) * LINES // 4, part * LINES // 4):
                    producer.produce("lines", text[number], str(number))
                producer.flush()
                words = sum(len(line.split()) for line in text[: part * LINES // 4])
                wait_for(server.bootstrap, words if kill == "nobody" else words - chance.randint(1, 500))
                if kill in ("application", "both"):
                    application.kill()
                if kill in ("broker", "both"):
                    server.stop(signal.SIGKILL)
                    server.start()
                if kill in ("application", "both"):
                    application.start()
        finally:
            application.kill()
        assert counts(server.bootstrap) == {word: list(range(1, n + 1)) for word, n in expected.items()}
    assert "Traceback" not in server.log.read_text()
