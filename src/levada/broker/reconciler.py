"""Reconciles the partitions of a broker with the cluster image: opens, configures and deletes them.

It is level-triggered: each round compares the newest image with the open partitions of the topics that have changed.
Threads open, create, rename and close files. The loop makes the partitions and routes requests to them, a few per
iteration, so that ten thousand partitions do not delay other requests. Work on one topic never overlaps: a topic that
is deleted and created again is deleted first.

A new partition is served once its directory is durable and the metadata assigns it to its log dir. The logs that exist
at the start are recovered beside that work: a topic can be altered, extended and deleted meanwhile.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from levada.broker.log_dirs import LOGS_PER_CALL, LogToDelete
from levada.broker.log_files.opening import LogToOpen, OpenedLog
from levada.broker.log_files.progress import Progress
from levada.broker.partition.partition import Partition
from levada.config.topic import TopicConfig
from levada.core.cluster.controller import AssignDirectories
from levada.core.cluster.image import TopicImage
from levada.core.cluster.topic_names import is_internal
from levada.errors import KafkaError
from levada.logs import EventLog
from levada.model import TopicPartition

if TYPE_CHECKING:
    from levada.broker.broker import Broker

log = EventLog(__name__)

PARTITIONS_PER_ITERATION: Final = 100
ASSIGNMENT_RETRY_S: Final = 1.0

T = TypeVar("T")


class Reconciler:
    """The work on topics whose partitions do not agree with the image."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._log_dirs = broker.log_dirs
        self._loop = asyncio.get_running_loop()
        self._changed: set[str] = set()  # topics to compare with the image
        self._rounds: dict[str, asyncio.Future[None]] = {}  # by topic, done when its round of work ends
        self._deleted: dict[str, list[Partition | LogToDelete]] = {}  # by topic
        self._configs: dict[str, TopicConfig] = {}  # by topic, as its partitions have them
        self._recovering: dict[str, dict[int, LogToOpen]] = {}  # existing logs that no thread opens yet, by topic
        self._opening: dict[TopicPartition, tuple[UUID, asyncio.Future[None]]] = {}  # those that threads are opening
        self._recovery: asyncio.Task[None] | None = None  # of the logs that existed at the start
        self._started = False
        self._strays_marked = asyncio.Event()  # by the first round: until then no directory is created

    def topics_changed(self, names: Iterable[str]) -> None:
        """Begin to reconcile topics; those that are being worked on are compared again afterwards."""
        names = list(names)
        self._changed.update(names)
        idle = sorted((name for name in names if name not in self._rounds), key=lambda name: not is_internal(name))
        if idle or not self._started:
            is_first, self._started = not self._started, True
            self._set_round(idle)
            self._broker.tasks.start("reconcile", self._run(idle, is_first))

    def delete(self, topic: TopicImage, partitions: Sequence[Partition]) -> None:
        """Delete the logs of a topic before the next round of its name."""
        self._deleted.setdefault(topic.name, []).extend([*partitions, *self._log_dirs.remove_offline(topic)])
        self._configs.pop(topic.name, None)

    async def opened(self) -> None:
        """Return when the logs of all partitions of the image are open or offline."""
        await self.applied(list(self._broker.image.topics))
        if self._recovery is not None:
            await asyncio.wait((self._recovery,))

    async def applied(self, names: Iterable[str]) -> None:
        """Return when the partitions of these topics agree with the image, are offline, or are being recovered."""
        for name in names:
            while name in self._rounds:
                await asyncio.wait((self._rounds[name],))

    def _set_round(self, names: Iterable[str]) -> None:
        work = self._loop.create_future()
        for name in names:
            self._rounds[name] = work

    async def _run(self, names: list[str], is_first: bool) -> None:
        """Work on topics in rounds, until they agree with the image. The first round of all has every topic."""
        try:
            while True:
                self._changed.difference_update(names)
                await self._delete_logs(names)
                await self._open_logs(names, is_first)
                is_first, names = False, self._end_round(names)
                if not names:
                    break
        finally:
            self._changed.difference_update(names)
            self._end_round(names)

    def _end_round(self, names: list[str]) -> list[str]:
        """Notify of the end of a round; return the topics that have changed meanwhile."""
        ended = {self._rounds.pop(name) for name in names}
        remaining = [name for name in names if name in self._changed]
        if remaining:
            self._set_round(remaining)
        for work in ended:
            work.set_result(None)
        return remaining

    # Deleting.

    async def _delete_logs(self, names: Iterable[str]) -> None:
        for name in names:
            await self._cancel_recovery(name)
        deleted = [one for name in names for one in self._deleted.pop(name, ())]
        if not deleted:
            return
        while deleted:
            some, deleted = deleted[:PARTITIONS_PER_ITERATION], deleted[PARTITIONS_PER_ITERATION:]  # freed in slices
            logs = [self._log_dirs.remove(one) if isinstance(one, Partition) else one for one in some]
            await self._in_thread(self._log_dirs.delete_logs, [one for one in logs if one is not None])
        self._log_dirs.delete_files_soon()

    async def _cancel_recovery(self, name: str) -> None:
        """Delete the logs of a deleted topic that are not open yet; wait for those that threads are opening."""
        recovering = self._recovering.get(name, {})
        for index, request in list(recovering.items()):
            if not self._is_current(name, request.topic_id):
                del recovering[index]
                self._deleted.setdefault(name, []).append(self._log_dirs.remove_unopened(request))
        opening = [one for partition, one in self._opening.items() if partition.topic == name]
        for topic_id, done in opening:
            if not self._is_current(name, topic_id):
                await asyncio.wait((done,))

    # Opening.

    async def _open_logs(self, names: list[str], is_first: bool) -> None:
        requests: list[LogToOpen] = []
        if not is_first:
            await self._strays_marked.wait()
        for name in names:
            await self._locate(name, requests)
        if is_first:
            await self._in_thread(self._log_dirs.mark_strays)
            self._strays_marked.set()
            self._log_dirs.delete_files_soon()
            existing = [request for request in requests if request.existed]
            self._recovery = self._broker.tasks.start("recovery", self._recover(existing))
        new = [request for request in requests if not request.existed]
        if new:
            await self._in_thread(self._log_dirs.prepare, new)
            await self._assign((), await self._create(new))

    async def _recover(self, requests: Sequence[LogToOpen]) -> None:
        """Open existing logs one by one and serve them as they are opened."""
        progress = Progress("opening logs", len(requests), self._broker.clock)
        queue = iter(requests)

        async def worker() -> None:
            for request in queue:
                name, index = request.partition
                if self._recovering[name].pop(index, None) is not None:
                    await self._recover_log(request)
                progress.advance(1)

        await asyncio.gather(*[worker() for _ in range(self._log_dirs.threads_max)])
        await self._assign(requests, ())
        await self._in_thread(self._log_dirs.recovered)
        if requests:
            log.info("logs are open", logs=len(requests), seconds=progress.seconds)

    async def _recover_log(self, request: LogToOpen) -> None:
        done = self._loop.create_future()
        self._opening[request.partition] = request.topic_id, done
        try:
            threads, open_logs = self._log_dirs.recovery_threads, self._log_dirs.open_logs
            (result,) = await self._loop.run_in_executor(threads, open_logs, [request])
            partition = self._opened(request, result)
            if partition is not None:
                self._serve(partition)
        finally:
            del self._opening[request.partition]
            done.set_result(None)

    async def _create(self, requests: Sequence[LogToOpen]) -> list[tuple[LogToOpen, Partition]]:
        """Create logs in threads; return those that could be created."""
        progress = Progress("creating logs", len(requests), self._broker.clock)
        created: list[tuple[LogToOpen, Partition]] = []
        chunks = iter(_chunks(requests, LOGS_PER_CALL))

        async def worker() -> None:
            for chunk in chunks:
                results = await self._in_thread(self._log_dirs.open_logs, chunk)
                for request, result in zip(chunk, results, strict=True):
                    partition = self._opened(request, result)
                    if partition is not None:
                        created.append((request, partition))
                progress.advance(len(chunk))

        await asyncio.gather(*[worker() for _ in range(self._log_dirs.threads_max)])
        return created

    def _opened(self, request: LogToOpen, result: OpenedLog | Exception) -> Partition | None:
        partition = self._log_dirs.opened(request, result, self._broker.partition_context)
        if partition is None:
            self._not_opened(request)
        return partition

    async def _locate(self, name: str, requests: list[LogToOpen]) -> None:
        """Configure the open partitions of a topic; add the logs to open."""
        topic = self._broker.image.topics.get(name)
        if topic is None:
            return
        config = self._config(topic)
        for index, state in enumerate(topic.partitions):
            partition = self._broker.partitions.get((name, index))
            if partition is not None:
                if partition.log.config is not config:
                    partition.configure(config)
                partition.in_sync_replicas = len(state.isr)
                partition.set_leader_epoch(state.leader_epoch)
            elif state.leader == self._broker.node_id and not self._is_recovering(name, index):
                request = self._log_dirs.locate(topic, index, config)
                if request is not None:
                    requests.append(request)
                    if request.existed:
                        self._recovering.setdefault(name, {})[index] = request
            if index % PARTITIONS_PER_ITERATION == 0:
                await asyncio.sleep(0)

    def _is_recovering(self, name: str, index: int) -> bool:
        return index in self._recovering.get(name, ()) or TopicPartition(name, index) in self._opening

    def _config(self, topic: TopicImage) -> TopicConfig:
        """The config of a topic; the same object as before if nothing has changed."""
        config = self._broker.topic_config(topic)
        if self._configs.get(topic.name) != config:
            self._configs[topic.name] = config
        return self._configs[topic.name]

    def _not_opened(self, request: LogToOpen) -> None:
        """Locate a log again that could not be created because its log dir went offline."""
        if not self._is_current(request.partition.topic, request.topic_id):
            self._log_dirs.offline_logs.pop(request.partition, None)
        elif request.partition not in self._log_dirs.offline_logs:
            self.topics_changed([request.partition.topic])

    def _is_current(self, name: str, topic_id: UUID) -> bool:
        """Whether a topic was not deleted meanwhile."""
        topic = self._broker.image.topics.get(name)
        return topic is not None and topic.id == topic_id

    async def _assign(self, existed: Sequence[LogToOpen], created: Sequence[tuple[LogToOpen, Partition]]) -> None:
        """Record the log dirs of partitions in the metadata, then serve the new ones."""
        await self._in_thread(self._log_dirs.fsync_created, {request.log_dir for request, _ in created})
        directories: dict[UUID, dict[int, UUID]] = {}
        for request in (*existed, *[request for request, _ in created]):
            if not request.is_assigned and not request.log_dir.offline:
                index = request.partition.partition
                directories.setdefault(request.topic_id, {})[index] = request.log_dir.directory_id
        while directories:
            try:
                await self._broker.controller.commit(AssignDirectories(self._broker.node_id, directories))
                break
            except KafkaError as error:
                log.error("log dirs of partitions could not be recorded", topics=len(directories), error=error.detail)
                if not created:
                    break  # the next start records them
                await asyncio.sleep(ASSIGNMENT_RETRY_S)
        for some in _chunks(created, PARTITIONS_PER_ITERATION):
            for _, partition in some:
                self._serve(partition)
            await asyncio.sleep(0)

    def _serve(self, partition: Partition) -> None:
        """Serve an open partition, unless its topic was deleted meanwhile."""
        name = partition.topic
        if self._is_current(name, partition.topic_id):
            config = self._configs[name]
            if partition.log.config is not config:  # altered while the log was being recovered
                partition.configure(config)
            self._broker.serve(partition)
        else:
            self._deleted.setdefault(name, []).append(partition)
            self.topics_changed([name])

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await self._loop.run_in_executor(self._log_dirs.threads, function, *arguments)


def _chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
