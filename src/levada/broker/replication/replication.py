"""Gives each partition its role by the cluster image, and runs both sides of replication.

Leader epochs are compared, never leaders: leadership that was lost and regained between two images begins a new epoch.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from levada.broker.partition.partition import Partition
from levada.broker.replication.fetcher import ReplicaFetcher
from levada.broker.replication.isr import IsrChanges
from levada.broker.replication.offline import OfflineReplicas
from levada.broker.replication.throttle import ReplicationThrottle, names_replica
from levada.client.connection import Address
from levada.client.errors import ConnectionFailed
from levada.core.cluster.image import ClusterImage, PartitionImage
from levada.core.partition.fetch_sessions import FetchPartition
from levada.core.partition.replica import UNKNOWN_EPOCH, LeaderReplicas, LiveBrokers
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.model import NO_LEADER, TopicPartition
from levada.storage.log.reader import NOTHING, Slice

if TYPE_CHECKING:
    from levada.broker.broker import Broker

log = EventLog(__name__)

NO_REPLICA: Final = -1


class Replication:
    """The roles of the partitions of one broker."""

    def __init__(self, broker: "Broker") -> None:
        self.broker = broker
        self.config = broker.config.replication
        self.live = LiveBrokers()
        self.broker_epoch = UNKNOWN_EPOCH  # of this broker's present registration
        self.isr = IsrChanges(broker)
        self.offline = OfflineReplicas(broker)
        self.leader_throttle, self.follower_throttle = ReplicationThrottle(), ReplicationThrottle()
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}  # by leader and number
        self._followed: dict[Partition, ReplicaFetcher] = {}
        self._racks: Mapping[int, str | None] = {}
        # Where DeleteRecords waits for followers: the offset below which they delete, by partition.
        self._deletions: dict[Partition, list[tuple[int, asyncio.Future[bool]]]] = {}
        self._closed = False
        broker.log_dirs.truncations.done = self.truncated
        broker.log_dirs.replica_failed = self.offline.report

    def start(self) -> None:
        """Begin to check the ISRs of the partitions that this broker leads."""
        self.broker.tasks.every("isr", self.config.replica_lag_time_max_ms / 2000, self.check_isrs)

    def close(self) -> None:
        """Stop fetching."""
        self._closed = True
        for fetcher in self._fetchers.values():
            fetcher.close()

    # Roles.

    def image_changed(self, former: ClusterImage, image: ClusterImage) -> None:
        """Take over the registered brokers, and the throttles, of a new image."""
        if former.broker_configs != image.broker_configs or not self._racks:
            config = self.broker.current_config().replication
            self.leader_throttle.rate = config.leader_replication_throttled_rate
            self.follower_throttle.rate = config.follower_replication_throttled_rate
        if former.brokers == image.brokers:
            return
        live, own = self.live, image.brokers.get(self.broker.node_id)
        live.epochs = {broker.id: broker.epoch for broker in image.brokers.values()}
        live.fenced = {broker.id for broker in image.brokers.values() if broker.shutting_down}
        self.broker_epoch = UNKNOWN_EPOCH if own is None else own.epoch
        self._racks = {broker.id: broker.rack for broker in image.brokers.values()}
        now_ms = self._now_ms()
        for partition in self.broker.partitions.values():
            if partition.replicas is not None and partition.replicas.advance(now_ms):
                partition.replicas_changed()
        for fetcher in self._fetchers.values():
            fetcher.wake()
        self.offline.report_all()

    def apply(self, partition: Partition, state: PartitionImage) -> None:
        """Give a partition the role that the image names, and the leader its replicas."""
        if partition.truncating or self._closed:
            return  # `truncated` applies the newest image
        if partition.offline:
            self._repair(partition, state)
            return
        node_id = self.broker.node_id
        leads = state.leader == node_id and state.leader_broker_epoch in (UNKNOWN_EPOCH, self.broker_epoch)
        if state.leader_epoch > partition.leader_epoch or leads != partition.is_leader:
            self._begin_epoch(partition, state, leads)
        elif leads:
            self._update(partition, state)
        elif partition not in self._followed:
            self._follow(partition, state.leader)

    def _repair(self, partition: Partition, state: PartitionImage) -> None:
        """Begin a damaged log anew once it is in no ISR: the leader has everything that is committed."""
        node_id, log_dirs = self.broker.node_id, self.broker.log_dirs
        if state.leader in (NO_LEADER, node_id) or node_id in state.isr or not log_dirs.revive(partition):
            return
        name = TopicPartition(partition.topic, partition.index)
        log.warning("damaged log is fetched anew from the leader", partition=str(name), leader=state.leader)
        self.offline.repaired(name, partition.topic_id)
        self._unfollow(partition)
        partition.follow(state.leader_epoch)
        self.broker.leadership_changed(partition)
        log_dirs.truncations.request(partition, 0, restart=True)

    def _begin_epoch(self, partition: Partition, state: PartitionImage, leads: bool) -> None:
        self._unfollow(partition)
        self._deletions.pop(partition, None)
        if leads:
            partition.publish_queued()
            partition.lead(state.leader_epoch, self._new_replicas(partition, state))
            if partition.replicas is not None:
                partition.replicas_changed()
        else:
            partition.follow(state.leader_epoch)
            self._follow(partition, state.leader)
        self.broker.leadership_changed(partition)

    def _new_replicas(self, partition: Partition, state: PartitionImage) -> LeaderReplicas | None:
        if len(state.replicas) == 1:
            return None
        end_offset, lag_max_ms = partition.log.log_end_offset, self.config.replica_lag_time_max_ms
        node_id, high_watermark = self.broker.node_id, partition.high_watermark
        replicas = LeaderReplicas(node_id, state.leader_epoch, end_offset, high_watermark, self.live, lag_max_ms)
        replicas.update(state.replicas, isr_of(state), state.partition_epoch, self._now_ms())
        return replicas

    def _update(self, partition: Partition, state: PartitionImage) -> None:
        """Take over a new ISR, or new replicas, of a partition that is led in the same epoch."""
        replicas = partition.replicas
        if replicas is None or len(state.replicas) == 1:
            if (replicas is None) != (len(state.replicas) == 1):
                partition.set_replicas(self._new_replicas(partition, state))
            return
        before = len(replicas.isr)
        replicas.update(state.replicas, isr_of(state), state.partition_epoch, self._now_ms())
        self.isr.shrinks += len(replicas.isr) < before
        self.isr.expands += len(replicas.isr) > before
        partition.replicas_changed()
        self.isr.check(partition, self.broker.clock.monotonic())  # the next change, which waited for this one

    def _follow(self, partition: Partition, leader: int) -> None:
        if leader in (NO_LEADER, self.broker.node_id):
            return
        number = hash((partition.topic_id, partition.index)) % self.config.num_replica_fetchers
        fetcher = self._fetchers.get((leader, number))
        if fetcher is None:
            fetcher = self._fetchers[leader, number] = ReplicaFetcher(self, leader)
        self._followed[partition] = fetcher
        fetcher.add(partition)

    def _unfollow(self, partition: Partition) -> None:
        fetcher = self._followed.pop(partition, None)
        if fetcher is not None:
            fetcher.remove(partition)

    def forget(self, partition: Partition) -> None:
        """The partition is deleted, or closed."""
        self._unfollow(partition)
        self._deletions.pop(partition, None)
        self.isr.forget(partition)

    def address_of(self, broker: int) -> Address:
        """Where other brokers reach a broker. Raises ConnectionFailed."""
        found = self.broker.image.brokers.get(broker)
        if found is None:
            raise ConnectionFailed(f"broker {broker} is not registered")
        name = self.config.inter_broker_listener_name
        endpoint = next((at for at in found.endpoints if name in (None, at.listener)), None)
        if endpoint is None:
            raise ConnectionFailed(f"broker {broker} has no listener {name}")
        return Address(endpoint.host, endpoint.port)

    # The leader's side.

    def follower_seen(self, replica: int, broker_epoch: int) -> None:
        """A follower fetches: it has caught up with all partitions of which it has everything."""
        if self.live.epochs.get(replica) == broker_epoch:
            self.live.fetch_ms[replica] = self._now_ms()

    def fetched(self, partition: Partition, replica: int, broker_epoch: int, wanted: FetchPartition) -> None:
        """A follower fetches from an offset, so it has everything below."""
        replicas, now = partition.replicas, self.broker.clock.monotonic()
        if replicas is None:
            raise _not_a_replica(replica, partition)
        start_offset = wanted.log_start_offset
        if replicas.fetched(replica, broker_epoch, wanted.fetch_offset, start_offset, int(now * 1000)):
            partition.replicas_changed()
        if replica not in replicas.isr:
            self.isr.check(partition, now)
        if self._deletions and partition in self._deletions:
            self._check_deletions(partition)

    async def deleted(self, partition: Partition, offset: int, timeout_s: float) -> bool:
        """Wait until the ISR has deleted the records below an offset; False if that takes too long."""
        replicas = partition.replicas
        if replicas is None or replicas.low_watermark >= offset:
            return True
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._deletions.setdefault(partition, []).append((offset, waiter))
        done, _ = await asyncio.wait((waiter,), timeout=timeout_s)
        if not done:
            waiter.cancel()
        return bool(done)

    def _check_deletions(self, partition: Partition) -> None:
        replicas, remaining = partition.replicas, []
        for offset, waiter in self._deletions.pop(partition):
            if waiter.done():
                continue
            if replicas is None or replicas.low_watermark >= offset:
                waiter.set_result(True)
            else:
                remaining.append((offset, waiter))
        if remaining:
            self._deletions[partition] = remaining

    def check_follower(self, partition: Partition, replica: int, broker_epoch: int) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER unless a broker with this epoch follows a partition that is led here."""
        if partition.replicas is None:
            raise _not_a_replica(replica, partition)
        partition.replicas.check(replica, broker_epoch)

    def read(
        self, partition: Partition, replica: int, wanted: FetchPartition, max_bytes: int, minimum_one: bool
    ) -> Slice:
        """Read for a follower, up to the log end; a throttled one that is catching up may have to wait."""
        is_throttled = self._is_throttled(partition, replica)
        if is_throttled and self.leader_throttle.is_exceeded(self.broker.clock.monotonic()):
            return NOTHING
        piece = partition.read_to_end(wanted.fetch_offset, max_bytes, minimum_one)
        if is_throttled:
            self.leader_throttle.record(piece.size)
        return piece

    def _is_throttled(self, partition: Partition, replica: int) -> bool:
        names = partition.log.config.leader_replication_throttled_replicas
        if not names or partition.replicas is None or replica in partition.replicas.isr:
            return False
        return names_replica(names, partition, self.broker.node_id)

    @property
    def selects_replicas(self) -> bool:
        """Whether consumers are sent to the closest replica (replica.selector.class)."""
        return self.config.replica_selector_class is not None

    def preferred_read_replica(self, partition: Partition, rack: str, fetch_offset: int) -> int:
        """The replica from which a consumer in a rack should read (KIP-392); NO_REPLICA for this one."""
        if partition.replicas is None or not self.selects_replicas:
            return NO_REPLICA
        found = partition.replicas.preferred_read_replica(rack, self._racks, fetch_offset)
        return NO_REPLICA if found == self.broker.node_id else found

    async def check_isrs(self) -> None:
        """Propose the ISR changes that time has made necessary."""
        now = self.broker.clock.monotonic()
        for partition in list(self.broker.partitions.values()):
            replicas = partition.replicas
            if replicas is not None and not partition.offline:
                if replicas.advance(int(now * 1000)):
                    partition.replicas_changed()
                self.isr.check(partition, now)

    # The follower's side.

    def truncate(self, partition: Partition, epoch: int, end_offset: int) -> None:
        """Truncate a follower's log to where it can agree with its leader, which tells an epoch and its end."""
        offset = truncation_offset(partition, epoch, end_offset)
        if offset >= partition.log.log_end_offset:
            partition.log.forget_empty_epochs()  # a leader epoch in which this broker has appended nothing
            return
        log.warning(
            "follower's log differs from its leader's, truncating",
            partition=f"{partition.topic}-{partition.index}",
            log_end_offset=partition.log.log_end_offset,
            truncated_to=offset,
            leader_epoch=partition.leader_epoch,
        )
        self.broker.log_dirs.truncations.request(partition, offset, restart=False)

    def restart(self, partition: Partition, start_offset: int) -> None:
        """Delete a follower's log and begin at the leader's log start offset, which it has not reached."""
        log.warning(
            "follower's log is out of the range of its leader's, fetching it anew",
            partition=f"{partition.topic}-{partition.index}",
            log_end_offset=partition.log.log_end_offset,
            start_offset=start_offset,
            leader_epoch=partition.leader_epoch,
        )
        self.broker.log_dirs.truncations.request(partition, max(start_offset, 0), restart=True)

    def truncated(self, partition: Partition) -> None:
        """A log has been truncated: its partition takes the role that the image names by now."""
        if self.broker.partitions.get((partition.topic, partition.index)) is not partition:
            return  # deleted meanwhile
        self.apply(partition, self.broker.image.topics[partition.topic].partitions[partition.index])
        fetcher = self._followed.get(partition)
        if fetcher is not None:
            fetcher.partition_changed(partition)

    def may_be_compacted(self, partition: Partition) -> bool:
        """Whether offsets may be missing in the log of a partition."""
        return self.broker.log_dirs.may_be_compacted(partition)

    def allow_gaps(self, partition: Partition) -> None:
        """Record durably that offsets may be missing in a log, before the first batch after a gap is appended."""
        self.broker.tasks.start(f"allow-gaps-{partition.topic}-{partition.index}", self._allow_gaps(partition))

    async def _allow_gaps(self, partition: Partition) -> None:
        log_dirs = self.broker.log_dirs
        try:
            await log_dirs.allow_gaps(partition)
        except OSError as error:
            log_dirs.failed(partition, error)

    # Metrics.

    @property
    def lag_max(self) -> int:
        """The largest lag of a followed partition, in records."""
        return max([fetcher.lag_max for fetcher in self._fetchers.values()], default=0)

    def lags(self) -> list[tuple[Partition, int]]:
        """The lag of each followed partition, in records."""
        return [lag for fetcher in self._fetchers.values() for lag in fetcher.lags()]

    def _now_ms(self) -> int:
        return int(self.broker.clock.monotonic() * 1000)


def truncation_offset(partition: Partition, epoch: int, end_offset: int) -> int:
    """Where a follower's log must end, so that it can agree with a leader whose `epoch` ends at an offset.

    The follower may know that epoch to end earlier; then its log can agree up to there only.
    """
    own_epoch, own_end = partition.log.epoch_end_offset(epoch)
    return min(end_offset, own_end) if own_epoch >= 0 else end_offset


def isr_of(state: PartitionImage) -> dict[int, int]:
    """The ISR of a partition with the broker epochs of its members."""
    return {broker: state.isr_epoch(broker) for broker in state.isr}


def _not_a_replica(replica: int, partition: Partition) -> KafkaError:
    detail = f"broker {replica} does not follow {partition.topic}-{partition.index} here"
    return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, detail)
