"""One broker: holds the cluster image, the replicas on it and the coordinators, for all handlers.

It is level-triggered: `reconcile` compares the image with the open partitions, and the reconciler makes them agree,
whatever happened in between.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from levada.broker.compaction.cleaner import CleanerMetrics
from levada.broker.controller import Controller
from levada.broker.coordinator.groups import GROUP_KEYS, group_coordinators
from levada.broker.coordinator.runtime import CoordinatorMetrics, CoordinatorRuntime
from levada.broker.coordinator.transactions import TRANSACTION_KEYS, transaction_coordinators
from levada.broker.log_dirs import LogDirs
from levada.broker.metrics.requests import RequestMetrics
from levada.broker.partition.partition import Partition, PartitionContext
from levada.broker.partition.routes import PartitionRoutes
from levada.broker.producer_ids import ProducerIds
from levada.broker.reconciler import Reconciler
from levada.broker.replication.replication import Replication
from levada.broker.tasks import Tasks
from levada.clock import Clock
from levada.config.broker import BrokerConfig
from levada.config.topic import TopicConfig
from levada.core.cluster.image import ClusterImage, TopicImage
from levada.core.cluster.isr import AlterPartition
from levada.core.cluster.topic_names import is_internal
from levada.core.partition.fetch_sessions import FetchSessions
from levada.errors import ErrorCode, KafkaError
from levada.metadata.store import MetadataStore
from levada.model import TopicPartition
from levada.net.flush import FlushQueue
from levada.storage.log.reader import Slice, warm
from levada.storage.log.scrub import ScrubMetrics

SESSION_ID_MAX: Final = (1 << 31) - 1
READ_THREADS: Final = 2
COMPRESSION_THREADS: Final = 2

T = TypeVar("T")


def traffic(partition: Partition) -> dict[str, int]:
    """Return the counters of a partition, by their names in Kafka's BrokerTopicMetrics."""
    return {"messagesin": partition.messages_in, "bytesin": partition.bytes_in, "bytesout": partition.bytes_out}


def _new_session_id() -> int:
    return random.randint(1, SESSION_ID_MAX)


