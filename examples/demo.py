"""Twenty seconds of a website's activity through a Levada broker, with a stock Kafka client on both ends.

`make demo` runs it. It starts a broker of its own with its data in a temporary directory, creates three topics,
streams page views, searches and clicks into them with confluent-kafka, reads them back as they come, and sums up.
With KEEP=1 the broker and a trickle of events stay until Ctrl-C, to look around with the command line.
"""

import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

TOPICS = {"page-views": 6, "searches": 3, "clicks": 3}
SECONDS = float(os.environ.get("DEMO_SECONDS", "15"))
RATE = int(os.environ.get("DEMO_RATE", "3000"))  # events a second at noon
TRICKLE = 50  # events a second while KEEP=1 keeps it running
KEEP = os.environ.get("KEEP", "0") not in ("", "0")
DEFAULT_PORT = 9092
TICK_S = 0.02
QUIET: dict[str, str | int | float | bool] = {
    "log.connection.close": False,
    "log_level": 4,
}  # librdkafka tells of problems only

PAGES = [
    "/", "/products/levada-jacket", "/products/trail-shoes", "/sale", "/products/rain-poncho", "/cart", "/blog/madeira",
    "/products/head-lamp", "/checkout", "/products/water-bottle", "/about", "/blog/how-channels-share-water",
    "/account", "/products/hiking-poles", "/help/returns", "/products/wool-socks", "/stores", "/jobs",
]  # fmt: skip
QUERIES = [
    "rain jacket",
    "trail shoes 42",
    "head lamp",
    "wool socks",
    "poncho",
    "poles carbon",
    "gift card",
    "returns",
]
DEVICES = ["phone", "phone", "phone", "laptop", "laptop", "tablet"]
COUNTRIES = ["PT", "DE", "US", "GB", "FR", "BR", "JP"]
ELEMENTS = ["add-to-cart", "buy-now", "next-picture", "size-guide", "ad-banner", "newsletter", "share"]


def activity(chance: random.Random) -> Iterator[tuple[str, str, dict[str, object]]]:
    """What visitors do, without end: topic, visitor, event. Few pages get most of the views, as on any site."""
    weights = [1 / rank for rank in range(1, len(PAGES) + 1)]
    visitors: list[dict[str, object]] = []
    for number in itertools.count(1):
        if len(visitors) < 400 or chance.random() < 0.02:
            visitors.append(
                {
                    "visitor": f"v{number:07d}",
                    "device": chance.choice(DEVICES),
                    "country": chance.choice(COUNTRIES),
                    "page": None,
                }
            )
        visitor = chance.choice(visitors)
        if chance.random() < 0.03 and len(visitors) > 100:
            visitors.remove(visitor)
        event = dict(visitor, at=time.time())
        kind = chance.random()
        if visitor["page"] is None or kind < 0.6:
            page = chance.choices(PAGES, weights)[0]
            event |= {"page": page, "referrer": visitor["page"], "scrolled": round(chance.random(), 2)}
            visitor["page"] = page
            yield "page-views", str(visitor["visitor"]), event
        elif kind < 0.75:
            results = chance.randrange(40)
            yield (
                "searches",
                str(visitor["visitor"]),
                event | {"query": chance.choice(QUERIES), "results": results},
            )
        else:
            place = [chance.randrange(1280), chance.randrange(2400)]
            yield (
                "clicks",
                str(visitor["visitor"]),
                event | {"element": chance.choice(ELEMENTS), "at_pixel": place},
            )


@dataclass
class Seen:
    """What came back of one topic."""

    sent: int = 0
    received: int = 0
    bytes: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


