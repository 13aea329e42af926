"""Controllers of several brokers on one store: registration, the controller's lease, duties, large commands."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from tests.support.stores import TIMEOUT_S, on_a_loop, open_place

from levada.broker.cluster.controller_duties import Settings
from levada.broker.controller import Controller, new_topic_id
from levada.core.cluster.changes import BrokerImage, ControllerEpochChanged
from levada.core.cluster.controller import CreatePartitions, CreateTopic, DeleteTopic
from levada.core.cluster.duties import DutySettings
from levada.core.cluster.image import ClusterImage, PartitionImage
from levada.core.cluster.isr import AlterPartition
from levada.core.cluster.registration import UnregisterBroker
from levada.errors import ErrorCode, KafkaError
from levada.metadata.store import Lease, MetadataStore, StoreError, Write

FEW_BYTES = 20_000  # of a commit: some dozens of partitions


class Node:
    """A broker without logs."""

    def __init__(self, place: str, node_id: int, **settings: Any) -> None:
        self.id = node_id
        self.store = open_place(place)
        self.images: list[ClusterImage] = []
        self.epochs: list[int | None] = []
        chosen = Settings(DutySettings(**settings), 0.2 if settings else None)
        self.controller = Controller(self.store, self._on_image, _applied, lambda: chosen, self.epochs.append)
        self._changed = asyncio.Event()

    def _on_image(self, image: ClusterImage) -> None:
        self.images.append(image)
        self._changed.set()

    @property
    def image(self) -> ClusterImage:
        return self.controller.image

    async def start(self, **more: Any) -> "Node":
        await self.controller.start(BrokerImage(self.id, ()), **more)
        await self.controller.recovered()
        return self

    async def until(self, holds: Callable[[ClusterImage], object]) -> ClusterImage:
        async with asyncio.timeout(TIMEOUT_S):
            while not holds(self.image):
                self._changed.clear()
                await self._changed.wait()
        return self.image

    async def create(self, name: str, partitions: int = 1, factor: int = 1) -> UUID:
        command = CreateTopic(name, new_topic_id(), partitions, factor)
        await self.controller.submit(command)
        return command.id


async def _applied(topics: object) -> None:
    """No logs are opened here."""


@asynccontextmanager
async def nodes(place: str, count: int, **settings: Any) -> AsyncIterator[list[Node]]:
    """Brokers 1, 2, ... of one cluster."""
    opened: list[Node] = []
    try:
        for number in range(1, count + 1):
            opened.append(Node(place, number, **settings))
            await opened[-1].start()
        for one in opened:
            await one.until(lambda image: len(image.brokers) == count)
        yield opened
    finally:
        for one in opened:
            await one.controller.stop()


def partition(image: ClusterImage, topic: str = "a", index: int = 0) -> PartitionImage:
    return image.topics[topic].partitions[index]


@on_a_loop
async def test_the_first_broker_is_the_controller_until_it_stops(place: str) -> None:
    async with nodes(place, 3) as [one, two, three]:
        assert {node.image.controller_id for node in (one, two, three)} == {1}
        epoch = one.image.controller_epoch
        await one.controller.stop()
        image = await two.until(lambda image: image.controller_id in (2, 3))
        image = await two.until(lambda image: image.controller_epoch > epoch)
        assert 1 not in image.brokers and 1 in image.registered


@on_a_loop
async def test_leaders_move_when_their_broker_stops(place: str) -> None:
    """The broker that stops is the controller, too."""
    async with nodes(place, 3) as [one, two, three]:
        await two.create("a", 30, 3)
        former = two.image.topics["a"].partitions
        assert {state.leader for state in former} == {1, 2, 3}
        await one.controller.stop()
        image = await three.until(lambda image: all(state.leader in (2, 3) for state in image.topics["a"].partitions))
        for before, after in zip(former, image.topics["a"].partitions, strict=True):
            assert 1 not in after.isr and after.leader in after.isr
            assert after.leader_epoch == before.leader_epoch + (before.leader == 1)


@on_a_loop
async def test_a_broker_that_returns_has_a_greater_epoch_and_is_not_in_sync(place: str) -> None:
    async with nodes(place, 2) as [one, two]:
        await one.create("a", 1, 2)
        former = two.controller.broker_epoch
        await two.controller.stop()
        await one.until(lambda image: partition(image).isr == (1,))
        again = await Node(place, 2).start()
        assert again.controller.broker_epoch is not None and former is not None
        assert again.controller.broker_epoch > former
        await one.until(lambda image: 2 in image.brokers)
        assert partition(one.image).isr == (1,)
        await again.controller.stop()


@on_a_loop
async def test_the_only_broker_leads_again_when_its_start_returns(place: str) -> None:
    """A broker opens its logs next, in the epochs of the image."""
    async with nodes(place, 1) as [one]:
        await one.create("a", 3)
    again = Node(place, 1)
    await again.controller.start(BrokerImage(1, ()))
    states = again.image.topics["a"].partitions
    assert {(state.leader, state.leader_epoch, state.isr) for state in states} == {(1, 1, (1,))}
    assert {state.leader_broker_epoch for state in states} == {again.controller.broker_epoch}
    recovering = [again.image.brokers[1].recovering]
    await again.controller.recovered()
    assert [*recovering, again.image.brokers[1].recovering] == [True, False]
    await again.controller.stop()


@on_a_loop
async def test_a_leader_changes_its_isr(place: str) -> None:
    async with nodes(place, 2) as [one, two]:
        topic_id = await one.create("a", 1, 2)
        leader, follower = (one, two) if partition(one.image).leader == 1 else (two, one)
        await leader.until(lambda image: "a" in image.topics)
        epoch, state = leader.controller.broker_epoch, partition(leader.image)
        assert epoch is not None

        def request(partition_epoch: int, *members: Node) -> AlterPartition:
            isr = {node.id: leader.image.brokers[node.id].epoch for node in members}
            return AlterPartition(leader.id, epoch, topic_id, 0, state.leader_epoch, partition_epoch, isr)

        errors = await leader.controller.alter_partitions([request(state.partition_epoch, leader)])
        assert errors == [None] and partition(leader.image).isr == (leader.id,)
        await follower.until(lambda image: partition(image).isr == (leader.id,))
        both = state.partition_epoch + 1
        first, second = await leader.controller.alter_partitions(
            [request(both, leader, follower), request(state.partition_epoch, leader)]
        )
        assert first is None
        assert second is not None and second.code is ErrorCode.INVALID_UPDATE_VERSION
        assert sorted(partition(leader.image).isr) == [1, 2]


@on_a_loop
async def test_two_brokers_that_change_the_same_at_once_both_succeed(place: str) -> None:
    async with nodes(place, 2) as [one, two]:
        names = [f"topic-{number}" for number in range(10)]
        results = await asyncio.gather(
            *[node.create(name) for node in (one, two) for name in names], return_exceptions=True
        )
        codes = [error.code for error in results if isinstance(error, KafkaError)]
        assert codes == [ErrorCode.TOPIC_ALREADY_EXISTS] * 10
        assert len([one for one in results if isinstance(one, UUID)]) == 10


@on_a_loop
async def test_controlled_shutdown_moves_leaders_first(place: str) -> None:
    async with nodes(place, 2) as [one, two]:
        await one.create("a", 4, 2)
        await two.until(lambda image: "a" in image.topics)
        await one.controller.shut_down()
        assert {(state.leader, state.isr) for state in one.image.topics["a"].partitions} == {(2, (2,))}
        assert one.image.brokers[1].shutting_down


@on_a_loop
async def test_a_broker_that_has_stopped_can_be_unregistered(place: str) -> None:
    async with nodes(place, 2) as [one, two]:
        with pytest.raises(KafkaError, match="Broker 2 is running; stop it first"):
            await one.controller.submit(UnregisterBroker(2))
        epoch = two.controller.broker_epoch or 0
        await two.controller.stop()
        await one.until(lambda image: 2 not in image.leases)
        await one.controller.submit(UnregisterBroker(2))
        assert list(one.image.registered) == [1]
        with pytest.raises(KafkaError, match="Broker ID 2 is not currently registered"):
            await one.controller.submit(UnregisterBroker(2))
        again = await Node(place, 2).start()
        assert (again.controller.broker_epoch or 0) > epoch
        await again.controller.stop()


class Intercepted:
    """A store with smaller commits, which calls a function before each."""

    def __init__(self, store: MetadataStore, commit_bytes_max: int) -> None:
        self._store = store
        self._commit = store.commit
        self.commit_bytes_max = commit_bytes_max
        self.commits: list[Sequence[Write]] = []
        self.before: Callable[[int], Any] | None = None  # with the number of the commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, writes: Sequence[Write], lease: Lease | None = None) -> int:
        self.commits.append(writes)
        if self.before is not None:
            await self.before(len(self.commits))
        return await self._commit(writes, lease)


def intercept(node: Node, commit_bytes_max: int = FEW_BYTES) -> Intercepted:
    found = Intercepted(node.store, commit_bytes_max)
    node.controller._commits._store = found
    return found


@on_a_loop
async def test_a_large_topic_takes_several_commits_and_exists_after_the_last(place: str) -> None:
    async with nodes(place, 2) as [one, two]:
        intercepted = intercept(two)
        await two.create("a", 200, 2)
        assert len(intercepted.commits) > 3
        await one.until(lambda image: "a" in image.topics)
        for image in one.images + two.images:
            assert len(image.topics["a"].partitions) == 200 if "a" in image.topics else True
        assert one.image.topics["a"] == two.image.topics["a"]
        assert one.image.detached == {}
        await two.controller.submit(CreatePartitions("a", 400))
        assert {len(image.topics["a"].partitions) for image in two.images if "a" in image.topics} == {200, 400}
        assert two.image.topics["a"].creation is None


@on_a_loop
async def test_many_topics_in_one_request_take_several_commits(place: str) -> None:
    async with nodes(place, 1) as [one]:
        intercepted = intercept(one)
        commands = [CreateTopic(name, new_topic_id(), 3) for name in (*map("t{}".format, range(100)), "t7", "a/b")]
        decision = await one.controller.submit_all(commands)
        assert len(intercepted.commits) > 3
        codes = [error and error.code for error in decision.errors]
        assert codes == [None] * 100 + [ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_TOPIC_EXCEPTION]
        assert len(decision.image.topics) == len(one.image.topics) == 100


@on_a_loop
async def test_what_a_broker_has_created_in_part_is_removed_when_it_stops(place: str) -> None:
    async with nodes(place, 2) as [one, two]:
        intercepted = intercept(two)

        async def die(number: int) -> None:
            if number == 3:
                await two.controller._registration.stop()
                await two.store.close()

        intercepted.before = die
        creation = asyncio.create_task(two.create("a", 200, 2))
        await one.until(lambda image: "a" in image.detached)
        await one.until(lambda image: "a" not in image.detached and 2 not in image.brokers)
        assert one.image.topics == {}
        creation.cancel()
        await asyncio.wait((creation,))
        await one.create("a", 2)


@on_a_loop
async def test_what_a_broker_could_not_complete_it_removes(place: str) -> None:
    async with nodes(place, 1) as [one]:
        intercepted = intercept(one)

        async def fail(number: int) -> None:
            if number == 3:
                raise StoreError("unreachable")

        intercepted.before = fail
        with pytest.raises(KafkaError, match="unreachable"):
            await one.create("a", 200)
        assert one.image.detached["a"].record is not None
        await one.create("b")
        await one.until(lambda image: not image.detached)
        assert list(one.image.topics) == ["b"]
        await one.create("a", 200)


@on_a_loop
async def test_the_records_of_a_deleted_topic_are_removed(place: str) -> None:
    async with nodes(place, 1) as [one]:
        for _ in range(3):
            await one.create("a", 50)
            await one.controller.submit(DeleteTopic("a"))
        await one.until(lambda image: not image.detached)
        assert not [key for key in one.controller._updates._versions if key.startswith("/brokers/topics/")]


@on_a_loop
async def test_a_controller_with_a_successor_commits_nothing(place: str) -> None:
    """Its lease may have ended without its knowledge: each commit checks the controller epoch."""
    async with nodes(place, 2) as [one, two]:
        await one.create("a", 8, 2)
        await two.until(lambda image: "a" in image.topics)
        intercepted = intercept(one)

        async def succeed(number: int) -> None:
            intercepted.before = None
            commits, registration = two.controller._commits, two.controller._registration
            epoch = two.image.controller_epoch + 1
            assert await commits.commit(commits.writes([ControllerEpochChanged(epoch)]), registration.lease())

        former = one.image.topics["a"]
        intercepted.before = succeed
        third = await Node(place, 3).start()
        await two.controller.stop()
        await one.until(lambda image: 2 not in image.brokers)
        await third.until(lambda image: 2 not in image.brokers)
        assert one.image.topics["a"] is former
        await third.controller.stop()


@on_a_loop
async def test_preferred_leaders_return_by_themselves(place: str) -> None:
    async with nodes(place, 2, leader_imbalance_percentage=10) as [one, two]:
        topic_id = await one.create("a", 2, 2)
        index = next(index for index in (0, 1) if partition(one.image, index=index).leader == 2)
        await two.controller.stop()
        await one.until(lambda image: partition(image, index=index).leader == 1)
        again = await Node(place, 2, leader_imbalance_percentage=10).start()
        image = await one.until(lambda image: 2 in image.brokers)
        epoch, state = one.controller.broker_epoch, partition(image, index=index)
        assert epoch is not None
        isr = {1: epoch, 2: image.brokers[2].epoch}
        request = AlterPartition(1, epoch, topic_id, index, state.leader_epoch, state.partition_epoch, isr)
        assert await one.controller.alter_partitions([request]) == [None]
        await one.until(lambda image: partition(image, index=index).leader == 2)
        await again.controller.stop()


@on_a_loop
async def test_a_lost_session_is_followed_by_a_registration_in_a_new_epoch(place: str) -> None:
    async with nodes(place, 1) as [one]:
        await one.create("a")
        former = one.controller.broker_epoch
        registration = one.controller._registration
        lease = registration.lease()
        await one.store.release(lease)
        registration._lost()  # as the store calls it
        with pytest.raises(KafkaError, match="not registered"):
            await one.create("b")
        await one.until(lambda image: 1 in image.brokers and image.brokers[1].epoch != former)
        await one.until(lambda image: partition(image).leader_broker_epoch == image.brokers[1].epoch)
        assert partition(one.image).leader_epoch == 1
        await one.create("b")
        assert one.epochs == [former, None, one.controller.broker_epoch]
