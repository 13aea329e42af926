"""A shell for the commands of these tests, and a data directory for `levada log`."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker import BrokerThread
from tests.support.log_check import make_data
from tests.support.shell import Shell


@pytest.fixture
def shell(broker: BrokerThread) -> Iterator[Shell]:
    """`levada` against the module's broker; its topics end with the test."""
    shell = Shell(broker.bootstrap)
    yield shell
    for name in shell("topic", "list", "-q").out.split():
        shell("topic", "delete", "--yes", name)


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that has stopped; tests change copies of it."""
    return make_data(tmp_path_factory.mktemp("log") / "data")


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    """A copy of `original`."""
    return Path(shutil.copytree(original, tmp_path / "data"))
