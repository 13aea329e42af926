"""Loads by real clients: librdkafka through confluent-kafka, and Kafka's own Java tools.

They show what users see. Clients are often the limit themselves: then the broker's CPU a megabyte is the figure to
compare, and the row says so.
"""

import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.brokers import java_command
from bench.generator.outcome import Meter, Outcome, run_module
from bench.generator.wire import BrokerError

CHUNK = 1_000  # messages handed to or taken from librdkafka with one call
QUEUED_MESSAGES, QUEUED_BYTES = 100_000, 128 << 20  # its queue holds so many messages; memory stays small
TOOL_TIMEOUT_S = 180.0
JAVA_OPTIONS = ("-Xmx512M", "-Xms512M", "-XX:+UseG1GC")


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """So many messages through one client with its default settings."""

    port: int = 0
    topic: str = ""
    pid: int = 0
    action: str = "produce"  # or consume
    messages: int = 0
    value_bytes: int = 1_024
    partitions: int = 1

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


def produce(load: ClientLoad) -> Outcome:
    """With librdkafka's own batching; only acks is Kafka's old default, so that no replication is waited for."""
    failures: list[str] = []
    producer = Producer({"bootstrap.servers": load.bootstrap, "acks": 1})
    producer.list_topics(load.topic, 10)
    queued_max = min(QUEUED_MESSAGES, QUEUED_BYTES // load.value_bytes)
    chunk = [{"value": b"v" * load.value_bytes} for _ in range(CHUNK)]
    meter, started = Meter(load.pid), time.perf_counter()
    for number in range(load.messages // CHUNK):
        while len(producer) > queued_max - CHUNK:
            producer.poll(0.001)
        accepted = producer.produce_batch(load.topic, chunk, partition=number % load.partitions)
        if accepted != CHUNK:
            failures.append(f"{CHUNK - accepted} messages were refused")
    left = producer.flush(60)
    seconds = time.perf_counter() - started
    if left or failures:
        raise BrokerError(f"librdkafka kept {left} messages: {failures[:1]}")
    messages = load.messages // CHUNK * CHUNK
    return meter.outcome(seconds, messages, messages * load.value_bytes, [])


def consume(load: ClientLoad) -> Outcome:
    """All partitions by assignment from their start, until so many messages have come."""
    settings = {"bootstrap.servers": load.bootstrap, "group.id": "bench", "enable.auto.commit": False}
    # A broker that fills the queue of librdkafka would be punished by a pause of a second: make it short for all.
    consumer = Consumer({**settings, "fetch.queue.backoff.ms": 5})
    consumer.assign([TopicPartition(load.topic, index, 0) for index in range(load.partitions)])
    first = consumer.consume(1, 30)
    meter, started, messages = Meter(load.pid), time.perf_counter(), len(first)
    while messages < load.messages:
        taken = consumer.consume(min(CHUNK, load.messages - messages), 10)
        if not taken:
            raise BrokerError(f"only {messages} of {load.messages} messages came")
        messages += len(taken)
    seconds = time.perf_counter() - started
    outcome = meter.outcome(seconds, messages, messages * load.value_bytes, [])
    consumer.close()
    return outcome


def run(load: ClientLoad) -> Outcome:
    """In a process of its own."""
    return run_module("bench.generator.clients", asdict(load))


def producer_performance(load: ClientLoad) -> Outcome:
    """Kafka's ProducerPerformance, its producer at default settings but acks=1."""
    command = java_command(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", load.topic, "--num-records", str(load.messages), "--record-size", str(load.value_bytes)),
        *("--throughput", "-1", "--bootstrap-server", load.bootstrap, "--command-property", "acks=1"),
        options=JAVA_OPTIONS,
    )
    meter = Meter(load.pid)
    text = _output(command)
    found = re.search(r"^(\d+) records sent, ([\d.]+) records/sec .*99\.9th", text, re.MULTILINE)
    if found is None:
        raise BrokerError(f"ProducerPerformance said: {text[-500:]}")
    messages, rate = int(found[1]), float(found[2])
    outcome = meter.outcome(messages / rate, messages, messages * load.value_bytes, [])
    line = text[found.start() : found.end()]
    percentiles = re.findall(r"([\d.]+) ms (50th|99th|99\.9th)", line)
    outcome.latency = {f"p{name[:-2].replace('.', '')}_ms": float(value) for value, name in percentiles}
    return outcome


def end_to_end_latency(load: ClientLoad) -> Outcome:
    """Kafka's EndToEndLatency: one message after the other, each consumed before the next is produced."""
    command = java_command(
        "org.apache.kafka.tools.EndToEndLatency",
        *("--bootstrap-server", load.bootstrap, "--topic", load.topic, "--num-records", str(load.messages)),
        *("--producer-acks", "1", "--record-size", str(load.value_bytes)),
        options=JAVA_OPTIONS,
    )
    meter = Meter(load.pid)
    started = time.perf_counter()
    text = _output(command)
    seconds = time.perf_counter() - started
    average = re.search(r"Avg latency: ([\d.]+) ms", text)
    if average is None:
        raise BrokerError(f"EndToEndLatency said: {text[-500:]}")
    outcome = meter.outcome(seconds, load.messages, load.messages * load.value_bytes, [])
    percentiles = re.findall(r"(50|99|99\.9)th = ([\d.]+)", text)
    outcome.latency = {f"p{name.replace('.', '')}_ms": float(value) for name, value in percentiles}
    outcome.latency["average_ms"] = float(average[1])
    return outcome


def _output(command: list[str]) -> str:
    """All it says. Its exit code is not asked: EndToEndLatency commits offsets after its last result."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S)
    return done.stdout + done.stderr


if __name__ == "__main__":
    client_load = ClientLoad(**json.loads(sys.argv[1]))
    actions = {"produce": produce, "consume": consume}
    print(actions[client_load.action](client_load).to_json())
