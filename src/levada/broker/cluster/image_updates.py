"""Applies the change stream of the metadata store to the cluster image, update by update.

Small updates are applied on the event loop as they arrive, large ones are decoded in a thread; later ones wait for
them. A snapshot is compared with what is known, so that the image of what has not changed stays the same object.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from levada.core.cluster.changes import Change
from levada.core.cluster.image import ClusterImage
from levada.core.cluster.metadata_records import decode
from levada.logs import EventLog
from levada.metadata.store import ABSENT, MetadataRecord, MetadataUpdate

log = EventLog(__name__)

RECORDS_ON_LOOP_MAX: Final = 200  # of an update that is applied on the event loop


class ImageUpdates:
    """The current image, and the versions of its records."""

    def __init__(self, on_image: Callable[[ClusterImage], None]) -> None:
        self.image = ClusterImage()
        self._on_image = on_image
        self._versions: dict[str, int] = {}
        self._waiting: deque[MetadataUpdate] = deque()
        self._task: asyncio.Task[None] | None = None  # applies a large update, and those after it
        self._published = False  # whether `on_image` is called
        self._watches: list[set[str]] = []
        self._changed = asyncio.Event()

    def open(self, snapshot: MetadataUpdate) -> None:
        """Apply the first snapshot; raise ValueError if a record is invalid."""
        changes = [decode(record.key, record.value) for record in snapshot.records]
        self._apply(snapshot, list(snapshot.records), [change for change in changes if change is not None])

    def publish(self) -> None:
        """Begin to pass each image to `on_image`, the current one first."""
        self._published = True
        self._on_image(self.image)

    def receive(self, update: MetadataUpdate) -> None:
        """Apply an update of the store. Called in the order of revisions."""
        self._waiting.append(update)
        if self._task is None:
            while self._waiting and len(self._waiting[0].records) <= RECORDS_ON_LOOP_MAX:
                update = self._waiting.popleft()
                self._apply(update, *self._decoded(update))
            if self._waiting:
                self._task = asyncio.get_running_loop().create_task(self._apply_large(), name="metadata updates")

    async def _apply_large(self) -> None:
        try:
            while self._waiting:
                update = self._waiting.popleft()
                self._apply(update, *await asyncio.to_thread(self._decoded, update))
        finally:
            self._task = None

    def _decoded(self, update: MetadataUpdate) -> tuple[list[MetadataRecord], list[Change]]:
        """What is new in an update. A record that cannot be read is left out: its former value stays."""
        records = [record for record in update.records if self._versions.get(record.key) != record.version]
        if update.snapshot:
            present = {record.key for record in update.records}
            gone = [key for key in self._versions if key not in present]
            records += [MetadataRecord(key, None, ABSENT) for key in gone]
        changes = []
        for record in records:
            try:
                change = decode(record.key, record.value)
            except ValueError as error:
                log.error("metadata record cannot be read, its former value stays", key=record.key, error=str(error))
                continue
            if change is not None:
                changes.append(change)
        return records, changes

    def _apply(self, update: MetadataUpdate, records: list[MetadataRecord], changes: list[Change]) -> None:
        for record in records:
            if record.value is None:
                self._versions.pop(record.key, None)
            else:
                self._versions[record.key] = record.version
        for watch in self._watches:
            watch.update(record.key for record in records)
        self.image = self.image.apply(changes, update.revision)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if self._published:
            self._on_image(self.image)

    def version(self, key: str) -> int:
        """Return the version of a record; ABSENT if there is none."""
        return self._versions.get(key, ABSENT)

    @contextmanager
    def watch(self) -> Iterator[set[str]]:
        """Collect the keys of records that change in a block."""
        keys: set[str] = set()
        self._watches.append(keys)
        try:
            yield keys
        finally:
            self._watches = [watch for watch in self._watches if watch is not keys]

    async def changed(self) -> None:
        """Return after the next change of the image."""
        await self._changed.wait()

    async def reached(self, revision: int) -> None:
        """Return when the image is as of this revision or a later one."""
        while self.image.revision < revision:
            await self._changed.wait()

    async def settled(self) -> None:
        """Return when every update that was received is applied."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def close(self) -> None:
        """Apply no more updates."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
