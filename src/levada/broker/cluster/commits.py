"""Commits decisions to the metadata store by compare-and-set on every record that they write or rely on.

A decision is made in a thread, on the newest image. After a conflict another process has written first; its changes are
then in the image, and the decision is made again. A decision that is too large for one commit takes several; it is made
again for each, on what is there by then.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from levada.broker.cluster.image_updates import ImageUpdates
from levada.core.cluster.changes import BrokerUnchanged, Change, ControllerUnchanged, TopicUnchanged
from levada.core.cluster.controller import Command, decide
from levada.core.cluster.image import ClusterImage, ImageBuilder
from levada.core.cluster.metadata_records import check_key, encode
from levada.core.cluster.topics import Creator
from levada.errors import ErrorCode, KafkaError
from levada.metadata.store import (
    CheckVersion,
    CompareAndSet,
    ConflictError,
    Lease,
    LeaseLostError,
    MetadataStore,
    StoreError,
    Write,
    commit_bytes,
)

CONFLICTS_MAX: Final = 20


@dataclass(slots=True)
class Decision:
    """The results of some commands: an error or None for each, and the image after the successful ones."""

    image: ClusterImage
    errors: list[KafkaError | None] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)


class _Batch(NamedTuple):
    """The commands that one commit executes: their results, changes and writes."""

    errors: Sequence[KafkaError | None]  # of the commands that it completes
    changes: Sequence[Change]
    writes: Sequence[Write]


class Commits:
    """Executes decisions of this broker."""

    def __init__(self, store: MetadataStore, updates: ImageUpdates) -> None:
        self._store = store
        self._updates = updates

    async def execute(self, commands: Sequence[Command], creator: Creator, lease: Callable[[], Lease]) -> Decision:
        """Execute commands in order; each can fail alone. KafkaError if they cannot be committed.

        `lease` returns the broker's lease, which must last until the commit.
        """
        decision = Decision(self._updates.image)
        result = ImageBuilder(self._updates.image)
        conflicts = 0
        while len(decision.errors) < len(commands):
            remaining = commands[len(decision.errors) :]
            with self._updates.watch() as changed:
                batch = await asyncio.to_thread(self._decide, self._updates.image, remaining, creator)
                is_overtaken = not changed.isdisjoint(write.key for write in batch.writes)
            if is_overtaken or (batch.writes and not await self.commit(batch.writes, lease())):
                conflicts += 1
                if conflicts > CONFLICTS_MAX:
                    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "other brokers kept changing the same metadata")
                continue
            decision.errors += batch.errors
            decision.changes += batch.changes
            await asyncio.to_thread(result.apply, batch.changes)
        decision.image = result.image
        return decision

    def _decide(self, image: ClusterImage, commands: Sequence[Command], creator: Creator) -> _Batch:
        """Decide as many commands as fit in one commit; of a first one that is too large, its beginning."""
        builder = ImageBuilder(image)
        errors: list[KafkaError | None] = []
        changes: list[Change] = []
        size = 0
        for command in commands:
            try:
                decided = decide(builder.image, command, creator)
            except KafkaError as error:
                errors.append(error.without_traceback())
                continue
            size += commit_bytes(self.writes(decided))
            if size > self._store.commit_bytes_max:
                if not errors:
                    changes = self.beginning(decided)
                break
            errors.append(None)
            changes += decided
            builder.apply(decided)
        return _Batch(errors, changes, self.writes(changes))

    def beginning(self, changes: Sequence[Change]) -> list[Change]:
        """Return the first changes of a decision that fit in one commit, with all its checks."""
        checks: list[Change] = [change for change in changes if _is_check(change)]
        found = list(checks)
        size = commit_bytes(self.writes(checks))
        for change in changes:
            if not _is_check(change):
                size += commit_bytes(self.writes([change]))
                if size > self._store.commit_bytes_max:
                    break
                found.append(change)
        return found

    def writes(self, changes: Iterable[Change]) -> list[Write]:
        """Return the writes of changes: the last value of each record, if it has the version of now."""
        values: dict[str, bytes | None] = {}
        checked: dict[str, None] = {}
        for change in changes:
            if isinstance(change, TopicUnchanged | BrokerUnchanged | ControllerUnchanged):
                checked[check_key(change)] = None
            else:
                key, values[key] = encode(change)
        version = self._updates.version
        writes: list[Write] = [CompareAndSet(key, value, version(key)) for key, value in values.items()]
        return writes + [CheckVersion(key, version(key)) for key in checked if key not in values]

    async def commit(self, writes: Sequence[Write], lease: Lease) -> bool:
        """Commit writes; return whether they were made, or False after a conflict. The image then has the newest."""
        try:
            revision = await self._store.commit(writes, lease)
        except ConflictError:
            await self._updates.settled()
            return False
        except LeaseLostError as error:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, f"the session of the metadata store is over: {error}") from error
        except StoreError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        await self._updates.reached(revision)
        return True


def _is_check(change: Change) -> bool:
    return isinstance(change, TopicUnchanged | BrokerUnchanged | ControllerUnchanged)
