"""Simulated clients that only commit offsets: plain, transactional, readers and an operator."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tests.sim.groups.offset_model import Removed
from tests.sim.seeds import Invariant, Violation

from levada.broker.broker import Broker
from levada.broker.coordinator.groups import OFFSETS_TOPIC
from levada.broker.partition.verification import Verification
from levada.core.groups.offsets import CommitRequest
from levada.core.machine import Outcome
from levada.core.transactions.machine import EndRequest, InitRequest, NeedsProducerIdError
from levada.core.transactions.state import ProducerIdAndEpoch
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartitionKey
from levada.wire.internal.group_records import OffsetCommitValue

if TYPE_CHECKING:
    from tests.sim.groups.members import Member
    from tests.sim.groups.world import GroupWorld

SIDE_GROUP = "side"
SIDE_PARTITIONS: list[TopicPartitionKey] = [("orders", 0), ("orders", 1)]
TIMEOUT_MS = 3_000
TXN_TIMEOUT_MS = 20_000
FIRST_PRODUCER_ID = 100


class OffsetClient:
    """One request at a time, again and again."""

    def __init__(self, world: "GroupWorld", name: str) -> None:
        self.world = world
        self.name = name
        self.waiting: object | None = None
        self.idle = False  # it begins nothing new

    def wake(self) -> None:
        if self.waiting is None:
            self.go_on()

    def go_on(self) -> None:
        raise NotImplementedError

    def soon(self, at_most_ms: int) -> None:
        self.world.later(self.world.random.randint(1, at_most_ms), self.wake)

    def ask(self, what: str, submit: Any, on_response: Any, given: Any = None) -> None:
        token = self.waiting = object()

        def answered(result: Any) -> None:
            if self.waiting is token:
                self.waiting = None
                self.world.note(f"{self.name}: {what} -> {result}")
                on_response(result)

        def gave_up() -> None:
            if self.waiting is token:
                self.waiting = None
                self.wake()

        self.world.send(f"{self.name}: {what}", submit, answered, given)
        self.world.later(TIMEOUT_MS, gave_up)

    def value(self) -> OffsetCommitValue:
        return OffsetCommitValue(next(self.world.offset_numbers), -1, "", self.world.clock.ms)


class Keeper(OffsetClient):
    """Commits without being a member."""

    def go_on(self) -> None:
        if self.idle:
            return
        random = self.world.random
        topic_partitions = random.sample(SIDE_PARTITIONS, random.choice((1, 1, 2)))
        request = CommitRequest(
            SIDE_GROUP,
            "",
            None,
            -1,
            [(topic_partition, self.value()) for topic_partition in topic_partitions],
        )
        self.ask(
            f"commit {[(topic_partition, value.offset) for topic_partition, value in request.offsets]}",
            lambda give: self.world.submit_commit(request, give),
            lambda _: self.soon(random.choice((500, 5_000, 90_000))),
        )


class Reader(OffsetClient):
    """Asks for committed offsets, and is never told what may be lost or is not decided."""

    def go_on(self) -> None:
        world = self.world
        if self.idle:
            return
        group = world.random.choice((SIDE_GROUP, world.group))
        stable = world.random.random() < 0.5
        at_response: dict[str, Any] = {}

        def submit(give: Any) -> None:
            topic_partitions = sorted(world.topic_partitions())
            model = world.model.now
            at_response["count"] = world.model.count
            at_response["expected"] = [
                "unstable"
                if stable and any((group, topic_partition) in found for found in model.pending.values())
                else model.plain.get((group, topic_partition), (None,))[0]
                for topic_partition in topic_partitions
            ]
            world.submit(
                group,
                lambda machine, _, handle: Outcome(
                    responses=[(handle, machine.fetch(group, topic_partitions, require_stable=stable))]
                ),
                give,
            )

        def given(result: Any) -> None:
            if isinstance(result, KafkaError):
                return
            found = ["unstable" if one.error else None if one.value is None else one.value.offset for one in result]
            if found != at_response["expected"]:
                raise Violation(
                    Invariant.COMMITTED_OFFSETS, f"{group} has {found}, but should have {at_response['expected']}"
                )
            world.model.acknowledge(at_response["count"])

        self.ask(f"read {group}", submit, lambda _: self.soon(5_000), given)


class Operator(OffsetClient):
    """Deletes offsets and groups that nobody is in."""

    def go_on(self) -> None:
        world = self.world
        if self.idle:
            return
        if world.random.random() < 0.5:
            self.ask("delete offset", self.delete_offset, lambda _: self.soon(60_000))
        else:
            self.ask("delete group", self.delete_group, lambda _: self.soon(60_000))

    def delete_offset(self, give: Any) -> None:
        topic_partition = self.world.random.choice(SIDE_PARTITIONS)
        key = (SIDE_GROUP, topic_partition)
        keys = [key] if key in self.world.model.now.plain else []
        self.world.change(
            [Removed(key) for key in keys],
            SIDE_GROUP,
            lambda machine, _, handle: machine.delete_offsets(SIDE_GROUP, [topic_partition], handle),
            give,
        )

    def delete_group(self, give: Any) -> None:
        group = self.world.random.choice((SIDE_GROUP, self.world.group))
        self.world.change(
            [Removed(key) for key in self.world.model.keys(group)],
            group,
            lambda machine, _, handle: Outcome(machine.delete_group(group), [(handle, None)], atomic=False),
            give,
        )


@dataclass
class Txn:
    """What a client wants of its transaction, and was told."""

    asked: bool | None = None
    acknowledged: bool | None = None

    @property
    def outcomes(self) -> tuple[bool, ...]:
        """How it may have ended."""
        if self.acknowledged is not None:
            return (self.acknowledged,)
        return (True, False) if self.asked else (False,)


class Transactor(OffsetClient):
    """Commits offsets in transactions: for nobody, or for a member of the group (KIP-447)."""

    def __init__(self, world: "GroupWorld", name: str) -> None:
        super().__init__(world, name)
        self.identity: ProducerIdAndEpoch | None = None
        self.txn: Txn | None = None
        self.commits = 0

    def go_on(self) -> None:
        random = self.world.random
        if self.identity is None or (random.random() < 0.05 and not self.world.calm):
            self.identity = self.txn = None
            self.ask("init", self.submit_init, self.on_init)
        elif self.txn is not None and (self.txn.asked is not None or self.idle or random.random() < 0.3 * self.commits):
            self.end()
        elif not self.idle:
            self.commit()

    # Requests.

    def submit_init(self, give: Any) -> None:
        def decide(new_id: int) -> Any:
            request = InitRequest(self.name, TXN_TIMEOUT_MS, new_producer_id=new_id)
            return lambda machine, now_ms, handle: machine.init(request, now_ms, handle)

        self.submit(decide, give)

    def submit(self, decide: Any, give: Any) -> None:
        shard = self.world.broker.transactions.shard(self.name)
        try:
            shard.submit(decide(-1)).add_done_callback(give)
        except NeedsProducerIdError:
            shard.submit(decide(FIRST_PRODUCER_ID + next(self.world.ids))).add_done_callback(give)

    def on_init(self, result: Any) -> None:
        if not isinstance(result, KafkaError):
            self.identity, self.txn, self.commits = result.client, None, 0
        self.soon(200)

    def end(self) -> None:
        txn, identity = self.txn, self.identity
        assert txn is not None and identity is not None
        if txn.asked is None:
            txn.asked = self.world.random.random() < 0.7
        committed = txn.asked

        def decide(new_id: int) -> Any:
            request = EndRequest(self.name, identity, committed, 2, new_id)
            return lambda machine, now_ms, handle: machine.end(request, now_ms, handle)

        def given(result: Any) -> None:
            if not isinstance(result, KafkaError):
                txn.acknowledged = committed

        def on_response(result: Any) -> None:
            if isinstance(result, KafkaError):
                self.refused(result)
            else:
                self.identity, self.txn, self.commits = result, None, 0
            self.soon(3_000)

        self.ask(f"end {committed}", lambda give: self.submit(decide, give), on_response, given)

    def commit(self) -> None:
        identity, world = self.identity, self.world
        assert identity is not None
        member = self.member()
        if member is None:
            topic_partition = world.random.choice(SIDE_PARTITIONS)
            request = CommitRequest(SIDE_GROUP, "", None, -1, [(topic_partition, self.value())], *identity)
        else:
            topic_partitions = [world.random.choice(sorted(member.reads))]
            request = member.commit_request(topic_partitions, *identity)
        self.txn = txn = self.txn or Txn()

        def on_response(result: Any) -> None:
            if isinstance(result, KafkaError):
                self.refused(result)
            else:
                self.commits += 1
            self.soon(4_000)

        self.ask(
            f"commit {identity} {request.group_id} {request.member_id} {request.offsets[0]}",
            lambda give: self.submit_commit(request, txn, give),
            on_response,
        )

    def member(self) -> "Member | None":
        members = [member for member in self.world.members if member.settled and member.reads]
        return self.world.random.choice(members) if members and self.world.random.random() < 0.5 else None

    def submit_commit(self, request: CommitRequest, txn: Txn, give: Any) -> None:
        """As the handler of TxnOffsetCommit does: ask the coordinator, then commit."""
        world, broker = self.world, self.world.broker
        identity = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        partition = broker.partition(OFFSETS_TOPIC, 0)
        broker.groups.shard(request.group_id)

        def on_response(errors: list[ErrorCode]) -> None:
            if broker is not world.broker:
                return
            try:
                if errors[0] is not ErrorCode.NONE:
                    raise KafkaError(errors[0])
                partition.producers.check_epoch(*identity)
                partition.transactions.check(*identity)
                world.txns[request.producer_id] = txn
                world.submit_commit(request, give, member=request.member_id)
            except KafkaError as error:
                give(error)

        if partition.transactions.has_open(*identity):
            on_response([ErrorCode.NONE])
        else:
            asker = cast(Broker, broker)
            Verification(asker, self.name, identity, [partition], 2, lambda error: error, on_response).start()

    def refused(self, error: KafkaError) -> None:
        """Whatever is fatal or abortable begins anew; the rest is asked again."""
        if error.code in (
            ErrorCode.PRODUCER_FENCED,
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            ErrorCode.INVALID_TXN_STATE,
            ErrorCode.TRANSACTION_ABORTABLE,
        ):
            self.identity = self.txn = None
