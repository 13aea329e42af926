"""Registers this broker in the cluster, and again whenever its session of the metadata store has ended.

The broker holds its lease in a new broker epoch, then registers in it. Between a lost session and the next registration
it has no epoch: it leads nothing, and commits nothing.
"""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from levada.broker.cluster.commits import Commits
from levada.broker.cluster.ids import new_cluster_id
from levada.broker.cluster.image_updates import ImageUpdates
from levada.core.cluster.changes import BrokerImage
from levada.core.cluster.controller import Command
from levada.core.cluster.metadata_records import broker_lease
from levada.core.cluster.registration import (
    RANDOM_BITS,
    BrokerRecovered,
    FormCluster,
    RegisterBroker,
    next_epoch,
)
from levada.core.cluster.topics import NO_CREATOR, Creator
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.metadata.store import Lease, MetadataStore, StoreError

log = EventLog(__name__)

ACQUIRE_RETRY_S: Final = 0.2
RETRY_S: Final = 1.0


class Registration:
    """The lease and the broker epoch of this broker."""

    def __init__(
        self, store: MetadataStore, updates: ImageUpdates, commits: Commits, on_epoch: Callable[[int | None], None]
    ) -> None:
        self._store = store
        self._updates = updates
        self._commits = commits
        self._on_epoch = on_epoch
        self._broker: BrokerImage  # as it registers next
        self._unclean = False  # whether that follows an unclean restart of the machine
        self._lease: Lease | None = None
        self._task: asyncio.Task[None] | None = None  # registers again
        self.epoch: int | None = None  # None while this broker is not registered

    @property
    def creator(self) -> Creator:
        """This broker as the one that executes commands."""
        return NO_CREATOR if self.epoch is None else Creator(self._broker.id, self.epoch)

    def lease(self) -> Lease:
        """Return the lease; NOT_CONTROLLER while this broker is not registered."""
        if self._lease is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not registered: its session was lost")
        return self._lease

    async def register(self, broker: BrokerImage, *, unclean: bool) -> None:
        """Register for the first time; wait for the end of the session of a former process with this id."""
        self._broker, self._unclean = replace(broker, recovering=True), unclean
        await self._register(self._store.dead_session_timeout_s)

    async def recovered(self) -> None:
        """Record that the logs are recovered; retried until it is."""
        self._broker = replace(self._broker, recovering=False)
        while self.epoch is not None and self._updates.image.registered[self._broker.id].recovering:
            try:
                await self._commit(BrokerRecovered(self._broker.id, self.epoch))
            except KafkaError as error:
                log.error("recovery of the logs could not be recorded", error=error.detail)
                await asyncio.sleep(RETRY_S)

    async def stop(self) -> None:
        """Do not register again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _register(self, timeout_s: float) -> None:
        """Acquire the lease in a new epoch and register in it."""
        while self.epoch is None:
            if self._lease is None:
                await self._acquire(timeout_s)
            try:
                await self._commit(FormCluster(new_cluster_id()))
                await self._commit(RegisterBroker(self._broker, self._unclean))
            except KafkaError as error:
                if error.code is not ErrorCode.STALE_BROKER_EPOCH or self._lease is None:
                    raise
                await self._store.release(self._lease)  # a former process has registered meanwhile
                self._lease = None
                continue
            if self._lease is not None:
                self.epoch, self._unclean = self._broker.epoch, False
                self._on_epoch(self.epoch)

    async def _acquire(self, timeout_s: float) -> None:
        """Acquire the lease in a new epoch; DUPLICATE_BROKER_REGISTRATION if another session keeps it."""
        loop = asyncio.get_running_loop()
        deadline, is_logged = loop.time() + timeout_s, False
        while True:
            epoch = next_epoch(self._updates.image, self._broker.id, random.getrandbits(RANDOM_BITS))
            self._broker = replace(self._broker, epoch=epoch)
            self._lease = await self._store.acquire(*broker_lease(self._broker), self._lost)
            if self._lease is not None:
                return
            if loop.time() >= deadline:
                detail = f"another broker with node.id {self._broker.id} is running"
                raise KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, detail)
            if not is_logged:
                log.info("waiting for the end of another session with this node.id", node_id=self._broker.id)
                is_logged = True
            await asyncio.sleep(ACQUIRE_RETRY_S)

    async def _commit(self, command: Command) -> None:
        decision = await self._commits.execute([command], self.creator, self.lease)
        if decision.errors[0] is not None:
            raise decision.errors[0]

    def _lost(self) -> None:
        log.error("session of the metadata store lost, registering again", node_id=self._broker.id)
        self._lease = self.epoch = None
        self._on_epoch(None)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._register_again(), name="registration")

    async def _register_again(self) -> None:
        while self.epoch is None:
            try:
                await self._register(math.inf)
            except (KafkaError, StoreError) as error:
                log.error("broker cannot be registered", node_id=self._broker.id, error=str(error))
                await asyncio.sleep(RETRY_S)
        log.info("broker registered again", node_id=self._broker.id, epoch=self.epoch)
