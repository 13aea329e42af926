"""Executes commands of the controller, and takes part in the cluster: image, registration, duties.

Any broker executes commands: it decides them on its newest image and commits the changes to the store. A command
completes when this broker has applied its changes: the logs of new partitions are open. Commands are executed one
request at a time, but do not wait for the logs of others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from levada.broker.change_log import log_changes
from levada.broker.cluster.commits import Commits, Decision
from levada.broker.cluster.controller_duties import ControllerDuties, Settings
from levada.broker.cluster.ids import new_topic_id
from levada.broker.cluster.image_updates import ImageUpdates
from levada.broker.cluster.registration import Registration
from levada.core.cluster.changes import Change, PartitionChanged, TopicChanged, TopicConfigsChanged, TopicRemoved
from levada.core.cluster.controller import Command, decide
from levada.core.cluster.image import BrokerImage, ClusterImage, ImageBuilder
from levada.core.cluster.isr import AlterPartition
from levada.core.cluster.registration import ShutDownBroker, may_stop
from levada.core.cluster.topics import AbandonCreations, abandon_creations
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.metadata.store import MetadataStore, StoreError
from levada.model import Requester

__all__ = ["Controller", "Decision", "new_topic_id"]

log = EventLog(__name__)

CONTROLLED_SHUTDOWN_S: Final = 15.0  # as Kafka's retries: until then leaders are moved to other brokers


class Controller:
    """Writes metadata and holds the current image."""

    def __init__(
        self,
        store: MetadataStore,
        on_image: Callable[[ClusterImage], None],
        applied: Callable[[Iterable[str]], Awaitable[None]],
        settings: Callable[[], Settings] = Settings,
        on_epoch: Callable[[int | None], None] = lambda _: None,
    ) -> None:
        """`on_epoch` is called with each broker epoch of this broker, and with None when its session is lost."""
        self._store = store
        self._applied = applied  # waits until the partitions of these topics agree with the image
        self._updates = ImageUpdates(on_image)
        self._commits = Commits(store, self._updates)
        self._registration = Registration(store, self._updates, self._commits, on_epoch)
        self._duties = ControllerDuties(store, self._updates, self._commits, settings)
        self._lock = asyncio.Lock()
        self._has_failed = False  # whether the last command may have left something
        self._broker_id: int

    @property
    def image(self) -> ClusterImage:
        """The newest image."""
        return self._updates.image

    @property
    def broker_epoch(self) -> int | None:
        """The epoch in which this broker is registered; None while it is not."""
        return self._registration.epoch

    async def start(self, broker: BrokerImage, cluster_id: str | None = None, *, unclean: bool = False) -> None:
        """Read the store, create the cluster if the store is new, and register this broker.

        `cluster_id` is that of the log dirs, if they have one. `unclean` says that they may have lost what was written.
        """
        self._broker_id = broker.id
        try:
            self._updates.open(await self._store.open(self._updates.receive))
            _check_cluster(self.image, cluster_id)
            await self._registration.register(broker, unclean=unclean)
        except StoreError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        except ValueError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"metadata cannot be read: {error}") from error
        self._updates.publish()
        await self._duties.start(broker.id)

    async def recovered(self) -> None:
        """Record that the logs of this broker are recovered: it may be elected."""
        await self._registration.recovered()

    async def submit(self, command: Command) -> ClusterImage:
        """Execute a command; return its image, which this broker has applied."""
        decision = await self.submit_all([command])
        if decision.errors[0] is not None:
            raise decision.errors[0]
        return decision.image

    async def submit_all(
        self, commands: Sequence[Command], *, validate_only: bool = False, requester: Requester | None = None
    ) -> Decision:
        """Execute commands in order, in one commit if they fit; each can fail alone.

        With `validate_only` nothing is committed. Committed changes are logged with the client that requested them;
        None is this broker itself.
        """
        if validate_only:
            return await asyncio.to_thread(_validate, self.image, commands)
        former = self.image
        decision = await self._execute(commands)
        await log_changes(former, decision.image, decision.changes, requester)
        await self._applied(_topics(decision.changes))
        return decision

    async def commit(self, command: Command) -> None:
        """Execute a command without waiting until this broker has applied it."""
        decision = await self._execute([command])
        if decision.errors[0] is not None:
            raise decision.errors[0]

    async def alter_partitions(self, commands: Sequence[AlterPartition]) -> list[KafkaError | None]:
        """Execute ISR changes of partitions that this broker leads, beside other commands."""
        registration = self._registration
        decision = await self._commits.execute(commands, registration.creator, registration.lease)
        return decision.errors

    async def _execute(self, commands: Sequence[Command]) -> Decision:
        registration = self._registration
        async with self._lock:
            if self._has_failed:
                await self._abandon_creations()
            self._has_failed = True
            decision = await self._commits.execute(commands, registration.creator, registration.lease)
            if any(decision.errors):
                await self._abandon_creations()
            self._has_failed = False
            return decision

    async def _abandon_creations(self) -> None:
        """Remove what a command has begun to create in several commits and could not complete."""
        registration = self._registration
        if abandon_creations(self.image, registration.creator):
            await self._commits.execute([AbandonCreations()], registration.creator, registration.lease)

    async def shut_down(self) -> None:
        """Let the controller move leaders to other brokers; returns when that is done, or takes too long."""
        epoch = self.broker_epoch
        if epoch is None or not self.image.brokers.keys() - {self._broker_id}:
            return
        try:
            await self.commit(ShutDownBroker(self._broker_id, epoch))
            async with asyncio.timeout(CONTROLLED_SHUTDOWN_S):
                while not may_stop(self.image, self._broker_id):
                    await self._updates.changed()
        except (KafkaError, TimeoutError) as error:
            log.warning("controlled shutdown is not complete, leaders are elected later", error=str(error))

    async def stop(self) -> None:
        """Close the store."""
        await self._registration.stop()
        await self._duties.stop()
        await self._store.close()
        self._updates.close()


def _validate(image: ClusterImage, commands: Sequence[Command]) -> Decision:
    builder = ImageBuilder(image)
    decision = Decision(image)
    for command in commands:
        try:
            changes = decide(builder.image, command)
        except KafkaError as error:
            decision.errors.append(error.without_traceback())
            continue
        decision.errors.append(None)
        builder.apply(changes)
    decision.image = builder.image
    return decision


def _topics(changes: Iterable[Change]) -> list[str]:
    """The topics that changes concern."""
    names: dict[str, None] = {}
    for change in changes:
        match change:
            case TopicChanged(name) | TopicRemoved(name) | TopicConfigsChanged(name) | PartitionChanged(name):
                names[name] = None
    return list(names)


def _check_cluster(image: ClusterImage, cluster_id: str | None) -> None:
    """Raise INCONSISTENT_CLUSTER_ID if metadata and log dirs differ: unknown topics would count as deleted."""
    if cluster_id is None or image.cluster_id == cluster_id:
        return
    if image.cluster_id:
        why = f"the metadata belongs to cluster {image.cluster_id}"
    else:
        why = "its metadata is missing; restore it, or move the log dirs away to start a new cluster"
    raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"the log dirs belong to cluster {cluster_id}: {why}")