class Stream:
    """Sends events on one thread and reads them back on another."""

    def __init__(self, bootstrap: str) -> None:
        self.seen = {topic: Seen() for topic in TOPICS}
        self.pages: Counter[str] = Counter()
        self.queries: Counter[str] = Counter()
        self.failures = 0
        self.rate = RATE
        self.started = time.monotonic()
        self._sending = threading.Event()
        self._receiving = threading.Event()
        client = QUIET | {"bootstrap.servers": bootstrap}
        self._producer = Producer(client | {"linger.ms": 2, "enable.idempotence": True})
        self._consumer = Consumer(
            client
            | {
                "group.id": "demo",  # never joined: partitions are assigned by hand
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
            }
        )
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]

    def start(self) -> None:
        self._consumer.assign(
            [TopicPartition(topic, index, 0) for topic, count in TOPICS.items() for index in range(count)]
        )
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop sending, wait until all has come back (or ten seconds), stop receiving."""
        sender, receiver = self._threads
        self._sending.set()
        sender.join()
        self._producer.flush(10)
        del self._producer  # or it would look for the broker after its end
        deadline = time.monotonic() + 10
        while self.missing() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._receiving.set()
        receiver.join()
        self._consumer.close()

    def missing(self) -> int:
        return sum(seen.sent - seen.received for seen in self.seen.values())

    def _send(self) -> None:
        events = activity(random.Random(2026))
        owed = 0.0
        while not self._sending.wait(TICK_S):
            day = (time.monotonic() - self.started) / max(SECONDS, 1)
            surge = 3 if 0.5 < day < 0.6 else 1  # a sale opens at half time
            owed += self.rate * TICK_S * surge
            for topic, visitor, event in itertools.islice(events, int(owed)):
                self._producer.produce(topic, json.dumps(event), visitor, on_delivery=self._delivered)
                self.seen[topic].sent += 1
            owed -= int(owed)
            self._producer.poll(0)

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.failures += 1

    def _receive(self) -> None:
        while not self._receiving.is_set():
            message = self._consumer.poll(0.05)
            if message is None or message.error() is not None:
                continue
            topic, value = message.topic() or "", message.value() or b""
            event = json.loads(value)
            seen = self.seen[topic]
            seen.received += 1
            seen.bytes += len(value)
            seen.latencies_ms.append((time.time() - event["at"]) * 1000)
            if "query" in event:
                self.queries[event["query"]] += 1
            elif topic == "page-views":
                self.pages[event["page"]] += 1


class Broker:
    """A broker in a process of its own, as `levada start` runs it."""

    def __init__(self) -> None:
        self._data = tempfile.mkdtemp(prefix="levada-demo-")
        began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "levada", "start", "--data", self._data, "--port", str(_free_port()),
             "--set", "levada.metrics.listener=127.0.0.1:0"],
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.bootstrap, self.metrics = "", ""
        try:
            self._listen()
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - began

    def _listen(self) -> None:
        """Wait until it says where to connect."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = line.split()
            if words[:1] == ["connect"]:
                self.bootstrap = words[1].removeprefix("bootstrap.servers=")
            if words[:1] == ["metrics"]:
                self.metrics = words[1]
                return
        raise SystemExit("the broker did not start")

    def stop(self) -> int:
        """SIGTERM, as an operator would; the exit code."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(20)
        shutil.rmtree(self._data, ignore_errors=True)
        return code


def _free_port() -> int:
    """9092 if nobody has it, so that the tools find the demo without -b; else any."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            return 0
    return DEFAULT_PORT


