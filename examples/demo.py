"""Streams the activity of a website through a Levada broker, with a stock Kafka client on both ends, and through Spark.

`make demo` runs it. It starts a broker with a temporary data directory, creates topics, produces page views, searches,
clicks, scrolling and ads with confluent-kafka, and consumes them. Meanwhile `levada pipeline run activity` writes
counts, top pages and sessions to topics. At the end `levada pipeline report activity` counts all events and draws a
chart. With KEEP=1 the broker, the pipeline and a slow stream of events stay until Ctrl-C, for the command line.
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
from dataclasses import dataclass, field
from datetime import UTC, datetime

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from demo_spark import QUIET, SECONDS, Analysis, conclude
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from levada.pipelines.flows.samples import website

TOPICS = {"page-views": 3, "searches": 1, "clicks": 1, "scrolls": 1, "ads": 1}
RATE = int(os.environ.get("DEMO_RATE", "3000"))  # events a second at noon
TRICKLE = 50  # events a second while KEEP=1 keeps it running
KEEP = os.environ.get("KEEP", "0") not in ("", "0")
DEFAULT_PORT = 9092
TICK_S = 0.02


@dataclass
class Seen:
    """The events of one topic, sent and received."""

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
        self.ends: dict[TopicPartition, int] = {}  # the end offsets, once it has stopped
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
        """Stop sending, wait up to ten seconds for all events to come back, stop receiving."""
        sender, receiver = self._threads
        self._sending.set()
        sender.join()
        self._producer.flush(10)
        del self._producer  # otherwise it tries to reconnect after the broker has stopped
        deadline = time.monotonic() + 10
        while self.missing() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._receiving.set()
        receiver.join()
        for partition in self._consumer.assignment():
            _, self.ends[partition] = self._consumer.get_watermark_offsets(partition, timeout=10)
        self._consumer.close()

    def missing(self) -> int:
        return sum(seen.sent - seen.received for seen in self.seen.values())

    def _send(self) -> None:
        events = website(random.Random(2026), lambda: datetime.now(UTC))
        due = 0.0
        while not self._sending.wait(TICK_S):
            day = (time.monotonic() - self.started) / max(SECONDS, 1)
            surge = 3 if 0.5 < day < 0.6 else 1  # a sale opens at half time
            due += self.rate * TICK_S * surge
            for event in itertools.islice(events, int(due)):
                self._producer.produce(event.topic, event.value, event.key, on_delivery=self._delivered)
                self.seen[event.topic].sent += 1
            due -= int(due)
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
            waited = datetime.now(UTC) - datetime.fromisoformat(event["at"])
            seen.latencies_ms.append(waited.total_seconds() * 1000)
            if "query" in event:
                self.queries[event["query"]] += 1
            elif topic == "page-views":
                self.pages[event["page"]] += 1


class Broker:
    """A broker process, started with `levada start`."""

    def __init__(self) -> None:
        self._data = tempfile.mkdtemp(prefix="levada-demo-")
        began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "levada", "start", "--data", self._data, "--port", str(_free_port()),
             "--set", "levada.metrics.listener=127.0.0.1:0", "--set", "levada.log.level=warning"],
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
        """Wait until the broker prints its addresses."""
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
        """Send SIGTERM; return the exit code."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(20)
        shutil.rmtree(self._data, ignore_errors=True)
        return code


def _free_port() -> int:
    """9092 if it is free, so that the tools need no -b; otherwise 0, any free port."""
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
    """Show the progress: a live table in a terminal, otherwise a line every other second."""
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
        console.print(f"  {elapsed_s:4.0f} s   {received:8,} events received, {stream.missing():,} on the way")


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


def keep_running(broker: Broker, analysis: Analysis, console: Console) -> None:
    console.print(
        f"\nKEEP=1: the broker stays at {broker.bootstrap}, with {TRICKLE} events a second. Try in another terminal:"
    )
    where = "" if broker.bootstrap.endswith(f":{DEFAULT_PORT}") else f" -b {broker.bootstrap}"
    commands = [f"{command}{where}" for command in ("topic list", "topic describe page-views")]
    commands += [f"consume activity-counts{where}", f"group lag activity{where}"]
    commands.append(f"pipeline status activity --home {analysis.home}")
    for command in commands:
        console.print(f"  {os.path.dirname(sys.executable)}/levada {command}", highlight=False, soft_wrap=True)
    console.print("Ctrl-C ends it.")
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print()


def show(broker: Broker, analysis: Analysis, console: Console) -> int:
    """Run the stream and show the results."""
    stream = Stream(broker.bootstrap)
    stream.start()
    to_the_end = False
    try:
        watch(stream, console)
        elapsed_s = time.monotonic() - stream.started
        if KEEP:
            stream.rate = TRICKLE
            summary(stream, elapsed_s, console)
            keep_running(broker, analysis, console)
        else:
            to_the_end = True
    except KeyboardInterrupt:
        elapsed_s = time.monotonic() - stream.started
    stream.stop()
    summary(stream, elapsed_s, console)
    if stream.missing() or stream.failures:
        return 1
    return conclude(analysis, stream.ends, console) if to_the_end else 0


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the broker is stopped, too
    console = Console(highlight=False)
    broker = Broker()
    console.print(f"A Levada broker is up after {broker.start_s:.2f} s.")
    console.print(f"  connect   bootstrap.servers={broker.bootstrap}", soft_wrap=True)
    console.print(f"  metrics   {broker.metrics}", soft_wrap=True)
    code = 1
    analysis = None
    try:
        create_topics(broker.bootstrap)
        topics = ", ".join(f"{name} ({count})" for name, count in TOPICS.items())
        console.print(f"  topics    {topics}", soft_wrap=True)
        analysis = Analysis(broker.bootstrap)
        console.print(
            f"\nA website's activity for {SECONDS:.0f} s through confluent-kafka, followed by a pipeline on Spark; "
            "a sale opens half way.\n",
            soft_wrap=True,
        )
        code = show(broker, analysis, console)
    finally:
        if analysis is not None:
            analysis.end()
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
