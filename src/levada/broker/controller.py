"""Executes commands of the controller: decides them on the newest image and commits the changes to the store.

A command completes when this broker has applied its changes: the logs of new partitions are open. Commands are executed
one at a time, but do not wait for the logs of others. After a conflict, another process has written first; its changes
are already in the image, and the command is decided again.
"""

import asyncio
import base64
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID, uuid4

from levada.broker.change_log import log_changes
from levada.core.cluster import metadata_records
from levada.core.cluster.controller import Command, decide
from levada.core.cluster.image import (
    BrokerChanged,
    BrokerImage,
    Change,
    ClusterFormed,
    ClusterImage,
    ControllerChanged,
    ImageBuilder,
    TopicChanged,
    TopicRemoved,
)
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.metadata.store import (
    ABSENT,
    CompareAndSet,
    ConflictError,
    Lease,
    LeaseLostError,
    MetadataStore,
    MetadataUpdate,
    StoreError,
)
from levada.model import Requester

log = EventLog(__name__)

ATTEMPTS_MAX: Final = 20
ACQUIRE_RETRY_S: Final = 0.2
REGISTRATION_RETRY_S: Final = 1.0
RESERVED_IDS: Final = (UUID(int=0), UUID(int=1))  # Kafka's "no id" and its metadata topic


class Decision(NamedTuple):
    """The results of some commands: an error or None for each, and the image after the successful ones."""

    image: ClusterImage
    errors: list[KafkaError | None]


class Controller:
    """Writes metadata and holds the current image."""

    def __init__(
        self,
        store: MetadataStore,
        on_image: Callable[[ClusterImage], None],
        applied: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self.image = ClusterImage()
        self._store = store
        self._on_image = on_image
        self._applied = applied  # waits until the partitions of these topics agree with the image
        self._versions: dict[str, int] = {}  # of every record in the image
        self._lock = asyncio.Lock()
        self._pending: list[MetadataUpdate] | None = []  # received during the start
        self._lease: Lease | None = None  # held while this process is the only one with this broker id
        self._registration: asyncio.Task[None] | None = None  # again, after the lease was lost

    async def start(self, broker: BrokerImage, cluster_id: str | None = None) -> None:
        """Read the store, create the cluster if the store is new, and register this broker.

        `cluster_id` is that of the log dirs, if they have one.
        """
        try:
            snapshot = await self._store.open(self._on_change)
            self._lease = await self._acquire(broker, self._store.dead_session_timeout_s)
            if self._lease is None:
                raise KafkaError(
                    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                    f"another broker with node.id {broker.id} is running",
                )
            self._update_image(snapshot)
            _check_cluster(self.image, cluster_id)
            self._apply(snapshot)
        except StoreError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        except ValueError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"metadata cannot be read: {error}") from error
        pending, self._pending = self._pending, None
        for update in pending or ():
            self._apply(update)
        await self._execute(lambda image: _registration(image, broker))

    async def submit(self, command: Command) -> ClusterImage:
        """Execute a command; return its image, which this broker has applied."""
        decision = await self.submit_all([command])
        if decision.errors[0] is not None:
            raise decision.errors[0]
        return decision.image

    async def submit_all(
        self, commands: Sequence[Command], *, validate_only: bool = False, requester: Requester | None = None
    ) -> Decision:
        """Execute commands in order in one commit; each can fail alone. With `validate_only` nothing is committed.

        Committed changes are logged with the client that requested them; None is this broker itself.
        """
        if validate_only:
            return (await asyncio.to_thread(_decide_all, self.image, commands))[0]
        decision, former, changes = await self._commit_all(commands)
        await log_changes(former, changes, requester)
        topics = [change.topic.name for change in changes if isinstance(change, TopicChanged)]
        await self._applied(topics + [change.name for change in changes if isinstance(change, TopicRemoved)])
        return decision

    async def commit(self, command: Command) -> None:
        """Execute a command without waiting until this broker has applied it."""
        decision, _, _ = await self._commit_all([command])
        if decision.errors[0] is not None:
            raise decision.errors[0]

    async def _commit_all(self, commands: Sequence[Command]) -> tuple[Decision, ClusterImage, list[Change]]:
        """Execute commands; return their results, the image that they were decided on, and the changes."""
        decision, former = Decision(self.image, []), self.image

        def decided(image: ClusterImage) -> list[Change]:
            nonlocal decision, former
            former = image
            decision, changes = _decide_all(image, commands)
            return changes

        changes = await self._execute(decided)
        return decision, former, changes

    async def stop(self) -> None:
        """Close the store."""
        if self._registration is not None:
            self._registration.cancel()
            await asyncio.wait((self._registration,))
        await self._store.close()

    async def _acquire(self, broker: BrokerImage, timeout_s: float) -> Lease | None:
        """Acquire the lease of a broker id; wait for the end of a former process's session."""
        loop = asyncio.get_running_loop()
        deadline, is_logged = loop.time() + timeout_s, False
        while True:
            name, lost = f"/brokers/ids/{broker.id}", partial(self._lease_lost, broker)
            lease = await self._store.acquire(name, b"{}", lost)
            if lease is not None or loop.time() >= deadline:
                return lease
            if not is_logged:
                log.info("waiting for the end of another session with this node.id", node_id=broker.id)
                is_logged = True
            await asyncio.sleep(ACQUIRE_RETRY_S)

    def _lease_lost(self, broker: BrokerImage) -> None:
        log.error("session of the metadata store lost, registering again", node_id=broker.id)
        self._lease = None
        if self._registration is None or self._registration.done():
            self._registration = asyncio.get_running_loop().create_task(self._register_again(broker))

    async def _register_again(self, broker: BrokerImage) -> None:
        while True:
            try:
                if self._lease is None:
                    self._lease = await self._acquire(broker, math.inf)
                await self._execute(lambda image: _registration(image, broker))
            except (KafkaError, StoreError) as error:
                log.error("broker cannot be registered", node_id=broker.id, error=str(error))
                await asyncio.sleep(REGISTRATION_RETRY_S)
            else:
                log.info("broker registered again", node_id=broker.id, epoch=self.image.brokers[broker.id].epoch)
                return

    async def _execute(self, decided: Callable[[ClusterImage], list[Change]]) -> list[Change]:
        """Commit changes, which a thread decides: those of ten thousand partitions take a while."""
        async with self._lock:
            for _ in range(ATTEMPTS_MAX):
                image = self.image
                changes = await asyncio.to_thread(decided, image)
                if self.image is not image:
                    continue  # another broker has changed it, and `_versions` with it
                if not changes:
                    return changes
                try:
                    await self._commit(changes)
                except ConflictError:
                    continue
                except LeaseLostError as error:
                    raise KafkaError(ErrorCode.NOT_CONTROLLER, str(error)) from error
                except StoreError as error:
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
                return changes
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "other brokers kept changing the same metadata")

    async def _commit(self, changes: list[Change]) -> None:
        if self._lease is None:
            raise LeaseLostError("this broker is not registered: its session of the metadata store was lost")
        values = dict(map(metadata_records.encode, changes))  # the last of several changes of a record
        writes = [CompareAndSet(key, value, self._versions.get(key, ABSENT)) for key, value in values.items()]
        await self._store.commit(writes, self._lease)

    def _on_change(self, update: MetadataUpdate) -> None:
        """Apply a change of the store, or keep it until the lease and the cluster id are checked."""
        if self._pending is None:
            self._apply(update)
        else:
            self._pending.append(update)

    def _apply(self, update: MetadataUpdate) -> None:
        self._update_image(update)
        self._on_image(self.image)

    def _update_image(self, update: MetadataUpdate) -> None:
        if update.snapshot:
            self._versions.clear()
        for record in update.records:
            if record.value is None:
                self._versions.pop(record.key, None)
            else:
                self._versions[record.key] = record.version
        former = ClusterImage() if update.snapshot else self.image
        changes = (metadata_records.decode(record.key, record.value) for record in update.records)
        self.image = former.apply([change for change in changes if change is not None], update.revision)