class Broker:
    """The parts of one node."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, store: MetadataStore, log_dirs: LogDirs, flush_queue: FlushQueue
    ) -> None:
        self.config = config
        self.node_id = config.node_id
        self.clock = clock
        self.tasks = Tasks()
        self.log_dirs = log_dirs
        self.flush_queue = flush_queue
        self.partition_context = PartitionContext(flush_queue, log_dirs.request_flush, log_dirs.failed)
        self.image = ClusterImage()
        self._reconciler = Reconciler(self)
        self.controller = Controller(store, self.reconcile, self._reconciler.applied)
        self.partitions: dict[tuple[str, int], Partition] = {}
        self._routes = PartitionRoutes(self._not_served)  # to the same partitions
        self.route = self._routes.find
        self.opened_partitions = Counter[str]()  # by topic, so that caches notice them
        # Called with the former and the new image; the partitions of new topics are opened afterwards.
        self.image_listeners: list[Callable[[ClusterImage, ClusterImage], None]] = []
        self.partition_listeners: list[Callable[[Partition], None]] = []  # called with each replica that is open
        # Called with each partition that this broker begins to lead in a new epoch, or leads no longer.
        self.leadership_listeners: list[Callable[[Partition], None]] = []
        self.replication = Replication(self)
        self.groups = group_coordinators(self)
        self.transactions = transaction_coordinators(self)
        # By FindCoordinator's key type.
        self.coordinators: dict[int, CoordinatorRuntime[Any]]
        self.coordinators = {GROUP_KEYS: self.groups, TRANSACTION_KEYS: self.transactions}
        self.cleaner_metrics, self.scrub_metrics = CleanerMetrics(), ScrubMetrics()
        self.coordinator_metrics = CoordinatorMetrics()
        self.request_metrics = RequestMetrics(clock.monotonic, flush_queue)
        self.deleted_traffic: Counter[str] = Counter()  # of deleted partitions, which totals include
        self.sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, _new_session_id)
        self._loop = asyncio.get_running_loop()
        self.call_later = self._loop.call_later
        self.large_requests = asyncio.Lock()  # of the request that takes slices: one of them in a loop iteration
        self._open = False  # partitions are opened once the log dirs have this cluster's id
        self.producer_ids = ProducerIds(self.controller.submit)
        self._readers = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="read-ahead")
        self._compressors = ThreadPoolExecutor(COMPRESSION_THREADS, thread_name_prefix="compression")

    # Finding partitions.

    def _not_served(self, name: str, index: int) -> KafkaError:
        if self.node_id not in self.image.topics[name].partitions[index].replicas:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker has no replica of this partition")
        offline = self.log_dirs.offline_logs.get(TopicPartition(name, index))
        if offline is None:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the log of {name}-{index} is being opened")
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {name}-{index} is offline: {offline.detail}")

    def partition(self, topic: str, index: int) -> Partition:
        """The partition of that name."""
        return self.route(topic.encode(), index, 0)

    def is_opening(self, topic: str, index: int) -> bool:
        """Whether the log of a partition that this broker leads is neither open nor offline."""
        is_known = (topic, index) in self.partitions or TopicPartition(topic, index) in self.log_dirs.offline_logs
        return not is_known and self.image.topics[topic].partitions[index].leader == self.node_id

    # Reconciling partitions with the image.

    def reconcile(self, image: ClusterImage) -> None:
        """Begin to open, configure and delete partitions until they agree with the image."""
        former, self.image = self.image, image
        self.replication.image_changed(former, image)
        if self._open:
            self._reconcile(former, image)

    def open(self) -> None:
        """Begin to open every replica of the image; from then on each image is reconciled."""
        self._open = True
        self.replication.start()
        self._reconcile(ClusterImage(), self.image)

    async def opened(self) -> None:
        """Return when the logs of all partitions of the image are open or offline."""
        await self._reconciler.opened()

    def _reconcile(self, former: ClusterImage, image: ClusterImage) -> None:
        changed = []
        for name, topic in former.topics.items():
            current = image.topics.get(name)
            if current is None or current.id != topic.id:
                self._delete(topic)
                changed.append(name)
        defaults_changed = former.broker_configs != image.broker_configs
        for name, topic in image.topics.items():
            known = former.topics.get(name)
            if defaults_changed or known is not topic:
                self._route(topic)
                self._apply_roles(known, topic)
                changed.append(name)
        for listener in self.image_listeners:
            listener(former, image)
        self._reconciler.topics_changed(dict.fromkeys(changed))

    def _apply_roles(self, former: TopicImage | None, topic: TopicImage) -> None:
        """Give the open partitions of a topic their roles; those that are not open yet get them then."""
        known = () if former is None or former.id != topic.id else former.partitions
        for index, state in enumerate(topic.partitions):
            if index >= len(known) or known[index] is not state:
                partition = self.partitions.get((topic.name, index))
                if partition is not None:
                    self.replication.apply(partition, state)

    def leadership_changed(self, partition: Partition) -> None:
        """Notify of a new leader epoch, or of the end of this broker's leadership."""
        for listener in self.leadership_listeners:
            listener(partition)

    async def alter_partitions(self, commands: Sequence[AlterPartition]) -> list[KafkaError | None]:
        """Commit ISR changes of partitions that this broker leads; return the error of each."""
        return (await self.controller.submit_all(commands)).errors

    def topic_config(self, topic: TopicImage) -> TopicConfig:
        """The settings of a topic: its own, the cluster's, the defaults."""
        configs = {**topic.configs, "cleanup.policy": "compact"} if is_internal(topic.name) else topic.configs
        return TopicConfig.build(self.current_config().topic_defaults, configs)

    def internal_configs(self, topic: str) -> Mapping[str, str]:
        """The configs with which a coordinator creates its internal topic; a client that creates it gets them too."""
        internal = [coordinators.topic for coordinators in self.coordinators.values()]
        return next((configs for name, _, _, configs in internal if name == topic), {})

    def current_config(self) -> BrokerConfig:
        """The broker's settings with their dynamic changes."""
        changes: dict[str, str] = {}
        for name in ("", str(self.node_id)):
            changes.update(self.image.broker_configs.get(name, {}))
        return self.config.with_overrides(changes) if changes else self.config

    def _route(self, topic: TopicImage) -> None:
        """Route requests to the open partitions of a topic; those of the others fail until they are open."""
        partitions, name = self.partitions, topic.name
        self._routes.set(name, topic.id, [partitions.get((name, index)) for index in range(len(topic.partitions))])

    def serve(self, partition: Partition) -> None:
        """Route requests to a replica that is open now, and give it its role."""
        self.partitions[partition.topic, partition.index] = partition
        ids = (producer_id for producer_id, _ in partition.producers.items())
        self.producer_ids.exclude(f"{partition.topic}-{partition.index}", ids, self.image)
        self.opened_partitions[partition.topic] += 1
        self._routes.serve(partition)
        for listener in self.partition_listeners:
            listener(partition)
        self.replication.apply(partition, self.image.topics[partition.topic].partitions[partition.index])

    def _delete(self, topic: TopicImage) -> None:
        self._routes.remove(topic.name, topic.id)
        self.opened_partitions.pop(topic.name, None)
        names = [(topic.name, index) for index in range(len(topic.partitions))]
        partitions = [self.partitions.pop(name) for name in names if name in self.partitions]
        self._forget(partitions)
        self._reconciler.delete(topic, partitions)

    def remove_replica(self, partition: Partition) -> None:
        """Serve a replica no longer, because the image does not assign it to this broker."""
        del self.partitions[partition.topic, partition.index]
        self._route(self.image.topics[partition.topic])
        self._forget([partition])
        partition.follow(partition.leader_epoch)
        self.leadership_changed(partition)

    def _forget(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self.replication.forget(partition)
            for counter, count in traffic(partition).items():
                self.deleted_traffic[counter] += count

    # Work in threads.

    def read_ahead(self, pieces: Sequence[Slice], done: Callable[[], None]) -> None:
        """Read slices into the page cache in a thread, so that the loop does not wait for the disk; call `done`."""

        def read() -> None:
            for piece in pieces:
                warm(self.log_dirs.disk, piece)

        self._loop.run_in_executor(self._readers, read).add_done_callback(lambda _: done())

    def run_in_thread(self, work: Callable[[], T], done: Callable[[Callable[[], T]], None]) -> None:
        """Check or recompress batches in a thread; then call `done` on the event loop with what gives the result."""

        def finished(result: asyncio.Future[T]) -> None:
            if not result.cancelled():
                done(result.result)

        self._loop.run_in_executor(self._compressors, work).add_done_callback(finished)

    async def stop(self) -> None:
        """Finish the background work, then close the logs cleanly."""
        self._open = False  # a change of the metadata begins no work on logs now
        for coordinators in self.coordinators.values():
            coordinators.close()
        self.replication.close()
        await self.tasks.stop()
        await self.controller.stop()
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._compressors.shutdown(wait=True, cancel_futures=True)
        await self.log_dirs.close()
