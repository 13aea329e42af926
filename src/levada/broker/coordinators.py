"""The runtime of coordinators: journaled machines, one for each partition of an internal topic that this broker leads.

Groups (`__consumer_offsets`) and transactions (`__transaction_state`) share it. A key (group id, transactional id)
belongs to the shard of the partition that its hash names, as in Kafka. A handler finds the shard and submits a
decision; what it gets is a `Deferred` to return or to await:

    shard = call.broker.groups.shard(request.group_id)             # raises NOT_COORDINATOR, ..._LOAD_IN_PROGRESS
    return shard.submit(lambda machine, now_ms, ticket: machine.heartbeat(..., ticket), answer=_heartbeat_response)

`submit` asks the machine to decide, journals the events that have records in one batch, applies all of them, and
lets every reply go once everything the machine had applied by then is committed: nobody hears of what may be lost.
The machine may keep the ticket and reply to it in a later outcome (a JoinGroup waits for the other members).

A reply that the journal keeps waiting for longer than offsets.commit.timeout.ms becomes COORDINATOR_NOT_AVAILABLE.

A shard is loaded by replaying its partition, in slices, so that the loop stays free; meanwhile its keys are answered
COORDINATOR_LOAD_IN_PROGRESS. When an append or a commit fails, or the partition is gone, the machine is dropped,
whoever waits is told NOT_COORDINATOR, and the shard is loaded again from what the journal holds.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from levada.broker.controller import new_topic_id
from levada.broker.journal import Journal
from levada.broker.partitions import Partition
from levada.broker.waiting import Deferred
from levada.core.controller import CreateTopic
from levada.core.image import ClusterImage
from levada.core.machines import JournalRecord, Machine, Outcome, Ticket
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog

if TYPE_CHECKING:
    from levada.broker.broker import Broker

log = EventLog(__name__)

LOAD_SLICE_S: Final = 0.005  # how long replaying may keep the loop
RECORD_OVERHEAD_BYTES: Final = 24  # at most, beside key and value
RETRY_S: Final = 1.0  # after a bug in a deadline
ENTRIES_PER_LOOK: Final = 64  # how many records are replayed between looks at the clock

M = TypeVar("M", bound=Machine)
Replies = Sequence[tuple[Ticket, Any]]


class InternalTopic(NamedTuple):
    """The topic that holds the journals, and how it is made on first use."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


