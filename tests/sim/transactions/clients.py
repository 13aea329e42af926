"""Simulated clients of transactions: one request at a time, retried until it is answered.

They begin, write, commit offsets and end as clients of both versions of the protocol do; some share a transactional
id, so that they fence each other. What each wanted and was told is remembered.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from tests.sim.seeds import Invariant, Violation

from levada.broker.broker import Broker
from levada.broker.coordinator.groups import OFFSETS_TOPIC
from levada.broker.partition.partition import Partition
from levada.broker.partition.verification import Verification
from levada.core.groups.offsets import CommitRequest
from levada.core.transactions.machine import EndRequest, InitRequest, NeedsProducerIdError
from levada.core.transactions.state import ProducerIdAndEpoch
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartitionKey
from levada.wire.batches import TRANSACTIONAL_BIT, Record, encode
from levada.wire.internal.group_records import OffsetCommitValue

if TYPE_CHECKING:
    from tests.sim.transactions.world import TxnWorld

PARTITIONS: list[TopicPartitionKey] = [("orders", 0), ("orders", 1), ("bills", 0)]
GROUP = "copiers"
TIMEOUT_MS = 60_000
AGAIN = frozenset(
    (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)
GONE = frozenset((ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING))


@dataclass
class Call:
    """A request on its way; an answer that is lost is never heard."""

    result: Any = None
    done: bool = False
    goal: tuple[Partition, int] | None = None  # of a Produce: answered when the high watermark is there

    def give(self, result: Any) -> None:
        if not self.done:
            self.result, self.done = result, True

    def look(self) -> None:
        if self.goal is not None and not self.done:
            partition, goal = self.goal
            if partition.high_watermark >= goal:
                self.give(None)
            elif partition.offline:
                self.give(partition.storage_error())


@dataclass
class Transaction:
    """What a client did in one transaction."""

    number: int
    since_ms: int
    written: dict[TopicPartitionKey, list[bytes]] = field(default_factory=dict)  # acknowledged
    unanswered: tuple[TopicPartitionKey, bytes] | None = None
    offset: bool = False  # whether its number was committed as the group's offset
    asked: bool | None = None  # to commit or to abort
    acknowledged: bool | None = None  # that it was committed or aborted


class Client:
    """A transactional producer."""

    def __init__(self, world: "TxnWorld", name: str, version: int) -> None:
        self.world = world
        self.name = name
        self.version = version
        self.identity: ProducerIdAndEpoch | None = None
        self.sequences: dict[TopicPartitionKey, int] = {}
        self.transaction: Transaction | None = None
        self.doing: tuple[str, Any] | None = None  # what it asks for, until it is answered
        self.call: Call | None = None

    def forget(self) -> None:
        """The client in its place knows nothing."""
        self.identity = self.transaction = self.doing = None

    def act(self) -> None:
        """Hear an answer, unless it is lost; or ask, the same again or for something new."""
        world = self.world
        if self.call is not None:
            if not self.call.done:
                return
            result, self.call = self.call.result, None
            if world.random.random() < 0.1:
                world.note(f"{self.name}: the answer to {self.doing} is lost")
            else:
                self.answered(result)
                return
        if self.doing is None:
            self.doing = self.next_wish()
        world.note(f"{self.name} {self.identity}: {self.doing}")
        self.send()

    def next_wish(self) -> tuple[str, Any]:
        if self.identity is None:
            return "init", None
        random = self.world.random
        if self.transaction is None:
            self.transaction = self.world.new_transaction()
        transaction = self.transaction
        written = sum(map(len, transaction.written.values()))
        wish = random.choice(("write", "write", "offset", "end", "begin anew"))
        if wish == "begin anew" and random.random() < 0.3:
            return "init", None
        if wish == "offset" and self.name == "alone" and written:
            return "offset", None
        if wish == "end" and written:
            transaction.asked = random.random() < 0.7
            return "end", transaction.asked
        topic_partition = random.choice(PARTITIONS)
        value = b"%d %d" % (transaction.number, written)
        transaction.unanswered = (topic_partition, value)
        return "write", (topic_partition, value)

    # Requests.

    def send(self) -> None:
        assert self.doing is not None
        kind, argument = self.doing
        call = self.call = Call()
        try:
            if kind == "init":
                self.begin(call)
            elif kind == "end":
                self.submit(call, lambda new_id: self.ending(argument, new_id))
            elif kind == "write":
                self.write(call, *argument)
            else:
                self.commit_offset(call)
        except KafkaError as error:
            call.give(error)

    def begin(self, call: Call) -> None:
        def decide(new_id: int) -> Any:
            request = InitRequest(self.name, TIMEOUT_MS, new_producer_id=new_id)
            return lambda machine, now_ms, handle: machine.init(request, now_ms, handle)

        self.submit(call, decide)

    def ending(self, committed: bool, new_id: int) -> Any:
        assert self.identity is not None
        request = EndRequest(self.name, self.identity, committed, 2 if self.version == 2 else 0, new_id)
        return lambda machine, now_ms, handle: machine.end(request, now_ms, handle)

    def submit(self, call: Call, decide: Callable[[int], Any]) -> None:
        shard = self.world.broker.transactions.shard(self.name)
        try:
            shard.submit(decide(-1)).add_done_callback(call.give)
        except NeedsProducerIdError:
            shard.submit(decide(next(self.world.producer_ids))).add_done_callback(call.give)

    def write(self, call: Call, topic_partition: TopicPartitionKey, value: bytes) -> None:
        assert self.identity is not None
        world, identity, partition = self.world, self.identity, self.world.broker.partition(*topic_partition)

        def append() -> None:
            batch = memoryview(
                encode(
                    [Record(0, world.clock.ms, bytes(world.random.choice((1, 300))), value)],
                    producer_id=identity.producer_id,
                    producer_epoch=identity.epoch,
                    base_sequence=self.sequences.get(topic_partition, 0),
                    attributes=TRANSACTIONAL_BIT,
                )
            )
            partition.append(batch, 0, len(batch), world.clock.ms)
            call.goal = (partition, partition.log.next_offset)

        self.admitted(call, partition, append)

    def commit_offset(self, call: Call) -> None:
        assert self.identity is not None and self.transaction is not None
        world, identity, number = self.world, self.identity, self.transaction.number
        partition = world.broker.partition(OFFSETS_TOPIC, 0)

        def commit() -> None:
            partition.producers.check_epoch(*identity)
            partition.transactions.check(*identity)
            value = OffsetCommitValue(number, -1, "", world.clock.ms)
            request = CommitRequest(GROUP, "", None, -1, [(PARTITIONS[0], value)], *identity)
            world.broker.groups.shard(GROUP).submit(
                lambda machine, now_ms, handle: machine.commit(request, now_ms, handle)
            ).add_done_callback(call.give)

        self.admitted(call, partition, commit)

    def admitted(self, call: Call, partition: Partition, go_on: Callable[[], None]) -> None:
        """A client of version 1 says first where it will write; who has not said so is asked for."""
        if self.version == 1:
            self.add_first(call, partition, lambda: self.verified(call, partition, go_on))
        else:
            self.verified(call, partition, go_on)

    def add_first(self, call: Call, partition: Partition, go_on: Callable[[], None]) -> None:
        identity, topic_partition = self.identity, (partition.topic, partition.index)
        assert identity is not None

        def on_response(result: Any) -> None:
            if isinstance(result, Exception):
                call.give(result)
            else:
                self.proceed(call, go_on)

        shard = self.world.broker.transactions.shard(self.name)
        shard.submit(
            lambda machine, now_ms, handle: machine.add(self.name, identity, [topic_partition], 1, now_ms, handle)
        ).add_done_callback(on_response)

    def verified(self, call: Call, partition: Partition, go_on: Callable[[], None]) -> None:
        """Asks the coordinator where the transaction is not open; then goes on, unless the process is another."""
        assert self.identity is not None
        broker = self.world.broker

        def on_response(errors: list[ErrorCode]) -> None:
            if broker is not self.world.broker:
                return
            if errors[0] is not ErrorCode.NONE:
                call.give(KafkaError(errors[0]))
            else:
                self.proceed(call, go_on)

        if partition.transactions.is_verified(*self.identity):
            on_response([ErrorCode.NONE])
        else:
            asker = cast(Broker, broker)
            Verification(
                asker, self.name, self.identity, [partition], self.version, lambda error: error, on_response
            ).start()

    def proceed(self, call: Call, go_on: Callable[[], None]) -> None:
        if self.call is not call:
            return
        try:
            go_on()
        except KafkaError as error:
            call.give(error)

    # Answers.

    def answered(self, result: Any) -> None:
        assert self.doing is not None
        kind, argument = self.doing
        self.world.note(f"{self.name} {self.identity}: {kind} -> {result}")
        if isinstance(result, KafkaError):
            self.refused(kind, result)
            return
        if isinstance(result, Exception):
            raise result
        self.doing = None
        transaction = self.transaction
        if kind == "init":
            self.identity, self.transaction, self.sequences = result.client, None, {}
            return
        assert transaction is not None
        if kind == "write":
            topic_partition, value = argument
            transaction.written.setdefault(topic_partition, []).append(value)
            transaction.unanswered = None
            self.sequences[topic_partition] = self.sequences.get(topic_partition, 0) + 1
        elif kind == "offset":
            transaction.offset = True
        else:
            transaction.acknowledged = transaction.asked
            self.transaction = None
            if result != self.identity:
                self.identity, self.sequences = result, {}

    def refused(self, kind: str, error: KafkaError) -> None:
        if error.code in AGAIN:
            return
        if error.code not in GONE:
            allowed = {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}
            if error.code not in allowed or self.transaction is None:
                raise Violation(
                    Invariant.VALID_REQUESTS, f"{self.name} {self.identity}: {kind} was refused with {error}"
                )
            if kind == "end":
                self.timed_out(self.transaction, error)
                return
        self.forget()

    def timed_out(self, transaction: Transaction, error: KafkaError) -> None:
        """What lasted too long cannot be committed, but aborted to go on."""
        if not transaction.asked or self.world.clock.ms < transaction.since_ms + TIMEOUT_MS:
            raise Violation(Invariant.VALID_REQUESTS, f"{self.name} asked for {self.doing} of {transaction}: {error}")
        transaction.asked = False
        self.doing = "end", False