def create_topics(bootstrap: str) -> None:
    admin = AdminClient(QUIET | {"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, count, 1) for name, count in TOPICS.items()]).values():
        future.result(10)


def table(stream: Stream, elapsed_s: float) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("TOPIC", "SENT", "RECEIVED", "EVENTS/S", "MB", "P50 MS", "P99 MS"):
        shown.add_column(name, justify="left" if name == "TOPIC" else "right")
    for topic, seen in stream.seen.items():
        shown.add_row(
            topic,
            f"{seen.sent:,}",
            f"{seen.received:,}",
            f"{seen.received / max(elapsed_s, 0.001):,.0f}",
            f"{seen.bytes / 1e6:.1f}",
            f"{seen.percentile(0.5):.1f}",
            f"{seen.percentile(0.99):.1f}",
        )
    return shown


def ranking(title: str, counts: Counter[str]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column(title)
    shown.add_column("", justify="right")
    for name, count in counts.most_common(5):
        shown.add_row(name, f"{count:,}")
    return shown


def progress(stream: Stream, elapsed_s: float) -> Group:
    done = min(elapsed_s / SECONDS, 1)
    bar = "█" * int(done * 40) + "░" * (40 - int(done * 40))
    return Group(Text(f"{bar} {elapsed_s:4.0f} s of {SECONDS:.0f}"), table(stream, elapsed_s))


def watch(stream: Stream, console: Console) -> None:
    """Show how it goes: a live table in a terminal, a line every other second elsewhere."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=8, transient=True) as live:
            while (elapsed_s := time.monotonic() - stream.started) < SECONDS:
                live.update(progress(stream, elapsed_s))
                time.sleep(0.125)
        return
    while (elapsed_s := time.monotonic() - stream.started) < SECONDS:
        time.sleep(min(2, max(SECONDS - elapsed_s, 0.01)))
        received = sum(seen.received for seen in stream.seen.values())
        elapsed_s = time.monotonic() - stream.started
        console.print(
            f"  {elapsed_s:4.0f} s   {received:8,} events received, {stream.missing():,} on the way"
        )


def summary(stream: Stream, elapsed_s: float, console: Console) -> None:
    console.print()
    console.print(table(stream, elapsed_s))
    console.print()
    console.print(ranking("TOP PAGES", stream.pages))
    console.print()
    console.print(ranking("TOP SEARCHES", stream.queries))
    console.print()
    sent = sum(seen.sent for seen in stream.seen.values())
    received = sum(seen.received for seen in stream.seen.values())
    verdict = "nothing lost" if received == sent and not stream.failures else "SOMETHING IS MISSING"
    console.print(f"{sent:,} events sent, {received:,} received: {verdict}.", style="bold")


def keep_running(broker: Broker, console: Console) -> None:
    console.print(
        f"\nKEEP=1: the broker stays at {broker.bootstrap}, with {TRICKLE} events a second. Try in another terminal:"
    )
    where = "" if broker.bootstrap.endswith(f":{DEFAULT_PORT}") else f" -b {broker.bootstrap}"
    for command in ("topic list", "topic describe page-views", "consume searches --from -5"):
        console.print(
            f"  {os.path.dirname(sys.executable)}/levada {command}{where}", highlight=False, soft_wrap=True
        )
    console.print("Ctrl-C ends it.")
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print()


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it as Ctrl-C does, the broker with it
    console = Console(highlight=False)
    broker = Broker()
    console.print(f"A Levada broker is up after {broker.start_s:.2f} s.")
    console.print(f"  connect   bootstrap.servers={broker.bootstrap}", soft_wrap=True)
    console.print(f"  metrics   {broker.metrics}", soft_wrap=True)
    code = 1
    try:
        create_topics(broker.bootstrap)
        topics = ", ".join(f"{name} ({count} partitions)" for name, count in TOPICS.items())
        console.print(f"  topics    {topics}", soft_wrap=True)
        console.print(
            f"\nA website's activity for {SECONDS:.0f} s through confluent-kafka; a sale opens half way.\n"
        )
        stream = Stream(broker.bootstrap)
        stream.start()
        try:
            watch(stream, console)
            elapsed_s = time.monotonic() - stream.started
            if KEEP:
                stream.rate = TRICKLE
                summary(stream, elapsed_s, console)
                keep_running(broker, console)
        except KeyboardInterrupt:
            elapsed_s = time.monotonic() - stream.started
        stream.stop()
        summary(stream, elapsed_s, console)
        code = int(stream.missing() != 0 or stream.failures != 0)
    finally:
        stopped = broker.stop()
        console.print(
            f"The broker {'stopped cleanly' if stopped == 0 else f'ended with code {stopped}'}; its data is gone."
        )
    return code or int(stopped != 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
