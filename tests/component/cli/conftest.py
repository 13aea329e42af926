"""A shell for the commands of these tests."""

from collections.abc import Iterator

import pytest
from tests.support.broker import BrokerThread
from tests.support.shell import Shell


@pytest.fixture
def shell(broker: BrokerThread) -> Iterator[Shell]:
    """`levada` against the module's broker; its topics end with the test."""
    shell = Shell(broker.bootstrap)
    yield shell
    for name in shell("topic", "list", "-q").out.split():
        shell("topic", "delete", "--yes", name)
