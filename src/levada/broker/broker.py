"""One broker: holds the cluster image, the partitions that it leads and the coordinators, for all handlers.

It is level-triggered: `reconcile` compares the image with the open partitions, and the reconciler makes them agree,
whatever happened in between.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from levada.broker.cluster.controller_duties import Settings
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
from levada.broker.tasks import Tasks
from levada.clock import Clock
from levada.config.broker import BrokerConfig
from levada.config.topic import TopicConfig
from levada.core.cluster.duties import DutySettings
from levada.core.cluster.image import ClusterImage, TopicImage
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
        self.controller = Controller(store, self.reconcile, self._reconciler.applied, self._controller_settings)
        self.partitions: dict[tuple[str, int], Partition] = {}
        self._routes = PartitionRoutes(self._not_served)  # to the same partitions
        self.route = self._routes.find
        self.opened_partitions = Counter[str]()  # by topic, so that caches notice them
        # Called with the former and the new image; the partitions of new topics are opened afterwards.
        self.image_listeners: list[Callable[[ClusterImage, ClusterImage], None]] = []
        self.partition_listeners: list[Callable[[Partition], None]] = []  # called with each partition that is open
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
        if self.image.topics[name].partitions[index].leader != self.node_id:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker leads this partition")
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
        if self._open:
            self._reconcile(former, image)

    def open(self) -> None:
        """Begin to open every partition of the image; from then on each image is reconciled."""
        self._open = True
        self._reconcile(ClusterImage(), self.image)
        self.tasks.start("recovered", self._recovered())

    async def _recovered(self) -> None:
        await self.opened()
        await self.controller.recovered()

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
            if defaults_changed or former.topics.get(name) is not topic:
                self._route(topic)
                changed.append(name)
        for listener in self.image_listeners:
            listener(former, image)
        self._reconciler.topics_changed(dict.fromkeys(changed))

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

    def _controller_settings(self) -> Settings:
        config = self.current_config()
        cluster = config.cluster
        return Settings(
            DutySettings(
                config.topic_defaults.unclean_leader_election_enable,
                cluster.leader_imbalance_per_broker_percentage,
                cluster.levada_auto_rebalance_enable,
                cluster.levada_reassignments_max,
            ),
            cluster.leader_imbalance_check_interval_seconds if cluster.auto_leader_rebalance_enable else None,
        )

    def _route(self, topic: TopicImage) -> None:
        """Route requests to the open partitions of a topic; those of the others fail until they are open."""
        partitions, name = self.partitions, topic.name
        self._routes.set(name, topic.id, [partitions.get((name, index)) for index in range(len(topic.partitions))])

    def serve(self, partition: Partition) -> None:
        """Route requests to a partition that is open now."""
        self.partitions[partition.topic, partition.index] = partition
        ids = (producer_id for producer_id, _ in partition.producers.items())
        self.producer_ids.exclude(f"{partition.topic}-{partition.index}", ids, self.image)
        self.opened_partitions[partition.topic] += 1
        self._routes.serve(partition)
        for listener in self.partition_listeners:
            listener(partition)

    def _delete(self, topic: TopicImage) -> None:
        self._routes.remove(topic.name, topic.id)
        self.opened_partitions.pop(topic.name, None)
        names = [(topic.name, index) for index in range(len(topic.partitions))]
        partitions = [self.partitions.pop(name) for name in names if name in self.partitions]
        for partition in partitions:
            for counter, count in traffic(partition).items():
                self.deleted_traffic[counter] += count
        self._reconciler.delete(topic, partitions)

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
        await self.tasks.stop()
        await self.controller.stop()
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._compressors.shutdown(wait=True, cancel_futures=True)
        await self.log_dirs.close()