def _decide_all(image: ClusterImage, commands: Sequence[Command]) -> tuple[Decision, list[Change]]:
    errors: list[KafkaError | None] = []
    changes: list[Change] = []
    builder = ImageBuilder(image)
    for command in commands:
        try:
            decided = decide(builder.image, command)
        except KafkaError as error:
            errors.append(error.without_traceback())
            continue
        errors.append(None)
        changes += decided
        builder.apply(decided)
    return Decision(builder.image, errors), changes


def _check_cluster(image: ClusterImage, cluster_id: str | None) -> None:
    """Raise INCONSISTENT_CLUSTER_ID if metadata and log dirs differ: unknown topics would count as deleted."""
    if cluster_id is None or image.cluster_id == cluster_id:
        return
    if image.cluster_id:
        why = f"the metadata belongs to cluster {image.cluster_id}"
    else:
        why = "its metadata is missing; restore it, or move the log dirs away to start a new cluster"
    raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"the log dirs belong to cluster {cluster_id}: {why}")


def _registration(image: ClusterImage, broker: BrokerImage) -> list[Change]:
    # The revision is greater than at any earlier registration, so the epoch is new.
    changes: list[Change] = [
        BrokerChanged(replace(broker, epoch=image.revision + 1)),
        ControllerChanged(broker.id),
    ]
    if not image.cluster_id:
        changes.insert(0, ClusterFormed(new_cluster_id()))
    return changes


def new_topic_id() -> UUID:
    """Return a random topic id."""
    while True:
        found = uuid4()
        # Its text form must not start with a dash, which Kafka's tools would parse as an option.
        if found not in RESERVED_IDS and not base64.urlsafe_b64encode(found.bytes).startswith(b"-"):
            return found


def new_cluster_id() -> str:
    """Return a random cluster id in Kafka's form."""
    return base64.urlsafe_b64encode(new_topic_id().bytes).rstrip(b"=").decode()
