"""One broker for all compatibility tests, and every client that can be installed on this machine.

`COMPAT_BOOTSTRAP=host:port` points the same tests at another broker: they were written against Apache Kafka.
`COMPAT_REQUIRE_ALL=1` turns the skip of a client that cannot be installed into a failure.
"""

import gc
import os
import uuid
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.compat.drivers.base import Create, Driver
from tests.compat.drivers.registry import DRIVERS, drivers_with
from tests.compat.features import CHOSEN, record
from tests.support import raw
from tests.support.broker import BrokerProcess
from tests.support.downloads import Unavailable, must_be_had

from levada.testing.embedded import settings_by_kafkas_names

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*operations): runs with each client that has these operations")
    config.addinivalue_line("markers", "shows(*features, clients): proves a row of the matrix")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Clients leave sockets open when a broker goes away (kafka-python does); that is not for us to judge.

    The matrix comes last, since it tells of the others.
    """
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
    items.sort(key=lambda item: item.path.name == "test_matrix.py")


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items[:1]:
        item.config.stash[CHOSEN] = True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    record(item, report)
    return report


def pytest_sessionfinish() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for _ in range(5):  # each round can free what the one before held
            gc.collect()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a `client` runs once for each client that has what the test needs."""
    if "client" in metafunc.fixturenames:
        marks = metafunc.definition.iter_markers("needs")
        needed = tuple(operation for mark in marks for operation in mark.args)
        chosen = drivers_with(needed)
        metafunc.parametrize("client", chosen, ids=[driver.name for driver in chosen], indirect=True, scope="session")


@pytest.fixture(scope="session")
def session_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the broker that most tests share."""
    other = os.environ.get("COMPAT_BOOTSTRAP")
    if other:
        yield other
        return
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as server:
        yield server.bootstrap


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for a module, with the settings of its mark `broker`."""
    settings = settings_by_kafkas_names(request.node.get_closest_marker("broker").kwargs)
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings) as own:
        yield own


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest) -> str:
    """The address of the broker under test: the module's, if it has a mark `broker`, else the shared one."""
    if "COMPAT_BOOTSTRAP" not in os.environ and request.node.get_closest_marker("broker"):
        return str(request.getfixturevalue("server").bootstrap)
    return str(request.getfixturevalue("session_broker"))


@pytest.fixture(scope="session")
def connect(session_broker: str) -> Iterator[Callable[[type[Driver]], Driver]]:
    """Gives the one living driver of a client; installs and starts it the first time."""
    living: dict[str, Driver] = {}
    missing: dict[str, Unavailable] = {}

    def get(wanted: type[Driver]) -> Driver:
        if wanted.name not in living and wanted.name not in missing:
            try:
                living[wanted.name] = wanted(session_broker)
            except Unavailable as error:
                missing[wanted.name] = error
        if wanted.name in missing:
            must_be_had(wanted.name, missing[wanted.name])
        return living[wanted.name]

    yield get
    for driver in living.values():
        driver.close()


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest, connect: Callable[[type[Driver]], Driver]) -> Driver:
    """The client that the test is about."""
    return connect(request.param)


@pytest.fixture(scope="session")
def reference(connect: Callable[[type[Driver]], Driver]) -> Driver:
    """A client for what the test is not about: preparing topics, reading back."""
    return connect(DRIVERS[0])


@pytest.fixture
def name() -> str:
    """A topic name that nobody else uses."""
    return f"compat-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def create(broker: str, reference: Driver) -> Create:
    """Makes a topic and waits until its partitions answer; Kafka replies before they do."""

    def make(topic: str, partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        reference.create_topic(topic, partitions, configs=configs)
        with raw.Connection(broker) as wire:
            for partition in range(partitions):
                raw.wait_until_served(wire, topic, partition)
        return topic

    return make


@pytest.fixture
def topic(name: str, create: Create) -> str:
    """An empty topic of one partition."""
    return create(name)


@pytest.fixture
def wire(broker: str) -> Iterator[raw.Connection]:
    """A connection without a client."""
    with raw.Connection(broker) as connection:
        yield connection


@pytest.fixture
def ask(wire: raw.Connection) -> Callable[..., Any]:
    """Calls an API with those of the given fields that the version has."""

    def call(api: str, version: int, **fields: Any) -> Any:
        return wire.call(api, version, raw.fitting(api, version, fields))

    return call
