"""The simulated world of transactions: the broker's own coordinators, journals and partitions over a simulated disk.

Clients (`tests.sim.transactions.clients`) begin, write, commit offsets, end and ask again. Answers are lost, time
passes, the disk tears writes and fails, the process is killed and the power cut at any call. Readers of committed
records look at any time (`tests.sim.transactions.checks`); when the faults stop, everything that was begun must come
to an end.
"""

from contextlib import closing
from itertools import count

from tests.sim.broker_world import BrokerWorld, image_of
from tests.sim.seeds import Invariant, Violation, replayable
from tests.sim.transactions.checks import TxnChecks
from tests.sim.transactions.clients import Call, Client, Transaction

from levada.broker.coordinator.groups import OFFSETS_TOPIC
from levada.broker.coordinator.transactions import TRANSACTIONS_TOPIC
from levada.errors import KafkaError
from levada.testing.sim_disk import Faults, SimCrash, SimDisk

TOPICS = {"orders": 2, "bills": 1, TRANSACTIONS_TOPIC: 2, OFFSETS_TOPIC: 1}
SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "2"}
ROUNDS_TO_HEAL = 200
FIRST_PRODUCER_ID = 100
ACTIONS = 350


class TxnWorld(BrokerWorld):
    """One broker, its clients and readers."""

    def __init__(self, seed: int, disk_type: type[SimDisk] = SimDisk) -> None:
        super().__init__(seed, disk_type, SETTINGS, image_of(TOPICS))
        version = self.random.choice((1, 2))
        self.clients = [Client(self, name, version) for name in ("alone", "shared", "shared")]
        self.transactions: list[Transaction] = []
        self.producer_ids = count(FIRST_PRODUCER_ID)
        self.checks = TxnChecks(self)
        self.begin([(topic, index) for topic, partitions in TOPICS.items() for index in range(partitions)])

    def new_transaction(self) -> Transaction:
        self.transactions.append(Transaction(len(self.transactions), self.clock.ms))
        return self.transactions[-1]

    # What can happen.

    def run(self, actions: int) -> None:
        for _ in range(actions):
            self.step()
        self.heal()

    def step(self) -> None:
        actions = {
            self.act: 50,
            self.end_iteration: 25,
            self.sync: 30 if self.fsyncs else 3,
            self.checks.read: 6,
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
            self.crash(self.may_cut_power())
        if self.failed:
            self.crash(power_cut=False)

    def act(self) -> None:
        self.random.choice(self.clients).act()

    def end_iteration(self) -> None:
        tasks = self.broker.tasks
        if tasks.waiting and self.random.random() < 0.7:
            tasks.run(self.random.randrange(len(tasks.waiting)))
        super().end_iteration()
        for client in self.clients:
            if client.call is not None:
                client.call.look()

    def crash(self, power_cut: bool) -> None:
        super().crash(power_cut)
        self.checks.check_markers()

    def kill_client(self) -> None:
        client = self.random.choice(self.clients)
        client.forget()
        client.call = None

    def forget_calls(self) -> None:
        """The process is gone, and with it whatever it was about to do; a client may go with it."""
        super().forget_calls()
        for client in self.clients:
            client.call = None
        if self.random.random() < 0.3:
            self.kill_client()

    def wait(self) -> None:
        self.clock.ms += self.random.choice((1, 30, 600, 5_000, 20_000))
        self.disk.now_ms = self.clock.ms
        self.broker.ring()

    # The end.

    def heal(self) -> None:
        """Faults stop; everything that was begun comes to an end."""
        self.disk.crash_at, self.disk.faults = None, Faults()
        self.crash(power_cut=self.fsyncs and self.random.random() < 0.5)
        for _ in range(ROUNDS_TO_HEAL):
            self.settle()
            for client in self.clients:
                if client.call is not None and client.call.done:
                    result, client.call = client.call.result, None
                    client.answered(result)
                if client.call is None and client.doing is not None:
                    client.send()
            self.settle()
            if not any(client.doing for client in self.clients):
                break
        else:
            raise Violation(Invariant.PROGRESS, f"no end: {[client.doing for client in self.clients]}")
        for name in sorted({client.name for client in self.clients}):
            self.begin_anew(name)
        self.checks.read()
        self.checks.check()

    def settle(self) -> None:
        """Turns end, the disk syncs, timers ring."""
        while self.broker.tasks.waiting:
            self.broker.tasks.run(0)
        for _ in range(4):
            self.end_iteration()
            for partition in self.waiting_for_sync():
                self.to_sync.discard(partition)
                partition.log.flush()
                partition.synced()
        self.clock.ms += 50
        self.broker.ring()
        self.end_iteration()

    def begin_anew(self, name: str) -> None:
        """Whatever is open is aborted by a new producer."""
        client = Client(self, name, 2)
        for _ in range(50):
            call = client.call = Call()
            try:
                client.begin(call)
            except KafkaError as error:
                call.give(error)
            self.settle()
            if call.done and not isinstance(call.result, Exception):
                return
        raise Violation(Invariant.PROGRESS, f"{name} cannot begin: {call.result}")


def simulate(seed: int, disk_type: type[SimDisk] = SimDisk, actions: int = ACTIONS) -> TxnWorld:
    """Run one seed; a failure says how to replay it."""
    world = TxnWorld(seed, disk_type)
    with closing(world), replayable(world, seed, "transactions/test_transactions.py"):
        world.run(actions)
    return world
