"""The simulated world of transactions: the broker's own coordinators, journals and partitions over a simulated disk.

Clients begin, write, commit offsets, end and ask again; some share a transactional id, so that they fence each other.
Answers are lost, time passes, the disk tears writes and fails, the process is killed and the power cut at any call.
A model remembers what clients wanted and were told; readers of committed records look at any time. Only the network
and the loop are not the broker's own. All chance comes from one seed.
"""

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from tests.sim.world import Violation

from levada.broker.broker import Broker
from levada.broker.groups import OFFSETS_TOPIC, group_coordinators
from levada.broker.partitions import Edges, Partition
from levada.broker.txn_coordinators import TRANSACTIONS_TOPIC, transaction_coordinators
from levada.broker.verification import Question
from levada.config import BrokerConfig, TopicConfig
from levada.core.image import ClusterImage, PartitionImage, TopicImage
from levada.core.offsets import CommitRequest
from levada.core.transaction import EndRequest, InitRequest, NeedsProducerIdError, TransactionsMachine
from levada.core.transaction_state import Identity, Place
from levada.errors import ErrorCode, KafkaError
from levada.net.turn import Turn
from levada.storage.log import Log
from levada.testing.simdisk import Faults, SimCrash, SimDisk
from levada.wire.batches import TRANSACTIONAL_BIT, Record, decode, encode, iterate_headers
from levada.wire.journal import OffsetValue
from levada.wire.markers import decode_marker

DATA = "/data"
TOPICS = {"orders": 2, "bills": 1, TRANSACTIONS_TOPIC: 2, OFFSETS_TOPIC: 1}
PLACES: list[Place] = [("orders", 0), ("orders", 1), ("bills", 0)]
GROUP = "copiers"
TIMEOUT_MS = 60_000
STEPS_UNTIL_CRASH_MAX = 60

