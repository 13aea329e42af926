"""One shard of a coordinator: a state machine, its journal, its timer, and the responses that are pending.

`submit` lets the state machine decide, appends the records of the events to the journal, applies the events, and
completes the responses once everything the state machine had applied by then is committed. The state machine may keep
a handle and complete it in a later outcome (a JoinGroup waits for the other members). For the lifecycle of shards see
`levada.broker.coordinator.runtime`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from levada.broker.coordinator.journal import Journal
from levada.broker.partition.partition import Partition
from levada.broker.purgatory import Completable, DelayedResult
from levada.core.machine import (
    AnyOutcome,
    JournalRecord,
    Outcome,
    ResponseHandle,
    StateMachine,
    VolatileOutcome,
)
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.wire.batches import HEADER_BYTES, encode_key_values

if TYPE_CHECKING:
    from levada.broker.broker import Broker

log = EventLog(__name__)

LOAD_SLICE_S: Final = 0.005  # how long loading may block the event loop
RECORDS_PER_CLOCK_CHECK: Final = 64  # while loading
RECORD_OVERHEAD_BYTES: Final = 24  # at most, without key and value
TIMER_RETRY_S: Final = 1.0  # after a bug in `expire`
STANDSTILL_MS: Final = 2_000  # a timer that is so late means that the process was stopped, or the clock changed
GRACE_PERIOD_S: Final = 3.0  # after a standstill: about one heartbeat interval

M = TypeVar("M", bound=StateMachine)
Decide = Callable[[M, int, ResponseHandle], AnyOutcome]
Responses = Sequence[tuple[ResponseHandle, Any]]
EventBatch = tuple[Sequence[Any], bytearray | None]  # events, and the record batch of those with a record
# Responses and effects of an outcome that is not committed: the offset to be committed, the commit timeout.
Uncommitted = tuple[int, float, Responses, Sequence[Any]]


class CoordinatorShard(Generic[M]):
    """The state machine of one partition of an internal topic."""

    __slots__ = (
        "_armed_ms",
        "_broker",
        "_closed",
        "_commit_timeout_s",
        "_commit_timer",
        "_in_grace_period",
        "_journal",
        "_load_failed",
        "_monotonic",
        "_new_machine",
        "_now_ms",
        "_on_loaded",
        "_pending",
        "_run_effect",
        "_timer",
        "_uncommitted",
        "machine",
        "partition",
    )

    def __init__(
        self,
        broker: "Broker",
        partition: Partition,
        new_machine: Callable[[], M],
        on_loaded: "Callable[[CoordinatorShard[M]], None] | None" = None,
        run_effect: "Callable[[CoordinatorShard[M], Any], None] | None" = None,
    ) -> None:
        self.partition = partition
        self.machine: M | None = None  # None until it is loaded
        self._broker = broker
        self._now_ms, self._monotonic = broker.clock.now_ms, broker.clock.monotonic
        self._new_machine = new_machine
        self._on_loaded = on_loaded
        self._run_effect = run_effect
        self._journal = Journal(partition, self._on_committed, self._on_failure)
        self._pending: dict[ResponseHandle, Completable] = {}  # the responses that are not completed
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ms = 0
        self._in_grace_period = False
        self._closed = False
        self._load_failed = False
        self._commit_timeout_s = broker.config.groups.offsets_commit_timeout_ms / 1000
        self._uncommitted: deque[Uncommitted] = deque()  # in the order of the journal
        self._commit_timer: asyncio.TimerHandle | None = None  # for the first of them, or earlier
        self._load()

    @property
    def ready(self) -> M:
        """The state machine. COORDINATOR_LOAD_IN_PROGRESS while it loads, NOT_COORDINATOR if that failed."""
        if self.machine is None:
            if self._closed or self._load_failed or self.partition.offline:
                raise _not_coordinator(self.partition)
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the coordinator is loading")
        return self.machine

    # Decisions.

    def submit(self, decide: Decide[M], convert: Callable[[Any], Any] | None = None) -> DelayedResult:
        """Decide on a request; `convert` makes the response of its result. Raises KafkaError."""
        response = DelayedResult(convert)
        self.execute(decide, response)
        return response

    def execute(self, decide: Decide[M], response: Completable) -> None:
        """Decide on a request, and complete its response. Raises KafkaError."""
        machine = self.machine or self.ready
        now_ms = self._now_ms()
        outcome = decide(machine, now_ms, response)
        if isinstance(outcome, VolatileOutcome):
            self._pending[response] = response
            if outcome.events:
                for event in outcome.events:
                    machine.apply(event)
                self._arm_timer(machine)
            if outcome.responses:
                self._complete_when_committed(outcome.responses)
            return
        batches = self._encode(machine, outcome, now_ms) if outcome.events else ()
        self._pending[response] = response
        self._append_and_apply(machine, outcome, batches, now_ms)

    def _encode(self, machine: M, outcome: Outcome, now_ms: int) -> Sequence[EventBatch]:
        """The record batches of an outcome: one, or several if it is not atomic.

        MESSAGE_TOO_LARGE if a batch exceeds the topic's limits; nothing changes then.
        """
        events, producer, encode = outcome.events, outcome.producer, machine.encode
        records = []
        for event in events:
            record = encode(event)
            if record is not None:
                records.append(record)
        if not records:
            return ((events, None),)
        batch = encode_key_values(records, now_ms, *producer)
        config = self.partition.log.config
        if config.max_message_bytes >= len(batch) <= config.segment_bytes:
            return ((events, batch),)
        limit = min(config.max_message_bytes, config.segment_bytes)
        if outcome.atomic:
            raise _too_large(len(batch))
        parts = _split(events, [encode(event) for event in events], limit - HEADER_BYTES)
        return [(part, encode_key_values(some, now_ms, *producer) if some else None) for part, some in parts]

    def _append_and_apply(self, machine: M, outcome: Outcome, batches: Sequence[EventBatch], now_ms: int) -> None:
        for events, batch in batches:
            if batch is not None:
                try:
                    self._journal.append(batch, now_ms)
                except KafkaError as error:
                    self._on_failure(error)
                    return
            for event in events:
                machine.apply(event)
        if outcome.responses or outcome.effects:
            self._complete_when_committed(outcome.responses, outcome.effects)
        if batches:
            self._arm_timer(machine)

    # Responses.

    def _complete_when_committed(self, responses: Responses, effects: Sequence[Any] = ()) -> None:
        journal = self._journal
        if not self._uncommitted and journal.is_committed:
            self._complete(responses, effects)
            return
        until = self._monotonic() + self._commit_timeout_s
        self._uncommitted.append((journal.end_offset, until, responses, effects))
        if self._commit_timer is None:
            self._commit_timer = self._broker.call_later(self._commit_timeout_s, self._on_commit_timeout)

    def _on_committed(self, high_watermark: int) -> None:
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= high_watermark:
            _, _, responses, effects = uncommitted.popleft()
            self._complete(responses, effects)

    def _complete(self, responses: Responses, effects: Sequence[Any]) -> None:
        machine, pending = self.machine, self._pending
        for handle, result in responses:
            response = pending.pop(handle, None)
            if response is not None:
                response.complete(result)
        if effects and machine is not None:
            self._run_effects(machine, effects)

    def _on_commit_timeout(self) -> None:
        """Fail the responses that were not committed within offsets.commit.timeout.ms; their effects stay."""
        self._commit_timer = None
        now = self._monotonic()
        error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the write was not committed in time")
        for position, (offset, until, responses, effects) in enumerate(list(self._uncommitted)):
            if until > now:
                self._commit_timer = self._broker.call_later(until - now, self._on_commit_timeout)
                return
            self._uncommitted[position] = (offset, until, (), effects)
            self._complete([(handle, error) for handle, _ in responses], ())

    def _run_effects(self, machine: M, effects: Sequence[Any]) -> None:
        assert self._run_effect is not None
        for effect in effects:
            if self.machine is machine:
                self._run_effect(self, effect)

    # The timer.

    def _arm_timer(self, machine: M) -> None:
        """Set the timer to the next deadline. A timer that is early stays: it is set again when it expires."""
        deadline_ms = machine.next_deadline_ms()
        if deadline_ms is None or self._in_grace_period:
            return
        if self._timer is not None and self._armed_ms <= deadline_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ms = deadline_ms
        delay_ms = max(0, deadline_ms - self._now_ms())
        self._timer = self._broker.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        machine, now_ms = self.machine, self._now_ms()
        if machine is None:
            return
        if now_ms - self._armed_ms > STANDSTILL_MS and not self._in_grace_period:
            # The process or its clock stood still: handle first the heartbeats that arrived meanwhile.
            self._in_grace_period = True
            self._timer = self._broker.call_later(GRACE_PERIOD_S, self._on_timer)
            return
        self._in_grace_period = False
        deadline_ms = machine.next_deadline_ms()
        if deadline_ms is None or deadline_ms > now_ms:
            self._arm_timer(machine)
            return
        try:
            self._execute_own(machine, machine.expire(now_ms))
        except Exception as error:  # (a bug in one timer must not stop the others)
            log.error("coordinator timer failed", topic=self.partition.topic, exc_info=error)
            self._timer = self._broker.call_later(TIMER_RETRY_S, self._on_timer)

    def _execute_own(self, machine: M, outcome: Outcome) -> None:
        """Execute an outcome that no request caused."""
        now_ms = self._now_ms()
        self._append_and_apply(machine, outcome, self._encode(machine, outcome, now_ms), now_ms)

    # Loading and unloading.

    def _load(self) -> None:
        if self.partition.offline or self._closed or self._journal.has_ended:
            return
        if self.partition.log.log_start_offset == self.partition.log.log_end_offset:
            self._activate(self._new_machine())
        else:
            self._broker.tasks.start(f"load-{self.partition.topic}-{self.partition.index}", self._replay())

    async def _replay(self) -> None:
        machine, clock = self._new_machine(), self._broker.clock
        since, offset = clock.monotonic(), -1
        try:
            for count, record in enumerate(self._journal.replay()):
                machine.replay(record.key, record.value, record.batch)
                offset = record.offset
                if count % RECORDS_PER_CLOCK_CHECK == 0 and clock.monotonic() - since > LOAD_SLICE_S:
                    await asyncio.sleep(0)
                    since = clock.monotonic()
                    if self._closed:
                        return
        except Exception as error:  # noqa: BLE001 (a bug must not leave the keys of the shard loading for ever)
            self._on_load_failure(error, offset)
            return
        self._journal.replayed(offset + 1)
        self._activate(machine)

    def _on_load_failure(self, error: Exception, offset: int) -> None:
        """The journal cannot be read, or a record fails to apply: a shard never serves a part of its journal."""
        is_bug = not isinstance(error, OSError | KafkaError)
        log.error(
            "coordinator load failed",
            topic=self.partition.topic,
            index=self.partition.index,
            after_offset=offset,
            why=str(error),
            exc_info=error if is_bug else None,
        )
        self._load_failed = True
        if isinstance(error, OSError):
            self.partition.failed(error)

    def _activate(self, machine: M) -> None:
        self.machine = machine
        self._execute_own(machine, machine.on_loaded(self._now_ms()))
        if self._on_loaded is not None:
            self._on_loaded(self)

    def _on_failure(self, error: KafkaError) -> None:
        """Applied events may be missing in the journal: drop the state machine and load it again."""
        if self.machine is None:
            return
        log.error(
            "coordinator write failed",
            topic=self.partition.topic,
            index=self.partition.index,
            why=str(error),
        )
        self._unload()
        self._load()

    def _unload(self) -> None:
        self.machine = None
        self._in_grace_period = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._uncommitted.clear()
        pending, self._pending = self._pending, {}
        for response in pending.values():
            response.complete(_not_coordinator(self.partition))

    def close(self) -> None:
        """Stop: the broker does not lead the partition any more, or shuts down."""
        self._closed = True
        self._journal.close()
        self._unload()
        if self._commit_timer is not None:
            self._commit_timer.cancel()


def _not_coordinator(partition: Partition) -> KafkaError:
    return KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker does not serve {partition.topic}-{partition.index}")


def _split(
    events: Sequence[Any], encoded: Sequence[JournalRecord | None], limit: int
) -> Iterator[tuple[list[Any], list[JournalRecord]]]:
    """Split events, in order, into as few batches as possible."""
    part: list[Any] = []
    records: list[JournalRecord] = []
    size = 0
    for event, record in zip(events, encoded, strict=True):
        if record is not None:
            key, value = record
            added = len(key) + (0 if value is None else len(value)) + RECORD_OVERHEAD_BYTES
            if added > limit:
                raise _too_large(added)
            if size + added > limit:
                yield part, records
                part, records, size = [], [], 0
            records.append(record)
            size += added
        part.append(event)
    yield part, records


def _too_large(size: int) -> KafkaError:
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{size} bytes exceed one batch of the internal topic")
