"""Partitions that `consume` cannot read: it goes on with the others, and reports these at its end."""

from typing import TYPE_CHECKING

from levada.cli.errors import EXIT_NOT_FOUND, CommandError, from_exception
from levada.cli.options import notice
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from levada.client.client import Client
    from levada.client.consumer.consumer import Consumer
    from levada.model import ConsumerRecord

DAMAGED = (
    "the log of the partition is damaged: stop its broker, and see levada log check DIR; "
    "a running broker finds it with its next scrub, and levada cluster health shows it then"
)


class Failures:
    """The partitions that cannot be read, and the reason of each."""

    def __init__(self, *, notices: bool) -> None:
        self._found: dict[TopicPartition, Exception] = {}
        self._notices = notices  # for a command that has no end

    def __contains__(self, partition: object) -> bool:
        return partition in self._found

    def add(self, failures: "Mapping[TopicPartition, Exception]") -> None:
        """Leave out these partitions from now on."""
        for partition, failure in failures.items():
            if partition not in self._found:
                self._found[partition] = failure
                if self._notices:
                    notice(f"{partition} is left out: {explained(failure).message}")

    def check(self, assigned: "Collection[TopicPartition]") -> None:
        """Raise CommandError if a partition has failed; `assigned` are those that could be read at the start."""
        if not self._found:
            return
        first = explained(next(iter(self._found.values())))
        count = len(self._found.keys() | set(assigned))
        if count == 1:
            raise first
        names = ", ".join(map(str, sorted(self._found)[:10])) + (" ..." if len(self._found) > 10 else "")
        message = f"{len(self._found)} of {count} partitions could not be read to the end: {names}: {first.message}"
        raise CommandError(message, first.exit_code, first.hint)


def explained(failure: Exception) -> CommandError:
    """The failure of a partition with what the user can do."""
    error = from_exception(failure)
    if error is None:
        raise failure
    if isinstance(failure, KafkaError) and failure.code is ErrorCode.CORRUPT_MESSAGE:
        error.hint = DAMAGED
    return error


async def readable(
    client: "Client", topics: "Collection[str]", indexes: "Collection[int]", failures: Failures
) -> list[TopicPartition]:
    """The partitions of these topics that have a leader, only those of `indexes` if there are any.

    Those without a leader are failures; CommandError if no other partition is left.
    """
    found, offline = [], {}
    for topic in dict.fromkeys(topics):
        info = await client.topic(topic)
        for index in indexes or range(len(info.partitions)):
            partition = TopicPartition(topic, index)
            if index >= len(info.partitions):
                unknown = from_exception(info.unknown_partition(index))
                message = unknown.message if unknown else ""
                raise CommandError(message, EXIT_NOT_FOUND, f"try: levada topic describe {topic}")
            if info.partitions[index].leader < 0:
                offline[partition] = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader")
            else:
                found.append(partition)
    failures.add(offline)
    if not found:
        failures.check(found)
    return found


async def poll(consumer: "Consumer", timeout_ms: int | None, failures: Failures) -> "list[ConsumerRecord]":
    """The next records; none if a partition has failed meanwhile."""
    try:
        return await consumer.poll(timeout_ms)
    except Exception as error:
        found = consumer.failures
        if error not in found.values():
            raise
        failures.add(found)
        return []