AGAIN = frozenset(
    (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)
GONE = frozenset(
    (
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    )
)


class Clock:
    """The time of the world."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


@dataclass(order=True)
class Timer:
    """What `call_later` gives."""

    at_ms: int
    number: int
    action: Callable[[], object] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class SimTasks:
    """What a broker has started; it is carried out when the world says so."""

    def __init__(self) -> None:
        self.waiting: list[Coroutine[Any, Any, None]] = []

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self.waiting.append(work)

    def run(self, number: int) -> None:
        """Carry one out, to its end."""
        work = self.waiting.pop(number)
        while True:
            try:
                work.send(None)
            except StopIteration:
                return

    def close(self) -> None:
        for work in self.waiting:
            work.close()


class SimBroker:
    """As much of a broker as coordinators need."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.tasks = SimTasks()
        self.followers: list[Callable[[ClusterImage, ClusterImage], None]] = []
        self.partitions: dict[Place, Partition] = {}
        self.timers: list[Timer] = []
        self._numbers = count()
        partition = PartitionImage((1,), (1,), 1)
        topics = {
            name: TopicImage(name, UUID(int=number), (partition,) * partitions)
            for number, (name, partitions) in enumerate(TOPICS.items(), start=1)
        }
        names = {topic.id: name for name, topic in topics.items()}
        self.image = cast(ClusterImage, SimpleNamespace(topics=topics, topic_names=names))
        itself = cast(Broker, self)
        self.groups = group_coordinators(itself)
        self.transactions = transaction_coordinators(itself)

    def current_config(self) -> BrokerConfig:
        return self.config

    def partition(self, topic: str, index: int) -> Partition:
        return self.partitions[topic, index]

    def call_later(self, seconds: float, action: Callable[..., object], *arguments: Any) -> Timer:
        at_ms = self.clock.ms + round(seconds * 1000)
        timer = Timer(at_ms, next(self._numbers), lambda: action(*arguments))
        heappush(self.timers, timer)
        return timer

    def ring(self) -> None:
        """What is due by now happens."""
        while self.timers and self.timers[0].at_ms <= self.clock.ms:
            timer = heappop(self.timers)
            if not timer.cancelled:
                timer.action()


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
    written: dict[Place, list[bytes]] = field(default_factory=dict)  # acknowledged
    unanswered: tuple[Place, bytes] | None = None
    offset: bool = False  # whether its number was committed as the group's offset
    asked: bool | None = None  # to commit or to abort
    told: bool | None = None  # that it was committed or aborted


@dataclass
class Client:
    """A transactional producer; one request at a time."""

    name: str
    version: int
    identity: Identity | None = None
    sequences: dict[Place, int] = field(default_factory=dict)
    transaction: Transaction | None = None
    doing: tuple[str, Any] | None = None  # what it asks for, until it is answered
    call: Call | None = None


class TxnWorld:
    """One broker, its clients and readers."""

    def __init__(self, seed: int, disk_type: type[SimDisk] = SimDisk) -> None:
        self.random = random = Random(seed)
        self.disk = disk_type(Random(random.random()))
        self.clock = Clock()
        self.fsyncs = (
            random.random() < 0.5
        )  # acknowledgements wait for the disk; only then may the power fail
        self.config = BrokerConfig.load(
            {
                "offsets.topic.num.partitions": "1",
                "transaction.state.log.num.partitions": "2",
            }
        )[0]
        overrides = {
            "segment.bytes": str(random.choice((700, 2_000, 1 << 20))),
            "index.interval.bytes": str(random.choice((0, 300))),
            "levada.acks.wait.for.fsync": "true" if self.fsyncs else "false",
        }
        self.topic_config = TopicConfig.build(self.config, overrides)
        version = random.choice((1, 2))
        names = ("alone", "shared", "shared")
        self.clients = [Client(name, version) for name in names]
        self.transactions: list[Transaction] = []
        self.next_producer_id = 100
        self.recovery_points: dict[Place, int] = {}
        self.seen: dict[Place, list[tuple[int, bytes]]] = {place: [] for place in PLACES}
        self.positions = dict.fromkeys(PLACES, 0)
        self.trace: list[str] = []
        self.failed = False
        self.to_sync: set[Partition] = set()
        self.disk.mkdir(DATA)
        self.disk.fsync_dir("/")
        self.open(clean=False)

    # The broker.

    def open(self, clean: bool) -> None:
        self.failed = False
        self.to_sync.clear()
        self.turn = Turn(lambda _: None)
        self.broker = SimBroker(self.config, self.clock)
        edges = Edges(self.turn, self.to_sync.add, self.fail)
        for topic, partitions in TOPICS.items():
            for index in range(partitions):
                log = Log.open(
                    f"{DATA}/{topic}-{index}",
                    self.topic_config,
                    self.disk,
                    now_ms=self.clock.ms,
                    clean=clean,
                    recovery_point=self.recovery_points.get((topic, index), 0),
                )
                self.broker.partitions[topic, index] = Partition(topic, UUID(int=1), index, 0, log, edges)
        for follower in self.broker.followers:
            follower(self.broker.image, self.broker.image)
        self.end_turn()

    def fail(self, partition: Partition, error: OSError) -> None:
        """A broken disk takes all of its partitions."""
        self.failed = True
        for one in self.broker.partitions.values():
            one.go_offline()

    def end_turn(self) -> None:
        tasks = self.broker.tasks
        if tasks.waiting and self.random.random() < 0.7:
            tasks.run(self.random.randrange(len(tasks.waiting)))
        self.turn.end()
        for client in self.clients:
            if client.call is not None:
                client.call.look()

    def sync(self) -> None:
        """What the thread of the group commit does."""
        waiting = self.waiting_for_sync()
        self.random.shuffle(waiting)
        for partition in waiting:
            if self.random.random() < 0.5 and not partition.offline:
                self.to_sync.discard(partition)
                try:
                    partition.log.flush()
                except OSError as error:
                    self.fail(partition, error)
                    return
                partition.synced()
        self.end_turn()

    def waiting_for_sync(self) -> list[Partition]:
        return sorted(self.to_sync, key=lambda one: (one.topic, one.index))

    def crash(self, power_cut: bool) -> None:
        self.note(f"crash, power_cut={power_cut}")
        self.disk.crash_at = None
        if power_cut:
            self.disk.cut_power()
        elif self.failed:
            self.disk.remount()  # the operator has mended the disk
        else:
            self.disk.kill()
        faults, self.disk.faults = self.disk.faults, Faults()
        self.forget_calls()
        self.open(clean=False)
        self.disk.faults = faults

    # What can happen.

    def run(self, actions: int) -> None:
        for _ in range(actions):
            self.step()
        self.heal()

    def step(self) -> None:
        actions = {
            self.act: 50,
            self.end_turn: 25,
            self.sync: 30 if self.fsyncs else 3,
            self.read: 6,
            self.wait: 5,
            self.checkpoint: 3,
            self.arm_crash: 4,
            self.kill: 1,
            self.kill_client: 1,
            self.restart: 1,
            self.change_faults: 1,
        }
        action = self.random.choices(list(actions), list(actions.values()))[0]
        self.note(action.__name__)
        try:
            action()
        except SimCrash:
            self.crash(power_cut=self.fsyncs and self.random.random() < 0.6)
        if self.failed:
            self.crash(power_cut=False)

    def arm_crash(self) -> None:
        if self.disk.crash_at is None:
            self.disk.crash_at = self.disk.steps + self.random.randint(1, STEPS_UNTIL_CRASH_MAX)

    def kill(self) -> None:
        self.crash(power_cut=False)

    def kill_client(self) -> None:
        """Whoever comes in its place knows nothing."""
        client = self.random.choice(self.clients)
        client.identity = client.transaction = client.doing = client.call = None

    def restart(self) -> None:
        """A clean stop and start."""
        self.disk.crash_at, self.disk.faults = None, Faults()
        self.end_turn()
        self.broker.groups.close()
        self.broker.transactions.close()
        for place, partition in self.broker.partitions.items():
            partition.log.flush()
            partition.close()
            self.recovery_points[place] = partition.log.log_end_offset
        self.forget_calls()
        self.disk.kill()
        self.open(clean=True)

    def forget_calls(self) -> None:
        """The process is gone, and with it whatever it was about to do; a client may go with it."""
        self.broker.tasks.close()
        for client in self.clients:
            client.call = None
        if self.random.random() < 0.3:
            self.kill_client()

    def checkpoint(self) -> None:
        for place, partition in self.broker.partitions.items():
            if not partition.offline:
                self.recovery_points[place] = partition.log.recovery_point

    def change_faults(self) -> None:
        chance = self.random.random
        self.disk.faults = Faults(short_write=0.2) if chance() < 0.5 else Faults()
        if chance() < 0.3:
            self.disk.faults = Faults(
                write_error=0.02, short_write=0.1, fsync_error=0.1 if self.fsyncs else 0.0
            )

    def wait(self) -> None:
        self.clock.ms += self.random.choice((1, 30, 600, 5_000, 20_000))
        self.disk.now_ms = self.clock.ms
        self.broker.ring()

    def note(self, line: str) -> None:
        self.trace.append(f"{self.disk.steps}: {line}")

    # Clients.

    def act(self) -> None:
        client = self.random.choice(self.clients)
        if client.call is not None:
            if not client.call.done:
                return
            result, client.call = client.call.result, None
            if self.random.random() < 0.1:
                self.note(f"{client.name}: the answer to {client.doing} is lost")
            else:
                self.answered(client, result)
                return
        if client.doing is None:
            client.doing = self.next_wish(client)
        client.call = Call()
        self.note(f"{client.name} {client.identity}: {client.doing}")
        self.send(client, client.call)

    def next_wish(self, client: Client) -> tuple[str, Any]:
        if client.identity is None:
            return "init", None
        if client.transaction is None:
            client.transaction = Transaction(len(self.transactions))
            self.transactions.append(client.transaction)
        transaction = client.transaction
        written = sum(map(len, transaction.written.values()))
        wish = self.random.choice(("write", "write", "offset", "end", "begin anew"))
        if wish == "begin anew" and self.random.random() < 0.3:
            return "init", None
        if wish == "offset" and client.name == "alone" and written:
            return "offset", None
        if wish == "end" and written:
            transaction.asked = self.random.random() < 0.7
            return "end", transaction.asked
        place = self.random.choice(PLACES)
        value = b"%d %d" % (transaction.number, written)
        transaction.unanswered = (place, value)
        return "write", (place, value)

    def send(self, client: Client, call: Call) -> None:
        assert client.doing is not None
        kind, argument = client.doing
        try:
            if kind == "init":
                self.submit(client, call, lambda new_id: _init(client, new_id))
            elif kind == "end":
                self.submit(client, call, lambda new_id: _end(client, argument, new_id))
            elif kind == "write":
                self.write(client, call, *argument)
            else:
                self.commit_offset(client, call)
        except KafkaError as error:
            call.give(error)

    def submit(self, client: Client, call: Call, decide: Callable[[int], Any]) -> None:
        shard = self.broker.transactions.shard(client.name)
        try:
            shard.submit(decide(-1)).then(call.give)
        except NeedsProducerIdError:
            self.next_producer_id += 1
            shard.submit(decide(self.next_producer_id)).then(call.give)

    def admitted(self, client: Client, call: Call, partition: Partition, go_on: Callable[[], None]) -> None:
        """Asks the coordinator where the transaction is not open; then goes on, unless the process is another."""
        assert client.identity is not None
        broker = self.broker

        def hear(errors: list[ErrorCode]) -> None:
            if broker is not self.broker or client.call is not call:
                return
            if errors[0] is not ErrorCode.NONE:
                call.give(KafkaError(errors[0]))
                return
            try:
                go_on()
            except KafkaError as error:
                call.give(error)

        if partition.transactions.may_write(*client.identity):
            hear([ErrorCode.NONE])
        else:
            asker = cast(Broker, broker)
            told = as_it_is
            Question(asker, client.name, client.identity, [partition], client.version, told, hear).ask()

    def write(self, client: Client, call: Call, place: Place, value: bytes) -> None:
        assert client.identity is not None
        identity, partition = client.identity, self.broker.partition(*place)

        def append() -> None:
            batch = memoryview(
                encode(
                    [Record(0, self.clock.ms, bytes(self.random.choice((1, 300))), value)],
                    producer_id=identity.producer_id,
                    producer_epoch=identity.epoch,
                    base_sequence=client.sequences.get(place, 0),
                    attributes=TRANSACTIONAL_BIT,
                )
            )
            partition.append(batch, 0, len(batch), self.clock.ms)
            call.goal = (partition, partition.log.next_offset)

        if client.version == 1:
            self.add_first(client, call, place, lambda: self.admitted(client, call, partition, append))
        else:
            self.admitted(client, call, partition, append)

    def add_first(self, client: Client, call: Call, place: Place, go_on: Callable[[], None]) -> None:
        """A client of version 1 says where it will write."""
        identity = client.identity
        assert identity is not None

        def hear(result: Any) -> None:
            if client.call is not call:
                return
            if isinstance(result, Exception):
                call.give(result)
                return
            try:
                go_on()
            except KafkaError as error:
                call.give(error)

        shard = self.broker.transactions.shard(client.name)
        shard.submit(
            lambda machine, now_ms, ticket: machine.add(client.name, identity, [place], 1, now_ms, ticket)
        ).then(hear)

    def commit_offset(self, client: Client, call: Call) -> None:
        assert client.identity is not None and client.transaction is not None
        identity, transaction = client.identity, client.transaction
        partition = self.broker.partition(OFFSETS_TOPIC, 0)

        def commit() -> None:
            partition.producers.check_epoch(*identity)
            partition.transactions.check(*identity)
            value = OffsetValue(transaction.number, -1, "", self.clock.ms)
            request = CommitRequest(GROUP, "", None, -1, [(PLACES[0], value)], *identity)
            self.broker.groups.shard(GROUP).submit(
                lambda machine, now_ms, ticket: machine.commit(request, now_ms, ticket)
            ).then(call.give)

        if client.version == 1:
            place = (OFFSETS_TOPIC, 0)
            self.add_first(client, call, place, lambda: self.admitted(client, call, partition, commit))
        else:
            self.admitted(client, call, partition, commit)

    def answered(self, client: Client, result: Any) -> None:
        assert client.doing is not None
        kind, argument = client.doing
        self.note(f"{client.name} {client.identity}: {kind} -> {result}")
        if isinstance(result, KafkaError):
            self.refused(client, kind, result)
            return
        if isinstance(result, Exception):
            raise result
        client.doing = None
        transaction = client.transaction
        if kind == "init":
            client.identity, client.transaction = result.client, None
            client.sequences = {}
            return
        assert transaction is not None
        if kind == "write":
            place, value = argument
            transaction.written.setdefault(place, []).append(value)
            transaction.unanswered = None
            client.sequences[place] = client.sequences.get(place, 0) + 1
        elif kind == "offset":
            transaction.offset = True
        else:
            transaction.told = transaction.asked
            client.transaction = None
            if result != client.identity:
                client.identity, client.sequences = result, {}

    def refused(self, client: Client, kind: str, error: KafkaError) -> None:
        if error.code in AGAIN:
            return
        if error.code in GONE:
            client.identity, client.transaction, client.doing = None, None, None
            return
        transaction = client.transaction
        allowed = {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}
        if error.code not in allowed or transaction is None:
            raise Violation(f"{client.name} {client.identity}: {kind} was refused with {error}")
        if kind == "end":
            raise Violation(f"{client.name} asked for {client.doing} of {transaction}: {error}")
        client.identity, client.transaction, client.doing = None, None, None

    # Readers.

    def read(self) -> None:
        """Readers of committed records go on, as Kafka's client reads."""
        for place in PLACES:
            partition = self.broker.partitions[place]
            try:
                if not partition.offline:
                    self.seen[place] += list(self.committed(partition, self.positions[place]))
                    self.positions[place] = max(self.positions[place], partition.last_stable_offset)
            except KafkaError as error:
                if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                    raise Violation(f"{place} cannot be read: {error}") from error

    def committed(self, partition: Partition, start: int) -> Iterator[tuple[int, bytes]]:
        offset, max_bytes = start, self.random.choice((1, 300, 1 << 20))
        while offset < partition.last_stable_offset:
            piece = partition.read(offset, max_bytes, True, committed=True)
            data = memoryview(b"".join(piece.views))
            waiting = sorted(partition.aborted(offset, piece.size), key=lambda aborted: aborted[1])
            aborting: set[int] = set()
            if not data:
                raise Violation(f"nothing at {offset}, below the last stable offset")
            for position, header in iterate_headers(data):
                if header.last_offset >= partition.last_stable_offset:
                    raise Violation(
                        f"{header.last_offset} is served, {partition.last_stable_offset} is stable"
                    )
                while waiting and waiting[0][1] <= header.last_offset:
                    aborting.add(waiting.pop(0)[0])
                batch = data[position : position + header.size]
                if header.is_control:
                    marker = decode_marker(batch)
                    if marker is not None and not marker.committed:
                        aborting.discard(header.producer_id)
                elif header.producer_id not in aborting:
                    yield from (
                        (one.offset, one.value or b"") for one in decode(batch) if one.offset >= offset
                    )
                offset = header.last_offset + 1

    # What must hold.

    def heal(self) -> None:
        """Faults stop; everything that was begun comes to an end."""
        self.disk.crash_at, self.disk.faults = None, Faults()
        self.crash(power_cut=self.fsyncs and self.random.random() < 0.5)
        for _ in range(200):
            self.settle()
            for client in self.clients:
                if client.call is not None and client.call.done:
                    result, client.call = client.call.result, None
                    self.answered(client, result)
                if client.call is None and client.doing is not None:
                    client.call = Call()
                    self.send(client, client.call)
            self.settle()
            if not any(client.doing for client in self.clients):
                break
        else:
            raise Violation(f"no end: {[client.doing for client in self.clients]}")
        for name in sorted({client.name for client in self.clients}):
            self.begin_anew(name)
        self.read()
        self.check()

    def settle(self) -> None:
        """Turns end, the disk syncs, timers ring."""
        while self.broker.tasks.waiting:
            self.broker.tasks.run(0)
        for _ in range(4):
            self.end_turn()
            for partition in self.waiting_for_sync():
                self.to_sync.discard(partition)
                partition.log.flush()
                partition.synced()
        self.clock.ms += 50
        self.broker.ring()
        self.end_turn()

    def begin_anew(self, name: str) -> None:
        """Whatever is open is aborted by a new producer."""
        client = Client(name, 2)
        for _ in range(50):
            call = client.call = Call()
            try:
                self.submit(client, call, lambda new_id: _init(client, new_id))
            except KafkaError as error:
                call.give(error)
            self.settle()
            if call.done and not isinstance(call.result, Exception):
                return
        raise Violation(f"{name} cannot begin: {call.result}")

    def check(self) -> None:
        for place in PLACES:
            partition = self.broker.partitions[place]
            if partition.last_stable_offset != partition.high_watermark:
                raise Violation(f"a transaction hangs in {place}: {partition.producers.open}")
            values = list(self.committed(partition, 0))
            if self.seen[place] != values:
                raise Violation(f"{place} was seen as {self.seen[place]}, but is {values}")
        for transaction in self.transactions:
            self.check_transaction(transaction)
        self.check_offset()
        self.check_journals()

    def check_transaction(self, transaction: Transaction) -> None:
        """All of it is there, once and in order, or nothing."""
        head = b"%d " % transaction.number
        found = {
            place: values
            for place in PLACES
            if (values := [value for _, value in self.seen[place] if value.startswith(head)])
        }
        if not found:
            if transaction.told:
                raise Violation(f"{transaction} was committed, and is not there")
            return
        if transaction.asked is not True or transaction.told is False:
            raise Violation(f"{transaction} is there as {found}, and was never committed")
        if found != transaction.written:
            raise Violation(f"{transaction} is torn: {found}")

    def check_offset(self) -> None:
        """The group's offset is that of the last committed transaction that carried one."""
        there = {int(value.split()[0]) for place in PLACES for _, value in self.seen[place]}
        carried = [one.number for one in self.transactions if one.offset and one.number in there]
        machine = self.broker.groups.shard(GROUP).ready
        found = machine.offsets.get(GROUP, PLACES[0])
        expected = max(carried, default=None)
        if (None if found is None else found.offset) != expected:
            raise Violation(f"the group is at {found}, {expected} was committed last")

    def check_journals(self) -> None:
        """Replaying them gives the state."""
        for shard in self.broker.transactions:
            replayed = TransactionsMachine(shard.ready.limits)
            for entry in shard._journal.replay():
                replayed.replay(entry.key, entry.value, entry.batch)
            if replayed.transactions != shard.ready.transactions:
                raise Violation(f"replayed {replayed.transactions}, but is {shard.ready.transactions}")


def as_it_is(error: ErrorCode) -> ErrorCode:
    return error


def _init(client: Client, new_id: int) -> Any:
    request = InitRequest(client.name, TIMEOUT_MS, new_producer_id=new_id)
    return lambda machine, now_ms, ticket: machine.init(request, now_ms, ticket)


def _end(client: Client, committed: bool, new_id: int) -> Any:
    assert client.identity is not None
    version = 2 if client.version == 2 else 0
    request = EndRequest(client.name, client.identity, committed, version, new_id)
    return lambda machine, now_ms, ticket: machine.end(request, now_ms, ticket)
