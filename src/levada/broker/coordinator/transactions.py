"""The coordinators of transactions, and how what they decided comes into the partitions.

Once a transaction is decided its markers are written until all are there, whatever fails in between: a partition
that cannot be written now is tried again, one whose topic is gone needs no marker. A coordinator that is loaded anew
begins again with everything that was decided and not completed; a marker that comes twice changes nothing.
"""

from typing import TYPE_CHECKING, Any, Final

from levada.broker.coordinator.groups import OFFSETS_TOPIC
from levada.broker.coordinator.runtime import Coordinators, InternalTopic
from levada.broker.coordinator.shard import Shard
from levada.broker.purgatory import DelayedResult
from levada.core.transactions.machine import Ending, TransactionLimits, TransactionsMachine
from levada.core.transactions.state import Place, ProducerIdAndEpoch
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.wire.control_records import Marker

if TYPE_CHECKING:
    from levada.broker.broker import Broker

log = EventLog(__name__)

TRANSACTIONS_TOPIC: Final = "__transaction_state"
TRANSACTION_KEYS: Final = 1  # FindCoordinator's key type of transactions
RETRY_S: Final = 0.02
RETRY_S_MAX: Final = 5.0
LOUD_FROM: Final = 5  # tries: coordinators of groups that load are no news
FENCED: Final = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED))

TransactionCoordinators = Coordinators[TransactionsMachine]


def transaction_coordinators(broker: "Broker") -> TransactionCoordinators:
    """The coordinators of transactions of a broker, following its image."""
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
    limits = TransactionLimits(
        config.transaction_max_timeout_ms,
        config.transactional_id_expiration_ms,
        config.transaction_two_phase_commit_enable,
    )

    def perform(shard: Shard[TransactionsMachine], ending: Ending) -> None:
        broker.coordination.transactions_committed += ending.committed
        broker.coordination.transactions_aborted += not ending.committed
        broker.coordination.transactions_timed_out += ending.timed_out
        _Writing(broker, shard, ending).begin()

    return Coordinators(broker, topic, lambda: TransactionsMachine(limits), perform=perform)


def write_marker(
    broker: "Broker", place: Place, producer: ProducerIdAndEpoch, marker: Marker, bumped: bool
) -> DelayedResult:
    """End a producer's transaction in one partition; answered when that is committed. Raises KafkaError."""
    topic, index = place
    partition = broker.partition(topic, index)
    if topic == OFFSETS_TOPIC:
        shard = broker.groups.at(index)
        if shard is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no coordinator of groups is here")
        partition.producers.check_marker(*producer, marker, bumped)
        return shard.submit(lambda machine, _, handle: machine.end_transaction(*producer, *marker, handle))
    return partition.transactions.end(*producer, marker, bumped, broker.clock.now_ms())


class _Writing:
    """The markers of one transaction on their way."""

    __slots__ = ("_broker", "_ending", "_machine", "_marker", "_missing", "_shard", "_tries")

    def __init__(self, broker: "Broker", shard: Shard[TransactionsMachine], ending: Ending) -> None:
        self._broker = broker
        self._shard = shard
        self._machine = shard.machine
        self._ending = ending
        self._marker = Marker(ending.committed, shard.partition.leader_epoch)
        self._missing = set(ending.partitions)
        self._tries = 0

    def begin(self) -> None:
        if not self._missing:
            self._complete()
        for place in sorted(self._ending.partitions):
            self._write(place)

    def _write(self, place: Place) -> None:
        if self._shard.machine is not self._machine:
            return  # whoever loads the journal next begins anew
        producer = ProducerIdAndEpoch(self._ending.producer_id, self._ending.producer_epoch)
        try:
            written = write_marker(self._broker, place, producer, self._marker, self._ending.bumped)
        except KafkaError as error:
            self._heard(place, error)
        else:
            written.add_done_callback(lambda result: self._heard(place, result))

    def _heard(self, place: Place, result: Any) -> None:
        if isinstance(result, Exception) and not self._is_settled(place, result):
            self._tries += 1
            delay_s = min(RETRY_S * 2 ** min(self._tries, 10), RETRY_S_MAX)
            self._broker.call_later(delay_s, self._write, place)
            return
        self._missing.discard(place)
        if not self._missing:
            self._complete()

    def _is_settled(self, place: Place, error: Exception) -> bool:
        """Whether a marker that could not be written is not needed."""
        topic = self._broker.image.topics.get(place[0])
        if topic is None or place[1] >= len(topic.partitions):
            return True
        settled = isinstance(error, KafkaError) and error.code in FENCED
        if settled or self._tries == LOUD_FROM:
            log.warning(
                "a marker cannot be written" + ("" if settled else " yet"),
                transactional_id=self._ending.transactional_id,
                topic=place[0],
                partition=place[1],
                why=str(error),
            )
        return settled

    def _complete(self) -> None:
        if self._shard.machine is self._machine and self._machine is not None:
            self._shard.submit(lambda machine, now_ms, handle: machine.complete(self._ending, now_ms, handle))
