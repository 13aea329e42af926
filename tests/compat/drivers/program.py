"""Clients of other languages: a small program each, which reads operations and writes results as lines of JSON.

`{"op": "consume", "topic": ...}` goes in, `{"ok": ...}` or `{"error": "TOPIC_ALREADY_EXISTS", "detail": ...}` comes
out. Bytes travel as base64. The programs are in `java/`, `go/` and `js/` beside this package.
"""

import base64
import json
import os
import selectors
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from tests.compat.drivers.base import EARLIEST, SOURCES, WAIT_S, ClientError, Cluster, Config, Record, Topic
from tests.support.downloads import Unavailable, executable, locked, run
from tests.support.kafka_jars import client_jar, java

_SOURCES = Path(__file__).parent.parent
START_S = 180  # a JVM that compiles its program, on a machine with other things to do


class Program:
    """One helper program; it starts with the first operation and lives as long as the driver."""

    name: ClassVar[str]
    lacks: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, bootstrap: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*self.command(), bootstrap], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        self._unread = b""
        self._version = str(self._call("version", wait_s=START_S))

    def command(self) -> list[str]:
        """How to run the program; raises `Unavailable` when it cannot be built here."""
        raise NotImplementedError

    def version(self) -> str:
        return self._version

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _call(self, op: str, wait_s: float = 2 * WAIT_S, **arguments: Any) -> Any:
        assert self._process.stdin
        line = json.dumps({"op": op, **arguments}).encode() + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise AssertionError(f"{self.name} is gone: {self._last_words()}") from error
        reply = json.loads(self._read_line(op, wait_s))
        if "error" in reply:
            raise ClientError(reply["error"], reply.get("detail", ""))
        return reply.get("ok")

    def _read_line(self, op: str, wait_s: float) -> bytes:
        """One reply; a program that is silent for too long is a failure of that operation, with its log."""
        assert self._process.stdout
        pipe = self._process.stdout.fileno()
        pieces = [self._unread]
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while b"\n" not in pieces[-1]:
                if not selector.select(wait_s):
                    self._process.kill()
                    raise AssertionError(f"{self.name} gave no answer to {op}: {self._last_words()}")
                pieces.append(os.read(pipe, 1 << 20))
                if not pieces[-1]:
                    raise AssertionError(f"{self.name} ended at {op}: {self._last_words()}")
        line, _, self._unread = b"".join(pieces).partition(b"\n")
        return line

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2000:].decode(errors="replace")

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: dict[str, str] | None = None,
    ) -> None:
        self._call(
            "create_topic",
            topic=topic,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs or {},
        )

    def delete_topic(self, topic: str) -> None:
        self._call("delete_topic", topic=topic)

    def create_partitions(self, topic: str, total: int) -> None:
        self._call("create_partitions", topic=topic, total=total)

    def list_topics(self) -> set[str]:
        return set(self._call("list_topics"))

    def describe_topic(self, topic: str) -> Topic:
        described = self._call("describe_topic", topic=topic)
        return Topic(described["partitions"], described.get("topic_id"))

    def describe_cluster(self) -> Cluster:
        described = self._call("describe_cluster")
        brokers = tuple((node["id"], node["host"], node["port"]) for node in described["brokers"])
        return Cluster(described["cluster_id"], described["controller_id"], brokers)

    def describe_configs(self, topic: str) -> dict[str, Config]:
        entries = self._call("describe_configs", topic=topic)
        return {entry["name"]: Config(entry["value"], _source(entry["source"])) for entry in entries}

    def alter_configs(self, topic: str, configs: dict[str, str]) -> None:
        self._call("alter_configs", topic=topic, configs=configs)

    def produce(
        self,
        topic: str,
        records: list[Record],
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        settings: dict[str, Any] = {
            "partition": partition,
            "codec": codec,
            "acks": acks,
            "idempotent": idempotent,
        }
        offsets = self._call("produce", topic=topic, records=[_to_json(r) for r in records], **settings)
        return list(offsets) if acks != "0" else []

    def consume(self, topic: str, count: int, offset: int = EARLIEST, partition: int = 0) -> list[Record]:
        wait_ms = int(WAIT_S * 1000)
        place: dict[str, Any] = {"topic": topic, "partition": partition, "offset": offset}
        records = self._call("consume", count=count, wait_ms=wait_ms, **place)
        if len(records) < count:
            raise ClientError("NO_ANSWER", f"{len(records)} of {count} records came")
        return [_from_json(record) for record in records]

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        low, high = self._call("offsets", topic=topic, partition=partition)
        return low, high

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        found = self._call("offset_for_time", topic=topic, partition=partition, timestamp=timestamp)
        return None if found is None else int(found)

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        self._call("delete_records", topic=topic, partition=partition, before=before)


class Java(Program):
    """Kafka's own Java client."""

    name: ClassVar[str] = "java"

    def command(self) -> list[str]:
        return java(str(_SOURCES / "java" / "JavaClient.java"))


class JavaOfSpark(Program):
    """The Java client that Spark's Kafka connector brings."""

    name: ClassVar[str] = "java-3.9"

    def command(self) -> list[str]:
        return java(str(_SOURCES / "java" / "JavaClient.java"), first_jar=client_jar("3.9.2"))


class FranzGo(Program):
    """franz-go, with its admin package kadm; built once into the cache."""

    name: ClassVar[str] = "franz-go"

    def command(self) -> list[str]:
        go = executable("go")
        with locked("franz-go") as folder:
            run([go, "build", "-o", str(folder / "client"), "."], cwd=_SOURCES / "go")
            return [str(folder / "client")]


class Kafkajs(Program):
    """kafkajs; it consumes only by groups, so other clients read what it wrote."""

    name: ClassVar[str] = "kafkajs"
    lacks: ClassVar[frozenset[str]] = frozenset({"consume", "topic_ids", "null_headers"})

    def command(self) -> list[str]:
        node, npm = executable("node"), executable("npm")
        source = _SOURCES / "js"
        with locked("kafkajs") as folder:
            wanted = (source / "package-lock.json").read_text()
            installed = folder / "installed.json"
            if not installed.exists() or installed.read_text() != wanted:
                for file in ("package.json", "package-lock.json"):
                    shutil.copy(source / file, folder / file)
                run([npm, "ci", "--no-fund", "--no-audit"], cwd=folder)
                installed.write_text(wanted)
            if not (folder / "node_modules" / "kafkajs").exists():
                raise Unavailable("npm left no kafkajs")
        return ["env", f"NODE_PATH={folder / 'node_modules'}", node, str(source / "client.js")]


def _source(source: int | str) -> str:
    return SOURCES[source] if isinstance(source, int) else source


def _to_json(record: Record) -> dict[str, Any]:
    return {
        "value": _encode(record.value),
        "key": _encode(record.key),
        "headers": [[name, _encode(value)] for name, value in record.headers],
        "timestamp": record.timestamp,
    }


def _from_json(record: dict[str, Any]) -> Record:
    headers = tuple((name, _decode(value)) for name, value in record["headers"])
    return Record(_decode(record["value"]), _decode(record["key"]), headers, record["timestamp"], record["offset"])


def _encode(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _decode(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)
