"""Performs the controller's duties on the broker that holds the lease `/controller`.

Every broker tries to acquire the lease. Its holder increments the controller epoch first, and checks it in each commit:
a former controller that does not know of its successor commits nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from levada.broker.cluster.commits import Commits
from levada.broker.cluster.image_updates import ImageUpdates
from levada.core.cluster.changes import Change, ControllerEpochChanged, PartitionChanged
from levada.core.cluster.duties import NOTHING_EXAMINED, DutySettings, checks, duties
from levada.core.cluster.image import ClusterImage
from levada.core.cluster.metadata_records import controller_lease
from levada.errors import KafkaError
from levada.logs import EventLog
from levada.metadata.store import Lease, MetadataStore, StoreError, Write
from levada.model import NO_LEADER

log = EventLog(__name__)

CHANGES_PER_COMMIT: Final = 1_000
ROUNDS_MAX: Final = 100  # without a pause
RETRY_S: Final = 1.0
ACQUIRE_S: Final = 5.0  # the interval of attempts to acquire the lease while nothing changes


class Settings(NamedTuple):
    """The settings of the duties, and when preferred leaders are balanced."""

    duties: DutySettings = DutySettings()
    balance_leaders_s: float | None = None  # None for never


class _Part(NamedTuple):
    """Changes that one commit makes."""

    changes: Sequence[Change]
    writes: Sequence[Write]


class ControllerDuties:
    """The lease of the controller, and what its holder does."""

    def __init__(
        self, store: MetadataStore, updates: ImageUpdates, commits: Commits, settings: Callable[[], Settings]
    ) -> None:
        self._store = store
        self._updates = updates
        self._commits = commits
        self._settings = settings
        self._broker_id: int
        self._lease: Lease | None = None
        self._epoch = 0  # of the controller, while this broker holds the lease
        self._examined = NOTHING_EXAMINED
        self._balanced_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self, broker_id: int) -> None:
        """Perform the duties once, if there is no controller; then begin to do so whenever the image changes."""
        self._broker_id = broker_id
        self._balanced_at = asyncio.get_running_loop().time()
        await self._attempt()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="controller duties")

    async def stop(self) -> None:
        """End the duties; the lease ends with the session."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        image = ClusterImage()
        while True:
            if image is self._updates.image:
                await self._wait()
            image = self._updates.image
            if not await self._attempt():
                await asyncio.sleep(RETRY_S)
                image = ClusterImage()

    async def _wait(self) -> None:
        """Wait for a change of the image, at most until something is due."""
        timeout_s: float | None = ACQUIRE_S
        if self._lease is not None:
            timeout_s = self._balance_in_s()
        try:
            await asyncio.wait_for(self._updates.changed(), timeout_s)
        except TimeoutError:
            return

    def _balance_in_s(self) -> float | None:
        interval_s = self._settings().balance_leaders_s
        if interval_s is None:
            return None
        return max(0.0, self._balanced_at + interval_s - asyncio.get_running_loop().time())

    async def _attempt(self) -> bool:
        """Become the controller if there is none, and perform the duties. False if that failed."""
        try:
            if self._lease is None and self._updates.image.controller_id in (NO_LEADER, self._broker_id):
                await self._become_controller()
            if self._lease is not None:
                await self._perform(self._lease)
        except (KafkaError, StoreError) as error:
            log.error("controller duties failed", error=str(error))
            return False
        except Exception as error:
            log.error("controller duties failed", exc_info=error)
            return False
        return True

    async def _become_controller(self) -> None:
        lease = await self._store.acquire(*controller_lease(self._broker_id), self._lost)
        if lease is None:
            return
        await self._updates.settled()
        epoch = self._updates.image.controller_epoch + 1
        try:
            if not await self._commits.commit(self._commits.writes([ControllerEpochChanged(epoch)]), lease):
                return
            self._lease, self._epoch, self._examined = lease, epoch, NOTHING_EXAMINED
            log.info("broker is the controller", node_id=self._broker_id, controller_epoch=epoch)
        finally:
            if self._lease is None:
                await self._store.release(lease)

    def _lost(self) -> None:
        log.info("broker is no longer the controller", node_id=self._broker_id, controller_epoch=self._epoch)
        self._lease = None

    async def _perform(self, lease: Lease) -> None:
        """Commit the changes of the duties until there are none left."""
        balance_in_s = self._balance_in_s()
        balance = balance_in_s == 0.0
        for _ in range(ROUNDS_MAX):
            image = self._updates.image
            if self._lease is not lease or image.controller_epoch != self._epoch:
                return
            with self._updates.watch() as changed:
                parts = await asyncio.to_thread(self._decide, image, self._settings().duties, balance)
                is_overtaken = any(write.key in changed for part in parts for write in part.writes)
            if not parts:
                self._examined = image
                if balance:
                    self._balanced_at = asyncio.get_running_loop().time()
                return
            if not is_overtaken:
                await self._commit(image, parts, lease)

    def _decide(self, image: ClusterImage, settings: DutySettings, balance: bool) -> list[_Part]:
        """Decide, and divide the changes into commits. Runs in a thread."""
        changes = duties(image, settings, self._examined, balance_leaders=balance)
        checked: list[Change] = [*checks(image)] if changes else []
        parts = []
        while changes:
            some = self._commits.beginning([*checked, *changes[:CHANGES_PER_COMMIT]])
            changes = changes[len(some) - len(checked) :]
            parts.append(_Part(some, self._commits.writes(some)))
        return parts

    async def _commit(self, image: ClusterImage, parts: Sequence[_Part], lease: Lease) -> None:
        """Commit part by part; a conflict ends it, and the duties are decided again."""
        for part in parts:
            if not await self._commits.commit(part.writes, lease):
                return
            _log_changes(image, part.changes)


def _log_changes(former: ClusterImage, changes: Sequence[Change]) -> None:
    counts = Counter[str]()
    for change in changes:
        if isinstance(change, PartitionChanged):
            topic = former.topics[change.topic]
            before, after = topic.partitions[change.index], change.partition
            counts["leaders"] += before.leader != after.leader
            counts["leaderless"] += after.leader == NO_LEADER
            counts["isr_changes"] += before.isr != after.isr
            counts["reassignments_begun"] += after.is_reassigning and not before.is_reassigning
            counts["reassignments_completed"] += before.is_reassigning and not after.is_reassigning
        else:
            counts["other_changes"] += 1
    log.info("controller has changed partitions", **{name: count for name, count in counts.items() if count})
