"""Fixtures of the tests of groups: programs with members, and names of groups and topics."""

import uuid
from collections.abc import Iterator

import pytest
from tests.compat.groups.members import Start, make_topic
from tests.compat.members.base import Members
from tests.support.downloads import Unavailable, must_be_had
from tests.support.raw import Connection


@pytest.fixture
def kind() -> type[Members] | None:
    """The client of the test, where it is parametrized by that."""
    return None


@pytest.fixture
def start(broker: str, kind: type[Members] | None) -> Iterator[Start]:
    """Starts a program with members, as often as it is called; of the test's `kind` unless another is given."""
    programs: list[Members] = []

    def begin(chosen: type[Members] | None = kind) -> Members:
        assert chosen
        try:
            programs.append(chosen(broker))
        except Unavailable as missing:
            must_be_had(chosen.name, missing)
        return programs[-1]

    yield begin
    for program in programs:
        program.close()


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(wire: Connection, name: str) -> str:
    """A topic with partitions for all members."""
    return make_topic(wire, name)
