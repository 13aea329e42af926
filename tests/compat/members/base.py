"""Group members of each client: their operations, and the programs that run them.

Each client is a program that reads operations and writes results as lines of JSON (see `drivers.program`). A program
holds any number of members, which poll all the time; killing it kills them all.
"""

import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tests.compat.drivers.program import Kafkajs, Program
from tests.support.downloads import executable, locked, run
from tests.support.kafka_jars import java

HERE = Path(__file__).parent
SESSION_MS = 20_000  # no member expires because the machine stalled for a while
TIMEOUT_S = 30.0


class Seen(NamedTuple):
    """What a member has seen so far."""

    partitions: frozenset[int]
    assignments: int  # how many it got
    revoked: tuple[tuple[int, ...], ...]  # what it had to give back, each time
    records: tuple[tuple[int, int], ...]  # partition and offset


class Members(Program):
    """A program with members.

    `lacks` says what the client itself does not have: `static` members, `cooperative` rebalances, the `consumer`
    protocol, in it `consumer-static` members, admin calls that `change` groups, and those that `trim` them.
    """

    lacks: ClassVar[frozenset[str]] = frozenset()

    def join(self, member: str, group: str, topic: str, **settings: Any) -> None:
        """Let a member join; it reads from then on."""
        fields = {"assignor": "range", "session_timeout_ms": SESSION_MS, **settings}
        self._call("join", member=member, group=group, topic=topic, **fields)

    def look(self, member: str) -> Seen:
        seen = self._call("look", member=member)
        assert not seen["error"], seen["error"]
        return Seen(
            frozenset(seen["partitions"]),
            seen["assignments"],
            tuple(tuple(one) for one in seen["revoked"]),
            tuple((partition, offset) for partition, offset in seen["records"]),
        )

    def commit(self, member: str, metadata: str = "") -> None:
        """Commit what the member has read of its partitions."""
        self._call("commit", member=member, metadata=metadata)

    def leave(self, member: str) -> None:
        self._call("leave", member=member)

    def abandon(self, member: str) -> None:
        """The member does nothing more, and says nothing."""
        self._call("abandon", member=member)

    def kill(self) -> None:
        """All members of this program are gone at once."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def list_groups(self) -> dict[str, str]:
        """Groups and their states."""
        return dict(self._call("list_groups"))

    def describe_group(self, group: str) -> tuple[str, list[list[int]]]:
        """Its state, and the partitions of each member."""
        found = self._call("describe_group", group=group)
        return found["state"], found["members"]

    def committed(self, group: str, topic: str) -> dict[int, tuple[int, str]]:
        """Offset and metadata by partition."""
        found = self._call("committed", group=group, topic=topic)
        return {int(partition): (offset, metadata) for partition, (offset, metadata) in found.items()}

    def set_offsets(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        self._call("set_offsets", group=group, topic=topic, offsets=offsets)

    def delete_group(self, group: str) -> None:
        self._call("delete_group", group=group)

    def delete_offsets(self, group: str, topic: str, partition: int) -> None:
        """Forget what the group has committed there."""
        self._call("delete_offsets", group=group, topic=topic, partition=partition)

    def remove_member(self, group: str, instance_id: str) -> None:
        """Remove a static member, as an operator does with one that will not come back."""
        self._call("remove_member", group=group, instance_id=instance_id)


class PythonMembers(Members):
    """A client for Python; its program is a module here."""

    module: ClassVar[str]

    def command(self) -> list[str]:
        return [sys.executable, "-W", "ignore", "-m", f"tests.compat.members.{self.module}"]


class ConfluentMembers(PythonMembers):
    name: ClassVar[str] = "confluent-kafka"
    module: ClassVar[str] = "confluent_program"
    lacks: ClassVar[frozenset[str]] = frozenset({"trim"})


class KafkaPythonMembers(PythonMembers):
    name: ClassVar[str] = "kafka-python"
    module: ClassVar[str] = "kafka_python_program"
    lacks: ClassVar[frozenset[str]] = frozenset({"consumer"})


class AiokafkaMembers(PythonMembers):
    name: ClassVar[str] = "aiokafka"
    module: ClassVar[str] = "aio_program"
    lacks: ClassVar[frozenset[str]] = frozenset({"cooperative", "consumer", "change", "trim"})


class KafkajsMembers(Members, Kafkajs):
    name: ClassVar[str] = "kafkajs"
    lacks: ClassVar[frozenset[str]] = frozenset({"cooperative", "static", "consumer", "trim"})

    def command(self) -> list[str]:
        return [*Kafkajs.command(self)[:-1], str(HERE / "member.js")]


class FranzGoMembers(Members):
    """In the consumer protocol it leaves without its instance id, so the group does not keep its place."""

    name: ClassVar[str] = "franz-go"
    lacks: ClassVar[frozenset[str]] = frozenset({"consumer-static"})

    def command(self) -> list[str]:
        go = executable("go")
        with locked("franz-go-members") as folder:
            run([go, "build", "-o", str(folder / "members"), "./members"], cwd=HERE.parent / "go")
            return [str(folder / "members")]


class JavaMembers(Members):
    name: ClassVar[str] = "java"

    def command(self) -> list[str]:
        return java(str(HERE.parent / "java" / "JavaMembers.java"))


MEMBERS: tuple[type[Members], ...] = (
    ConfluentMembers,
    KafkaPythonMembers,
    AiokafkaMembers,
    KafkajsMembers,
    FranzGoMembers,
    JavaMembers,
)


def shares(seen: Iterable[Seen], partitions: int) -> bool:
    """Whether each partition has exactly one owner, and each member something to do."""
    owned = [one.partitions for one in seen]
    return all(owned) and sorted(place for part in owned for place in part) == list(range(partitions))
