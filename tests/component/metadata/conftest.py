"""The places where stores of the conformance suite meet: a SQLite file, and a chroot of a ZooKeeper server."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.support.downloads import Unavailable, must_be_had
from tests.support.zookeeper import ZooKeeperServer, zookeeper


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    try:
        with zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
            yield server
    except Unavailable as error:
        must_be_had("ZooKeeper", error)


@pytest.fixture(params=["sqlite", "zookeeper"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a new store."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/metadata.db"
    server: ZooKeeperServer = request.getfixturevalue("server")
    return f"zookeeper:{server.connect}/{uuid4().hex}"
