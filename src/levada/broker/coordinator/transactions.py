"""The transaction coordinators of a broker: the runtime of `__transaction_state`, and the writers of markers.

Once a transaction is prepared (its PrepareCommit or PrepareAbort record is committed), its markers are written until
all partitions have one: a failed write is retried, and a deleted topic needs no marker. A coordinator that is loaded
writes the markers of all prepared transactions again; a repeated marker changes nothing.
"""

from typing import TYPE_CHECKING, Any, Final

from levada.broker.coordinator.groups import OFFSETS_TOPIC
from levada.broker.coordinator.runtime import CoordinatorRuntime, InternalTopic
from levada.broker.coordinator.shard import CoordinatorShard
from levada.broker.purgatory import DelayedResult
from levada.core.transactions.machine import TransactionLimits, TransactionMarkers, TransactionsMachine
from levada.core.transactions.state import ProducerIdAndEpoch
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.model import TopicPartitionKey
from levada.wire.control_records import Marker

if TYPE_CHECKING:
    from levada.broker.broker import Broker

log = EventLog(__name__)

TRANSACTIONS_TOPIC: Final = "__transaction_state"
TRANSACTION_KEYS: Final = 1  # FindCoordinator's key type of transactions
MARKERS_PER_ITERATION: Final = 200  # of one transaction, whose others wait for the next loop iteration
RETRY_S: Final = 0.02
RETRY_S_MAX: Final = 5.0
LOG_FROM_ATTEMPT: Final = 5  # earlier failures are common while group coordinators load
FENCED: Final = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED))

TransactionCoordinators = CoordinatorRuntime[TransactionsMachine]


def transaction_coordinators(broker: "Broker") -> TransactionCoordinators:
    """Create the transaction coordinators of a broker."""
    config = broker.config.transactions
    topic = InternalTopic(
        TRANSACTIONS_TOPIC,
        config.transaction_state_log_num_partitions,
        config.transaction_state_log_replication_factor,
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        },
    )
    two_phase_timeout_ms = config.levada_transaction_two_phase_commit_timeout_ms
    limits = TransactionLimits(
        config.transaction_max_timeout_ms,
        config.transactional_id_expiration_ms,
        config.transaction_two_phase_commit_enable,
        two_phase_timeout_ms if two_phase_timeout_ms >= 0 else None,
    )

    def write_markers(shard: CoordinatorShard[TransactionsMachine], markers: TransactionMarkers) -> None:
        broker.coordinator_metrics.transactions_committed += markers.committed
        broker.coordinator_metrics.transactions_aborted += not markers.committed
        broker.coordinator_metrics.transactions_timed_out += markers.timed_out
        _MarkerWriter(broker, shard, markers).start()

    def exclude_producer_ids(shard: CoordinatorShard[TransactionsMachine]) -> None:
        if shard.machine is not None:
            ids = (one.producer_id for one in shard.machine.transactions.values())
            broker.producer_ids.exclude(f"{TRANSACTIONS_TOPIC}-{shard.partition.index}", ids, broker.image)

    return CoordinatorRuntime(
        broker, topic, lambda: TransactionsMachine(limits), on_loaded=exclude_producer_ids, run_effect=write_markers
    )


def write_marker(
    broker: "Broker",
    topic_partition: TopicPartitionKey,
    producer: ProducerIdAndEpoch,
    marker: Marker,
    bumped: bool,
) -> DelayedResult:
    """Write a transaction marker to one partition; the result is complete when it is committed. Raises KafkaError."""
    topic, index = topic_partition
    partition = broker.partition(topic, index)
    if topic == OFFSETS_TOPIC:
        shard = broker.groups.shard_of_partition(index)
        if shard is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker is not the group coordinator")
        partition.producers.check_marker(*producer, marker, bumped)
        return shard.submit(lambda machine, _, handle: machine.end_transaction(*producer, *marker, handle))
    return partition.transactions.end(*producer, marker, bumped, broker.clock.now_ms())


class _MarkerWriter:
    """Writes the markers of one transaction, and then completes it."""

    __slots__ = ("_attempts", "_broker", "_machine", "_marker", "_markers", "_missing", "_shard")

    def __init__(
        self, broker: "Broker", shard: CoordinatorShard[TransactionsMachine], markers: TransactionMarkers
    ) -> None:
        self._broker = broker
        self._shard = shard
        self._machine = shard.machine
        self._markers = markers
        self._marker = Marker(markers.committed, shard.partition.leader_epoch)
        self._missing = set(markers.partitions)
        self._attempts = 0

    def start(self) -> None:
        if not self._missing:
            self._complete()
        self._write_some(sorted(self._markers.partitions))

    def _write_some(self, topic_partitions: list[TopicPartitionKey]) -> None:
        for topic_partition in topic_partitions[:MARKERS_PER_ITERATION]:
            self._write(topic_partition)
        rest = topic_partitions[MARKERS_PER_ITERATION:]
        if rest:
            self._broker.call_later(0.0, self._write_some, rest)

    def _write(self, topic_partition: TopicPartitionKey) -> None:
        if self._shard.machine is not self._machine:
            return  # the next coordinator that loads the journal writes the markers
        producer = ProducerIdAndEpoch(self._markers.producer_id, self._markers.producer_epoch)
        try:
            written = write_marker(self._broker, topic_partition, producer, self._marker, self._markers.epoch_bumped)
        except KafkaError as error:
            self._on_result(topic_partition, error)
        else:
            written.add_done_callback(lambda result: self._on_result(topic_partition, result))

    def _on_result(self, topic_partition: TopicPartitionKey, result: Any) -> None:
        if isinstance(result, Exception) and not self._is_unnecessary(topic_partition, result):
            self._attempts += 1
            delay_s = min(RETRY_S * 2 ** min(self._attempts, 10), RETRY_S_MAX)
            self._broker.call_later(delay_s, self._write, topic_partition)
            return
        self._missing.discard(topic_partition)
        if not self._missing:
            self._complete()

    def _is_unnecessary(self, topic_partition: TopicPartitionKey, error: Exception) -> bool:
        """Whether a marker that could not be written is not needed: the topic is deleted, or the producer fenced."""
        topic = self._broker.image.topics.get(topic_partition[0])
        if topic is None or topic_partition[1] >= len(topic.partitions):
            return True
        fenced = isinstance(error, KafkaError) and error.code in FENCED
        if fenced or self._attempts == LOG_FROM_ATTEMPT:
            log.warning(
                "transaction marker not written" if fenced else "transaction marker delayed",
                transactional_id=self._markers.transactional_id,
                topic=topic_partition[0],
                partition=topic_partition[1],
                why=str(error),
            )
        return fenced

    def _complete(self) -> None:
        if self._shard.machine is self._machine and self._machine is not None:
            self._shard.submit(lambda machine, now_ms, handle: machine.complete(self._markers, now_ms, handle))
