"""One broker for all attacks; it must be healthy after each of them."""

import uuid
from collections.abc import Iterator

import pytest
from tests.badinput.broker import Broker, Offender


@pytest.fixture(scope="session")
def session_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, uuid.UUID]]:
    with Broker(tmp_path_factory.mktemp("badinput")) as broker:
        yield broker, broker.prepare()


@pytest.fixture
def broker(session_broker: tuple[Broker, uuid.UUID]) -> Iterator[Broker]:
    broker, _ = session_broker
    yield broker
    broker.check_memory()
    broker.check_health()


@pytest.fixture
def topic_id(session_broker: tuple[Broker, uuid.UUID]) -> uuid.UUID:
    return session_broker[1]


@pytest.fixture
def offender(broker: Broker) -> Iterator[Offender]:
    offender = Offender(broker)
    yield offender
    offender.close()
