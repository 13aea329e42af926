"""One shard of a coordinator: a machine, its journal, and everybody who waits for it.

`submit` asks the machine to decide, journals the events that have records, applies all of them, and lets every reply go
once everything the machine had applied by then is committed. The machine may keep the handle and reply to it in a
later outcome (a JoinGroup waits for the other members). See `levada.broker.coordinator.runtime` for the whole.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from levada.broker.coordinator.journal import Journal
from levada.broker.partition.partition import Partition
from levada.broker.purgatory import Completable, DelayedResult
from levada.core.machine import JournalRecord, Outcome, ResponseHandle, StateMachine, VolatileOutcome
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.wire.batches import HEADER_BYTES, encode_key_values

if TYPE_CHECKING:
    from levada.broker.broker import Broker

log = EventLog(__name__)

LOAD_SLICE_S: Final = 0.005  # how long replaying may keep the loop
ENTRIES_PER_LOOK: Final = 64  # how many records are replayed between looks at the clock
RECORD_OVERHEAD_BYTES: Final = 24  # at most, beside key and value
RETRY_S: Final = 1.0  # after a bug in a deadline
STANDSTILL_MS: Final = 2_000  # a timer that rings so late says that the process was stopped, or the clock set
HESITATION_S: Final = 3.0  # about the time between two heartbeats

M = TypeVar("M", bound=StateMachine)
Responses = Sequence[tuple[ResponseHandle, Any]]
Part = tuple[Sequence[Any], bytearray | None]  # events, and the batch of those that have a record
# What waits for the journal: for which of its ends and until when, responses to be given and effects to be had.
Owed = tuple[int, float, Responses, Sequence[Any]]


class Shard(Generic[M]):
    """The machine of one partition, and everything that waits for it."""

    __slots__ = (
        "_armed_ms",
        "_broker",
        "_closed",
        "_hesitates",
        "_impatience",
        "_journal",
        "_monotonic",
        "_new_machine",
        "_now_ms",
        "_on_loaded",
        "_owed",
        "_patience_s",
        "_perform",
        "_timer",
        "_unreadable",
        "_waiting",
        "machine",
        "partition",
    )

    def __init__(
        self,
        broker: "Broker",
        partition: Partition,
        new_machine: Callable[[], M],
        on_loaded: "Callable[[Shard[M]], None] | None" = None,
        perform: "Callable[[Shard[M], Any], None] | None" = None,
    ) -> None:
        self.partition = partition
        self.machine: M | None = None  # None while it is loaded
        self._broker = broker
        self._now_ms, self._monotonic = broker.clock.now_ms, broker.clock.monotonic
        self._new_machine = new_machine
        self._on_loaded = on_loaded
        self._perform = perform
        self._journal = Journal(partition, self._pay, self._fail)
        self._waiting: dict[ResponseHandle, Completable] = {}  # exactly the handles that are not answered
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ms = 0
        self._hesitates = False
        self._closed = False
        self._unreadable = False
        self._patience_s = broker.config.groups.offsets_commit_timeout_ms / 1000
        self._owed: deque[Owed] = deque()  # in the order of the journal
        self._impatience: asyncio.TimerHandle | None = None  # rings for the first of them, or early
        self._load()

    @property
    def ready(self) -> M:
        """The machine; COORDINATOR_LOAD_IN_PROGRESS until it is there, NOT_COORDINATOR if it never will be."""
        if self.machine is None:
            if self._closed or self._unreadable or self.partition.offline:
                raise _not_coordinator(self.partition)
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the coordinator reads its journal")
        return self.machine

    # Deciding.

    def submit(
        self,
        decide: Callable[[M, int, ResponseHandle], Outcome | VolatileOutcome],
        answer: Callable[[Any], Any] | None = None,
    ) -> DelayedResult:
        """Let the machine decide on a request; `answer` turns its reply into the response. Raises KafkaError."""
        handle = DelayedResult(answer)
        self.ask(decide, handle)
        return handle

    def ask(
        self, decide: Callable[[M, int, ResponseHandle], Outcome | VolatileOutcome], handle: Completable
    ) -> None:
        """Let the machine decide on a request, whose handle is given the reply. Raises KafkaError."""
        machine = self.machine or self.ready
        now_ms = self._now_ms()
        outcome = decide(machine, now_ms, handle)
        if isinstance(outcome, VolatileOutcome):
            self._waiting[handle] = handle
            if outcome.events:
                for event in outcome.events:
                    machine.apply(event)
                self._arm(machine)
            if outcome.responses:
                self._owe(outcome.responses)
            return
        parts = self._parts(machine, outcome, now_ms) if outcome.events else ()
        self._waiting[handle] = handle
        self._carry_out(machine, outcome, parts, now_ms)

    def _parts(self, machine: M, outcome: Outcome, now_ms: int) -> Sequence[Part]:
        """The batches of an outcome: one, or as many as it takes if it may be divided.

        MESSAGE_TOO_LARGE if the topic would not take one, and nothing happens.
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
        parts = _divided(events, [encode(event) for event in events], limit - HEADER_BYTES)
        return [(part, encode_key_values(some, now_ms, *producer) if some else None) for part, some in parts]

    def _carry_out(self, machine: M, outcome: Outcome, parts: Sequence[Part], now_ms: int) -> None:
        for events, batch in parts:
            if batch is not None:
                try:
                    self._journal.append(batch, now_ms)
                except KafkaError as error:
                    self._fail(error)
                    return
            for event in events:
                machine.apply(event)
        if outcome.responses or outcome.effects:
            self._owe(outcome.responses, outcome.effects)
        if parts:
            self._arm(machine)

    def _owe(self, responses: Responses, effects: Sequence[Any] = ()) -> None:
        """Pay when the journal is committed; give a refusal if that takes too long."""
        journal = self._journal
        if not self._owed and journal.is_committed:
            self._settle(responses, effects)
            return
        until = self._monotonic() + self._patience_s
        self._owed.append((journal.end, until, responses, effects))
        if self._impatience is None:
            self._impatience = self._broker.call_later(self._patience_s, self._lose_patience)

    def _pay(self, high_watermark: int) -> None:
        """What waited for the journal up to here is due."""
        owed = self._owed
        while owed and owed[0][0] <= high_watermark:
            _, _, responses, effects = owed.popleft()
            self._settle(responses, effects)

    def _settle(self, responses: Responses, effects: Sequence[Any]) -> None:
        machine, waiting = self.machine, self._waiting
        for handle, reply in responses:
            waiter = waiting.pop(handle, None)
            if waiter is not None:
                waiter.complete(reply)
        if effects and machine is not None:
            self._have_done(machine, effects)

    def _lose_patience(self) -> None:
        self._impatience = None
        now = self._monotonic()
        error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the journal is not committed in time")
        for place, (end, until, responses, effects) in enumerate(list(self._owed)):
            if until > now:
                self._impatience = self._broker.call_later(until - now, self._lose_patience)
                return
            self._owed[place] = (end, until, (), effects)
            self._settle([(handle, error) for handle, _ in responses], ())

    def _have_done(self, machine: M, effects: Sequence[Any]) -> None:
        assert self._perform is not None
        for effect in effects:
            if self.machine is machine:
                self._perform(self, effect)

    # Time.

    def _arm(self, machine: M) -> None:
        """One timer: moved when something is due earlier, and left alone when later, since it looks again."""
        deadline_ms = machine.next_deadline_ms()
        if deadline_ms is None or self._hesitates:
            return
        if self._timer is not None and self._armed_ms <= deadline_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ms = deadline_ms
        delay_ms = max(0, deadline_ms - self._now_ms())
        self._timer = self._broker.call_later(delay_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        machine, now_ms = self.machine, self._now_ms()
        if machine is None:
            return
        if now_ms - self._armed_ms > STANDSTILL_MS and not self._hesitates:
            # The process or its clock stood still: hear first what clients have sent meanwhile.
            self._hesitates = True
            self._timer = self._broker.call_later(HESITATION_S, self._ring)
            return
        self._hesitates = False
        deadline_ms = machine.next_deadline_ms()
        if deadline_ms is None or deadline_ms > now_ms:
            self._arm(machine)
            return
        try:
            self._happen(machine, machine.expire(now_ms))
        except Exception as error:  # (whatever it is, time goes on)
            log.error("a deadline of a coordinator failed", topic=self.partition.topic, exc_info=error)
            self._timer = self._broker.call_later(RETRY_S, self._ring)

    def _happen(self, machine: M, outcome: Outcome) -> None:
        """Carry out what nobody asked for."""
        now_ms = self._now_ms()
        self._carry_out(machine, outcome, self._parts(machine, outcome, now_ms), now_ms)

    # Beginning and end.

    def _load(self) -> None:
        if self.partition.offline or self._closed:
            return
        if self.partition.log.log_start_offset == self.partition.log.log_end_offset:
            self._begin(self._new_machine())
        else:
            self._broker.tasks.start(f"load-{self.partition.topic}-{self.partition.index}", self._replay())

    async def _replay(self) -> None:
        machine, clock = self._new_machine(), self._broker.clock
        since, offset = clock.monotonic(), -1
        try:
            for count, entry in enumerate(self._journal.replay()):
                machine.replay(entry.key, entry.value, entry.batch)
                offset = entry.offset
                if count % ENTRIES_PER_LOOK == 0 and clock.monotonic() - since > LOAD_SLICE_S:
                    await asyncio.sleep(0)
                    since = clock.monotonic()
                    if self._closed:
                        return
        except Exception as error:  # noqa: BLE001 (whoever wrote the record, its groups are not to wait for ever)
            self._give_up(error, offset)
            return
        self._begin(machine)

    def _give_up(self, error: Exception, offset: int) -> None:
        """The journal cannot be read, or the broker fails at a record of it: nothing is served from a part."""
        topic, index = self.partition.topic, self.partition.index
        is_bug = not isinstance(error, OSError | KafkaError)
        log.error(
            "a journal cannot be read",
            topic=topic,
            index=index,
            after_offset=offset,
            why=str(error),
            exc_info=error if is_bug else None,
        )
        self._unreadable = True
        if isinstance(error, OSError):
            self.partition.failed(error)

    def _begin(self, machine: M) -> None:
        self.machine = machine
        self._happen(machine, machine.on_loaded(self._now_ms()))
        if self._on_loaded is not None:
            self._on_loaded(self)

    def _fail(self, error: KafkaError) -> None:
        """What was applied may not be in the journal: forget it and read the journal again."""
        if self.machine is None:
            return
        log.error(
            "a coordinator lost its journal",
            topic=self.partition.topic,
            index=self.partition.index,
            why=str(error),
        )
        self._drop()
        self._load()

    def _drop(self) -> None:
        self.machine = None
        self._hesitates = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._owed.clear()
        waiting, self._waiting = self._waiting, {}
        for handle in waiting.values():
            handle.complete(_not_coordinator(self.partition))

    def close(self) -> None:
        """This broker does not lead the partition any more, or stops."""
        self._closed = True
        self._journal.close()
        self._drop()
        if self._impatience is not None:
            self._impatience.cancel()


def _not_coordinator(partition: Partition) -> KafkaError:
    return KafkaError(
        ErrorCode.NOT_COORDINATOR, f"{partition.topic}-{partition.index} is not served here any more"
    )


def _record_bytes(record: JournalRecord) -> int:
    """What a record takes in a batch, at most."""
    key, value = record
    return len(key) + (0 if value is None else len(value)) + RECORD_OVERHEAD_BYTES


def _divided(
    events: Sequence[Any], encoded: Sequence[JournalRecord | None], limit: int
) -> Iterator[tuple[list[Any], list[JournalRecord]]]:
    """As few batches as the events fit into, in their order."""
    part: list[Any] = []
    records: list[JournalRecord] = []
    size = 0
    for event, record in zip(events, encoded, strict=True):
        if record is not None:
            added = _record_bytes(record)
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
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{size} bytes for one batch of a journal")