class Shard(Generic[M]):
    """The machine of one partition, and everything that waits for it."""

    __slots__ = (
        "_armed_ms",
        "_broker",
        "_closed",
        "_impatience",
        "_journal",
        "_new_machine",
        "_on_loaded",
        "_owed",
        "_patience_s",
        "_perform",
        "_timer",
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
        self._new_machine = new_machine
        self._on_loaded = on_loaded
        self._perform = perform
        self._journal = Journal(partition, broker.clock)
        self._waiting: set[Deferred] = set()  # exactly the tickets that are not answered
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ms = 0
        self._closed = False
        self._patience_s = broker.config.offsets_commit_timeout_ms / 1000
        self._owed: deque[tuple[float, Replies]] = deque()  # until when, in the order of the journal
        self._impatience: asyncio.TimerHandle | None = None  # rings for the first of them, or early
        self._load()

    @property
    def ready(self) -> M:
        """The machine; COORDINATOR_LOAD_IN_PROGRESS until it is there, NOT_COORDINATOR if it never will be."""
        if self.machine is None:
            if self._closed or self.partition.offline:
                raise _not_coordinator(self.partition)
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the coordinator reads its journal")
        return self.machine

    # Deciding.

    def submit(
        self, decide: Callable[[M, int, Ticket], Outcome], answer: Callable[[Any], Any] | None = None
    ) -> Deferred:
        """Let the machine decide on a request; `answer` turns its reply into the response. Raises KafkaError."""
        machine = self.ready
        ticket = Deferred(answer)
        outcome = decide(machine, self._broker.clock.now_ms(), ticket)
        records = self._records(machine, outcome)
        self._waiting.add(ticket)
        self._carry_out(machine, outcome, records)
        return ticket

    def _records(self, machine: M, outcome: Outcome) -> list[JournalRecord]:
        """What an outcome writes; MESSAGE_TOO_LARGE if the topic would not take it, and nothing happens."""
        records = [record for event in outcome.events if (record := machine.encode(event)) is not None]
        size = sum(len(key) + len(value or b"") for key, value in records)
        limit = self.partition.log.config.max_message_bytes
        if size + RECORD_OVERHEAD_BYTES * len(records) > limit:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE, f"{size} bytes in {len(records)} records of a journal"
            )
        return records

    def _carry_out(self, machine: M, outcome: Outcome, records: list[JournalRecord]) -> None:
        events, replies, stamp, effects = outcome
        if records:
            try:
                self._journal.append(records, self._committed, **stamp._asdict())
            except KafkaError as error:
                self._fail(error)
                return
        for event in events:
            machine.apply(event)
        if replies:
            self._owe(replies)
        if effects:
            self._journal.after_all(
                lambda error: self._have_done(machine, effects) if error is None else None
            )
        self._arm(machine)

    def _owe(self, replies: Replies) -> None:
        """Give the replies when the journal is committed, or a refusal if that takes too long."""
        owed = (self._broker.clock.monotonic() + self._patience_s, replies)
        self._owed.append(owed)
        self._journal.after_all(lambda error: self._give(owed) if error is None else None)
        if self._owed and self._impatience is None:
            self._impatience = self._broker.call_later(self._patience_s, self._lose_patience)

    def _lose_patience(self) -> None:
        self._impatience = None
        now = self._broker.clock.monotonic()
        error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the journal is not committed in time")
        while self._owed and self._owed[0][0] <= now:
            _, replies = self._owed.popleft()
            self._hand_out((ticket, error) for ticket, _ in replies)
        if self._owed:
            self._impatience = self._broker.call_later(self._owed[0][0] - now, self._lose_patience)

    def _have_done(self, machine: M, effects: Sequence[Any]) -> None:
        assert self._perform is not None
        for effect in effects:
            if self.machine is machine:
                self._perform(self, effect)

    def _committed(self, error: KafkaError | None) -> None:
        if error is not None:
            self._fail(error)

    def _give(self, owed: tuple[float, Replies]) -> None:
        if self._owed and self._owed[0] is owed:
            self._owed.popleft()
            self._hand_out(owed[1])

    def _hand_out(self, replies: Iterable[tuple[Ticket, Any]]) -> None:
        for ticket, reply in replies:
            if ticket in self._waiting:
                assert isinstance(ticket, Deferred)
                self._waiting.discard(ticket)
                ticket.give(reply)

    # Time.

    def _arm(self, machine: M) -> None:
        """One timer: moved when something is due earlier, and left alone when later, since it looks again."""
        deadline_ms = machine.next_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._armed_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ms = deadline_ms
        delay_ms = max(0, deadline_ms - self._broker.clock.now_ms())
        self._timer = self._broker.call_later(delay_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        machine, now_ms = self.machine, self._broker.clock.now_ms()
        if machine is None:
            return
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
        self._carry_out(machine, outcome, self._records(machine, outcome))

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
        since = clock.monotonic()
        try:
            for count, entry in enumerate(self._journal.replay()):
                machine.replay(entry.key, entry.value, entry.batch)
                if count % ENTRIES_PER_LOOK == 0 and clock.monotonic() - since > LOAD_SLICE_S:
                    await asyncio.sleep(0)
                    since = clock.monotonic()
                    if self._closed:
                        return
        except OSError as error:
            log.error("a journal cannot be read", topic=self.partition.topic, error=str(error))
            return
        self._begin(machine)

    def _begin(self, machine: M) -> None:
        self.machine = machine
        self._happen(machine, machine.loaded(self._broker.clock.now_ms()))
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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._owed.clear()
        waiting, self._waiting = self._waiting, set()
        for ticket in waiting:
            ticket.give(_not_coordinator(self.partition))

    def close(self) -> None:
        """This broker does not lead the partition any more, or stops."""
        self._closed = True
        self._drop()
        if self._impatience is not None:
            self._impatience.cancel()


class Coordinators(Generic[M]):
    """All shards of one internal topic on this broker."""

    def __init__(
        self,
        broker: "Broker",
        topic: InternalTopic,
        new_machine: Callable[[], M],
        on_loaded: Callable[[Shard[M]], None] | None = None,
        perform: Callable[[Shard[M], Any], None] | None = None,
    ) -> None:
        self.topic = topic
        self._broker = broker
        self._new_machine = new_machine
        self._on_loaded = on_loaded  # told of each shard that begins to serve
        self._perform = perform  # carries out the effects of decisions
        self._shards: dict[int, Shard[M]] = {}
        broker.followers.append(self._follow)

    def shard(self, key: str) -> Shard[M]:
        """The shard that a group id or transactional id belongs to; NOT_COORDINATOR if it is not here."""
        shard = self._shards.get(self.index(key))
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker is not the coordinator of {key!r}")
        return shard

    def __iter__(self) -> Iterator[Shard[M]]:
        """Every shard of this broker, also those still loading."""
        return iter(self._shards.values())

    def at(self, index: int) -> Shard[M] | None:
        """The shard of a partition, if it is led here."""
        return self._shards.get(index)

    def index(self, key: str) -> int:
        """The partition that a key belongs to; the number of partitions is that of the topic, once there is one."""
        topic = self._broker.image.topics.get(self.topic.name)
        count = self.topic.partitions if topic is None else len(topic.partitions)
        return java_abs(java_hash(key)) % count

    @property
    def exists(self) -> bool:
        """Whether the internal topic has been made."""
        return self.topic.name in self._broker.image.topics

    async def create_topic(self) -> None:
        """Make the internal topic if it is not there; KafkaError COORDINATOR_NOT_AVAILABLE if that fails."""
        if self.exists:
            return
        name, partitions, factor, configs = self.topic
        command = CreateTopic(name, new_topic_id(), partitions, factor, configs=configs)
        try:
            await self._broker.controller.submit(command)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name} cannot be made: {error}"
                ) from None

    def close(self) -> None:
        """Answer who waits, and decide nothing more."""
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()

    def _follow(self, former: ClusterImage, image: ClusterImage) -> None:
        """Have a shard for each partition of the topic that is open here, and for no other."""
        topic = image.topics.get(self.topic.name)
        open_here = {}
        for index in range(len(topic.partitions) if topic is not None else 0):
            partition = self._broker.partitions.get((self.topic.name, index))
            if partition is not None:
                open_here[index] = partition
        for index, shard in list(self._shards.items()):
            if open_here.get(index) is not shard.partition:
                del self._shards[index]
                shard.close()
        for index, partition in open_here.items():
            if index not in self._shards:
                self._shards[index] = Shard(
                    self._broker, partition, self._new_machine, self._on_loaded, self._perform
                )


def _not_coordinator(partition: Partition) -> KafkaError:
    return KafkaError(
        ErrorCode.NOT_COORDINATOR, f"{partition.topic}-{partition.index} is not served here any more"
    )


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, as a signed 32-bit number."""
    number = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        number = (31 * number + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number


def java_abs(number: int) -> int:
    """Kafka's abs: the smallest int, which has no positive twin, becomes 0."""
    return 0 if number == -(1 << 31) else abs(number)
