"""A replica of a partition on this broker: its log, its role, its offsets, and who waits for them.

The replica leads the partition or follows another broker, in one leader epoch. A new epoch ends all that is pending: an
offset means a record only together with its epoch. With one replica the high watermark is the written offset, with
several `LeaderReplicas` computes it. What the hot path needs of a leader is in `levada.broker.partition.partition`.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast
from uuid import UUID

from levada.broker.partition.transactions import LastStableWatch, Transactions, load_producers
from levada.broker.partition.validation import ValidationRules
from levada.broker.purgatory import Watcher
from levada.config.topic import TopicConfig
from levada.core.cluster.topic_names import check_deletable, is_internal
from levada.core.partition.fetch_sessions import FetchPartition
from levada.core.partition.producer_state import ProducerStates
from levada.core.partition.replica import LeaderReplicas
from levada.errors import ErrorCode, KafkaError
from levada.net.flush import FlushQueue
from levada.storage.log.log import Log
from levada.storage.log.segment import CorruptBatchError
from levada.wire.fast.produce import ResponseTemplate

if TYPE_CHECKING:
    from levada.broker.partition.partition import Partition


class PartitionContext(NamedTuple):
    """What a partition needs of its broker."""

    flush_queue: FlushQueue
    sync_soon: Callable[["Partition"], None]  # request an fsync of the log; `synced` follows
    failed: Callable[["Partition", OSError | CorruptBatchError], None]  # the disk is broken, or the log damaged


class LogEndWatch:
    """The watchers of a leader's log end: fetches of followers, and Produce with acks=1 that waits for an fsync."""

    __slots__ = ("watchers",)

    def __init__(self) -> None:
        self.watchers: set[Watcher] = set()

    def notify(self, written_bytes: int) -> None:
        """Notify of bytes that were written, or fsynced; 0 if the role or the log has ended."""
        for watcher in list(self.watchers):
            watcher.try_complete(written_bytes)


