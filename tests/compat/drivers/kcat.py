"""kcat as Debian ships it: a small program with an old librdkafka, on many a shell's PATH."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from typing import Any, ClassVar

from tests.compat.drivers.base import EARLIEST, WAIT_S, ClientError, Cluster, Record, Topic, as_headers
from tests.support.downloads import debian_package, executable

_ERRORS = {
    "Message size too large": "MESSAGE_TOO_LARGE",
    "Invalid topic": "INVALID_TOPIC_EXCEPTION",
    "Unknown topic or partition": "UNKNOWN_TOPIC_OR_PARTITION",
    "Unknown partition": "UNKNOWN_TOPIC_OR_PARTITION",
    "Unknown topic": "UNKNOWN_TOPIC_OR_PARTITION",
    "failed to validate record": "INVALID_RECORD",
    "Offset out of range": "OFFSET_OUT_OF_RANGE",
}


class Kcat:
    """kcat, one process per operation; topics come into being by the broker's auto-creation."""

    name: ClassVar[str] = "kcat"
    lacks: ClassVar[frozenset[str]] = frozenset(
        {
            "create_topic",
            "delete_topic",
            "create_partitions",
            "describe_configs",
            "alter_configs",
            "delete_records",
            "describes_without_creating",
            "cluster_id",
            "topic_ids",
            "timestamps",
            "empty_values",
            "long_lived",
        }
    )

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._kcat = install()

    def version(self) -> str:
        done = subprocess.run([self._kcat, "-V"], capture_output=True, text=True, check=True)
        found = re.search(r"Version ([\d.]+).*librdkafka ([\d.]+)", done.stdout)
        assert found, done.stdout
        return f"{found[1]} (librdkafka {found[2]})"

    def close(self) -> None: ...

    def list_topics(self) -> set[str]:
        return {topic["topic"] for topic in self._metadata()["topics"]}

    def describe_topic(self, topic: str) -> Topic:
        (described,) = self._metadata("-t", topic)["topics"]
        if "error" in described:
            raise _error(described["error"])
        return Topic(len(described["partitions"]), None)

    def describe_cluster(self) -> Cluster:
        described = self._metadata()
        brokers = tuple(
            (node["id"], node["name"].rpartition(":")[0], int(node["name"].rpartition(":")[2]))
            for node in described["brokers"]
        )
        return Cluster(None, described["controllerid"], brokers)

    def _metadata(self, *arguments: str) -> Any:
        return json.loads(self._run("-L", "-J", *arguments))

    def produce(
        self,
        topic: str,
        records: list[Record],
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        settings = ["-z", codec, "-X", f"acks={acks}", "-X", f"enable.idempotence={str(idempotent).lower()}"]
        for record in records:
            options = []
            for name, value in record.headers:
                options += ["-H", name if value is None else f"{name}={value.decode()}"]
            self._produce_one(record, ["-P", "-t", topic, "-p", str(partition), *settings, *options])
        return []

    def _produce_one(self, record: Record, command: list[str]) -> None:
        """A file is one message whatever its bytes; only a null value must come as a line: key, tab, nothing."""
        with tempfile.NamedTemporaryFile() as message:
            if record.value is None:
                message.write((record.key or b"") + b"\t\n")
                command += ["-Z", "-K", "\t", "-l"]
            else:
                message.write(record.value)
                command += [] if record.key is None else ["-k", os.fsdecode(record.key)]
            message.flush()
            self._run(*command, message.name)

    def consume(self, topic: str, count: int, offset: int = EARLIEST, partition: int = 0) -> list[Record]:
        start = "beginning" if offset == EARLIEST else str(offset)
        place = ["-C", "-t", topic, "-p", str(partition), "-o", start, "-c", str(count)]
        output = self._run(*place, "-J", "-u", "-X", "auto.offset.reset=error")
        return [_record(json.loads(line)) for line in output.splitlines()]

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        return self._query(topic, partition, -2), self._query(topic, partition, -1)

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        found = self._query(topic, partition, timestamp)
        return found if found >= 0 else None

    def _query(self, topic: str, partition: int, timestamp: int) -> int:
        output = self._run("-Q", "-t", f"{topic}:{partition}:{timestamp}")
        found = re.search(r"offset (-?\d+)", output)
        assert found, output
        return int(found[1])

    def _run(self, *arguments: str) -> str:
        command = [self._kcat, "-b", self._bootstrap, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise ClientError("NO_ANSWER", f"kcat {' '.join(arguments)}") from error
        if done.returncode:
            raise _error(done.stderr)
        return done.stdout


def install() -> str:
    """kcat's path; root on Debian gets the package when it is missing."""
    if shutil.which("kcat") is None:
        debian_package("kcat")
    return executable("kcat")


def _record(message: dict[str, Any]) -> Record:
    flat = message.get("headers", [])
    headers = [(flat[i], _bytes(flat[i + 1])) for i in range(0, len(flat), 2)]
    key, value = _bytes(message["key"]), _bytes(message["payload"])
    return Record(value, key, as_headers(headers), message["ts"], message["offset"])


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _error(text: str) -> ClientError:
    for words, name in _ERRORS.items():
        if words in text:
            return ClientError(name, text)
    return ClientError("KCAT", text)
