"""One broker for all attacks; after each of them it must be well."""

import uuid
from collections.abc import Iterator

import pytest
from tests.badinput.broker import Broker, Offender, running


@pytest.fixture(scope="session")
def _running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, uuid.UUID]]:
    with running(tmp_path_factory.mktemp("badinput")) as broker:
        yield broker, broker.prepare()


@pytest.fixture
def broker(_running: tuple[Broker, uuid.UUID]) -> Iterator[Broker]:
    yield _running[0]
    _running[0].check_memory()
    _running[0].check_health()


@pytest.fixture
def topic_id(_running: tuple[Broker, uuid.UUID]) -> uuid.UUID:
    return _running[1]


@pytest.fixture
def offender(broker: Broker) -> Iterator[Offender]:
    offender = Offender(broker)
    yield offender
    offender.close()