class PartitionReplica:
    """One replica. It refers to no broker: `PartitionContext` has what it needs."""

    __slots__ = (
        "__weakref__",
        "_announced_bytes",
        "_context",
        "_dirty_since_ms",
        "_flush_messages",
        "_flush_ms",
        "_internal",
        "_queued",
        "_rejects_clients",
        "_unflushed",
        "_waits_for_fsync",
        "bytes_in",
        "bytes_out",
        "high_watermark",
        "in_sync_replicas",
        "index",
        "is_leader",
        "is_replicated",
        "last_stable_watch",
        "leader_epoch",
        "log",
        "log_end_watch",
        "messages_in",
        "min_insync_replicas",
        "offline",
        "producers",
        "replicas",
        "replication_bytes_in",
        "replication_bytes_out",
        "response_templates",
        "rules",
        "topic",
        "topic_id",
        "transactions",
        "truncating",
        "watchers",
        "written_offset",
    )

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        index: int,
        leader_epoch: int,
        log: Log,
        context: PartitionContext,
        producers: ProducerStates | None = None,  # of the log, if a thread has loaded them
        high_watermark: int | None = None,  # of one replica among several; None for the only one, which leads
    ) -> None:
        self.topic, self.topic_id, self.index = topic, topic_id, index
        self.leader_epoch = leader_epoch
        self.log = log
        self.producers = load_producers(log) if producers is None else producers
        self.in_sync_replicas = 1
        self.written_offset = log.log_end_offset  # this replica has all below, fsynced if acks wait for that
        self.high_watermark = log.log_end_offset
        self.replicas: LeaderReplicas | None = None  # of a leader with followers
        self.is_leader = self.is_replicated = False  # whether this is one of several replicas
        self.offline = self.truncating = False  # while a thread works on the log, nothing else may
        self.log_end_watch = LogEndWatch()
        self.watchers: set[Watcher] = set()
        self.last_stable_watch = LastStableWatch()
        self.transactions = Transactions(cast("Partition", self))
        self.response_templates: dict[int, ResponseTemplate] = {}  # to a Produce of one batch, by version
        self.messages_in = self.bytes_in = self.bytes_out = self.replication_bytes_in = self.replication_bytes_out = 0
        self._context = context
        self._internal = is_internal(topic)  # written by coordinators only
        self._rejects_clients = True  # an internal topic, or not the leader
        self._announced_bytes = 0  # of all received bytes, those that watchers have been notified of
        self._queued = False  # whether the flush queue has this partition
        self._unflushed = 0  # messages since the last fsync
        self._dirty_since_ms = 0  # when unsynced data was first seen; 0 if there is none
        log.on_roll = self._rolled
        self.configure(log.config)
        if high_watermark is None:
            self.lead(leader_epoch)
        else:
            self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)

    def configure(self, config: TopicConfig) -> None:
        """Apply the topic's settings."""
        self.log.config = config
        self.rules = ValidationRules.of(config)
        self.min_insync_replicas = config.min_insync_replicas
        self._flush_messages = config.flush_messages
        self._flush_ms = config.flush_ms
        self._waits_for_fsync = config.levada_acks_wait_for_fsync

    @abstractmethod
    def publish_queued(self) -> None:
        """Publish now the batches that are queued for the flush."""

    @abstractmethod
    def sync_soon(self) -> None:
        """Request an fsync of the log; `synced` follows."""

    @abstractmethod
    def failed(self, error: OSError | CorruptBatchError) -> KafkaError:
        """Report a disk failure or damage, which takes the log offline; the error for the client."""

    # Roles.

    def lead(self, leader_epoch: int, replicas: LeaderReplicas | None = None) -> None:
        """Lead the partition in a new epoch; without `replicas` this is the only one."""
        self._begin_epoch(leader_epoch, is_leader=True)
        log = self.log
        log.assign_epoch(leader_epoch)
        self.replicas, self.is_replicated = replicas, replicas is not None
        if replicas is None:
            self.in_sync_replicas = 1
            self._written(log.log_end_offset)
            return
        self.in_sync_replicas = len(replicas.isr)
        if not self._waits_for_fsync:
            self._written(log.log_end_offset)
        elif self.written_offset < log.log_end_offset:
            self.sync_soon()

    def follow(self, leader_epoch: int) -> None:
        """Follow the leader of a new epoch."""
        self._begin_epoch(leader_epoch, is_leader=False)
        self.is_replicated = True

    def _begin_epoch(self, leader_epoch: int, is_leader: bool) -> None:
        """End all that is pending in the former epoch."""
        self.publish_queued()
        self.leader_epoch, self.is_leader, self.replicas = leader_epoch, is_leader, None
        self._rejects_clients = self._internal or not is_leader
        self.transactions.end_epoch()
        self._fail_watchers()

    def set_replicas(self, replicas: LeaderReplicas | None) -> None:
        """Take other replicas in the same epoch: the only one gets followers, or loses them."""
        self.replicas, self.is_replicated = replicas, replicas is not None
        if replicas is not None:
            self.replicas_changed()
        else:
            self.in_sync_replicas = 1
            self._advance(self.written_offset)

    def replicas_changed(self) -> None:
        """Notify of what the leader's view of its replicas has changed: ISR and high watermark."""
        replicas = self.replicas
        assert replicas is not None
        self.in_sync_replicas = len(replicas.isr)
        if replicas.high_watermark > self.high_watermark:
            self._advance(replicas.high_watermark)

    def not_leader(self) -> KafkaError:
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self.topic}-{self.index} any more"
        )

    def check_leader_epoch(self, epoch: int) -> None:
        """A client with another leader epoch must refresh its metadata."""
        if epoch >= 0 and epoch != self.leader_epoch:
            older = epoch < self.leader_epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
            raise KafkaError(code, f"epoch {epoch}, but {self.leader_epoch} leads {self.topic}-{self.index}")

    def diverging_epoch(self, wanted: FetchPartition) -> tuple[int, int] | None:
        """The epoch and end offset up to which the reader's log can agree with this one; None if it does (KIP-595).

        OFFSET_OUT_OF_RANGE if this log does not know the reader's epoch, or anything before it.
        """
        self.publish_queued()
        if self.offline or self.truncating:
            raise self.unreadable()
        last_epoch, offset = wanted.last_fetched_epoch, wanted.fetch_offset
        epoch, end_offset = self.log.epoch_end_offset(last_epoch)
        if epoch < 0 or end_offset < 0:
            detail = f"the end of leader epoch {last_epoch} of {self.topic}-{self.index} is not known"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, detail)
        return (epoch, end_offset) if epoch < last_epoch or end_offset < offset else None

    def epoch_end(self, leader_epoch: int) -> tuple[int, int]:
        """The largest epoch up to this one, and its end offset for readers."""
        epoch, end_offset = self.log.epoch_end_offset(leader_epoch)
        return epoch, min(end_offset, self.high_watermark)

    # Offsets.

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed readers stop; without open transactions it is the high watermark."""
        producers = self.producers
        if not producers.ongoing_txns and not producers.unreplicated_txns:
            return self.high_watermark
        first = producers.first_unstable_offset()
        assert first is not None
        return max(self.log.log_start_offset, min(first, self.high_watermark))

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    def _written(self, offset: int) -> None:
        """This replica has written all below an offset, and fsynced it if acks wait for that."""
        self.written_offset = offset
        if self.is_leader:
            replicas = self.replicas
            if replicas is None:
                self._advance(offset)
                return
            if replicas.appended(offset, int(self._context.flush_queue.began * 1000)):
                self._advance(replicas.high_watermark)
        self._notify_log_end()

    def _notify_log_end(self) -> None:
        if self.log_end_watch.watchers:
            self.log_end_watch.notify(max(1, self.bytes_in + self.replication_bytes_in - self._announced_bytes))

    def _advance(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        if self.producers.unreplicated_txns:
            self.producers.on_high_watermark_updated(high_watermark)
        all_bytes = self.bytes_in + self.replication_bytes_in
        fresh = max(1, all_bytes - self._announced_bytes)
        self._announced_bytes = all_bytes
        if self.watchers:
            for watcher in list(self.watchers):
                watcher.try_complete(fresh)
        if self.last_stable_watch.watchers:
            self.last_stable_watch.advance(self.last_stable_offset, all_bytes)

    def delete_records(self, offset: int) -> int:
        """Advance the log start offset; returns it."""
        if not self.is_leader:
            raise self.not_leader()
        if self.offline:
            raise self.storage_error()
        check_deletable(self.topic, self.log.config.cleanup_policy)
        if not 0 <= offset <= self.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not in the log")
        self.log.delete_records(offset)
        self.log_start_changed()
        return self.log.log_start_offset

    def log_start_changed(self) -> None:
        """The log starts later: followers learn of it in a response."""
        self.log_end_watch.notify(1)

    # The follower's log.

    def publish_received(self, size: int) -> None:
        """Write what a follower has received and reserved."""
        self.replication_bytes_in += size
        log = self.log
        if self.offline:
            return
        try:
            log.publish()
        except OSError as error:
            self.failed(error)
            return
        if self._waits_for_fsync:
            self.sync_soon()
        else:
            self.written_offset = log.log_end_offset

    def advance_follower(self, high_watermark: int, log_start_offset: int) -> None:
        """Advance a follower's high watermark and log start offset to those of its leader, as far as its log goes."""
        log = self.log
        high_watermark = min(high_watermark, log.log_end_offset)
        if high_watermark > self.high_watermark:
            self._advance(high_watermark)
        if log.log_start_offset < log_start_offset <= self.high_watermark:
            log.delete_records(log_start_offset)

    def truncated(self, producers: ProducerStates) -> None:
        """A thread has truncated the log, and loaded the producer states of what is left."""
        self.producers = producers
        log = self.log
        is_empty = log.log_start_offset == log.log_end_offset
        self.written_offset = log.log_end_offset if is_empty else min(self.written_offset, log.log_end_offset)
        self.high_watermark = max(min(self.high_watermark, log.log_end_offset), log.log_start_offset)

    # Durability and failures.

    def synced(self) -> None:
        """The group commit has fsynced everything below the recovery point."""
        self._unflushed = self.log.log_end_offset - self.log.recovery_point
        if self.log.recovery_point > self.written_offset:
            self._written(self.log.recovery_point)

    def flush_if_due(self, now_ms: int) -> None:
        """Request an fsync when data has been unsynced for flush.ms."""
        if self.log.recovery_point >= self.log.log_end_offset:
            self._dirty_since_ms = 0
        elif not self._dirty_since_ms:
            self._dirty_since_ms = now_ms
        elif now_ms - self._dirty_since_ms >= self._flush_ms:
            self._dirty_since_ms = now_ms
            self.sync_soon()

    def go_offline(self) -> None:
        """Stop serving, since the disk is broken or the partition deleted; its watchers complete now."""
        self.offline = True
        self._fail_watchers()

    def _fail_watchers(self) -> None:
        for watcher in [*self.watchers, *self.last_stable_watch.watchers, *self.log_end_watch.watchers]:
            watcher.try_complete(0)

    def storage_error(self) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {self.topic}-{self.index} is offline")

    def unreadable(self) -> KafkaError:
        """The error of a log that is offline, or in the hands of a thread."""
        if self.offline:
            return self.storage_error()
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic}-{self.index} is being truncated")

    def close(self) -> None:
        """Close cleanly: everything is on disk, and the next start needs no recovery."""
        self.save_producers(self.log.log_end_offset)
        self.log.close(clean=True)

    def _rolled(self, offset: int) -> None:
        """Snapshot and fsync a segment that is closed, so that recovery need not read it."""
        self.save_producers(offset)
        self.sync_soon()

    def save_producers(self, offset: int) -> None:
        """Write a producer snapshot as of `offset`, the base offset of the next batch."""
        if offset and offset not in self.log.producer_snapshots.offsets():
            self.log.producer_snapshots.write(offset, self.producers.encode_snapshot(offset))
