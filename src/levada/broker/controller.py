"""Commands that change the cluster: decided on the newest image, stored, and answered once this broker has followed.

Commands are taken one at a time. A conflict means that another process wrote first: its change has been told by
then, so the command is decided again on the newer image.
"""

import asyncio
import base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID, uuid4

from levada.core.cluster import metadata_records as rows
from levada.core.cluster.controller import Command, decide
from levada.core.cluster.image import (
    BrokerChanged,
    BrokerImage,
    Change,
    ClusterFormed,
    ClusterImage,
    ControllerChanged,
    Draft,
)
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.metadata.store import (
    ABSENT,
    ConflictError,
    Lease,
    LeaseLostError,
    MetadataStore,
    Rows,
    StoreError,
    Write,
)

log = EventLog(__name__)

ATTEMPTS_MAX: Final = 20
RESERVED_IDS: Final = (UUID(int=0), UUID(int=1))  # Kafka's "no id" and its metadata topic


class Decision(NamedTuple):
    """What became of some commands: an error or None for each, and the image that the others gave."""

    image: ClusterImage
    errors: list[KafkaError | None]


class Controller:
    """The writer of metadata, and the keeper of the image that results."""

    def __init__(self, store: MetadataStore, on_image: Callable[[ClusterImage], None]) -> None:
        self.image = ClusterImage()
        self._store = store
        self._on_image = on_image
        self._versions: dict[str, int] = {}  # of every row the image is made of
        self._turn = asyncio.Lock()
        self._early: list[Rows] | None = []  # changes that came while starting
        self._lease: Lease | None = None  # while it is held, no other process is this broker

    async def start(self, broker: BrokerImage, cluster_id: str | None = None) -> None:
        """Read the store, make a cluster of it if it is new, and register this broker.

        `cluster_id` is what used log dirs say.
        """
        try:
            whole = await self._store.open(self._told)
            self._lease = await self._store.acquire(f"/brokers/{broker.id}", self._lease_lost)
            if self._lease is None:
                raise KafkaError(
                    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                    f"another broker with node.id {broker.id} is running",
                )
            self._advance(whole)
            _check_cluster(self.image, cluster_id)
            self._follow(whole)
        except StoreError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        except ValueError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"metadata cannot be read: {error}") from error
        early, self._early = self._early, None
        for news in early or ():
            self._follow(news)
        await self._carry_out(lambda image: _registered(image, broker))

    async def submit(self, command: Command) -> ClusterImage:
        """Carry out a command; the image is the one it was decided to give, and this broker has followed it."""
        decision = await self.submit_all([command])
        if decision.errors[0] is not None:
            raise decision.errors[0]
        return decision.image

    async def submit_all(self, commands: Sequence[Command], *, validate_only: bool = False) -> Decision:
        """Carry out commands one after the other in one commit; each may fail alone. Or only say how it would go."""
        if validate_only:
            return _decide_all(self.image, commands)[0]
        decision = Decision(self.image, [])

        def decided(image: ClusterImage) -> list[Change]:
            nonlocal decision
            decision, changes = _decide_all(image, commands)
            return changes

        await self._carry_out(decided)
        return decision

    async def stop(self) -> None:
        """Let the store go."""
        await self._store.close()

    async def _carry_out(self, decided: Callable[[ClusterImage], list[Change]]) -> None:
        async with self._turn:
            for _ in range(ATTEMPTS_MAX):
                changes = decided(self.image)
                if not changes:
                    return
                try:
                    await self._commit(changes)
                except ConflictError:
                    continue
                except LeaseLostError as error:
                    raise KafkaError(ErrorCode.NOT_CONTROLLER, str(error)) from error
                except StoreError as error:
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
                return
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "other brokers kept changing the same metadata")

    async def _commit(self, changes: list[Change]) -> None:
        values = dict(rows.encode(change) for change in changes)  # of two changes of a row, the later
        writes = [Write(key, value, self._versions.get(key, ABSENT)) for key, value in values.items()]
        await self._store.commit(writes, self._lease)

    def _lease_lost(self) -> None:
        log.error("another process has taken this broker's place; nothing is decided here any more")

    def _told(self, news: Rows) -> None:
        """The store has changed. Nothing is followed before it is sure that this broker may."""
        if self._early is None:
            self._follow(news)
        else:
            self._early.append(news)

    def _follow(self, news: Rows) -> None:
        self._advance(news)
        self._on_image(self.image)

    def _advance(self, news: Rows) -> None:
        """Make the next image."""
        if news.whole:
            self._versions.clear()
        for row in news.rows:
            if row.value is None:
                self._versions.pop(row.key, None)
            else:
                self._versions[row.key] = row.version
        former = ClusterImage() if news.whole else self.image
        changes = (rows.decode(row.key, row.value) for row in news.rows)
        self.image = former.apply([change for change in changes if change is not None], news.revision)


def _decide_all(image: ClusterImage, commands: Sequence[Command]) -> tuple[Decision, list[Change]]:
    errors: list[KafkaError | None] = []
    changes: list[Change] = []
    draft = Draft(image)
    for command in commands:
        try:
            decided = decide(draft.image, command)
        except KafkaError as error:
            errors.append(error.kept())
            continue
        errors.append(None)
        changes += decided
        draft.absorb(decided)
    return Decision(draft.image, errors), changes


def _check_cluster(image: ClusterImage, cluster_id: str | None) -> None:
    """Refuse metadata that is not of the log dirs: topics it does not know would be taken for deleted ones."""
    if cluster_id is None or image.cluster_id == cluster_id:
        return
    if image.cluster_id:
        why = f"the metadata belongs to cluster {image.cluster_id}"
    else:
        why = "its metadata is gone; bring it back, or move the log dirs away to begin anew"
    raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"the log dirs belong to cluster {cluster_id}: {why}")


def _registered(image: ClusterImage, broker: BrokerImage) -> list[Change]:
    # The revision has grown since any earlier registration, so it tells this start from those before.
    changes: list[Change] = [
        BrokerChanged(replace(broker, epoch=image.revision + 1)),
        ControllerChanged(broker.id),
    ]
    if not image.cluster_id:
        changes.insert(0, ClusterFormed(new_cluster_id()))
    return changes


def new_topic_id() -> UUID:
    """An id that no topic had before."""
    while True:
        found = uuid4()
        # Kafka's text form must not begin with a dash, which its tools would take for an option.
        if found not in RESERVED_IDS and not base64.urlsafe_b64encode(found.bytes).startswith(b"-"):
            return found


def new_cluster_id() -> str:
    """An id for a new cluster, in Kafka's form."""
    return base64.urlsafe_b64encode(new_topic_id().bytes).rstrip(b"=").decode()
