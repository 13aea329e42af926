"""The pytest plugin: the fixture `levada`, an embedded broker.

One broker serves a whole pytest process, since starting it costs more than a test. Topics and groups that a test adds,
itself or through clients of the code under test, are deleted after it, and injected faults end with it. Under
pytest-xdist each worker process has its own broker on its own free port and directory, so workers share nothing.
Nothing of Levada is imported before the first test requests the fixture.

pytest rewrites the assert statements of every package that registers a plugin, and compiles its modules again for
that, in each run where bytecode is not written. Levada's modules are found ahead of pytest's import hook instead.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from levada.testing.embedded import EmbeddedBroker


class CompiledModules(MetaPathFinder):
    """Finds Levada's modules as Python does without pytest."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec, None for modules of other packages."""
        return PathFinder.find_spec(fullname, path, target) if fullname.startswith("levada.") else None


sys.meta_path.insert(0, CompiledModules())


@pytest.fixture(scope="session")
def levada_settings() -> Mapping[str, str]:
    """The broker's settings by Kafka's names; override this fixture to change them."""
    return {}


@pytest.fixture(scope="session")
def levada_broker(levada_settings: Mapping[str, str]) -> Iterator["EmbeddedBroker"]:
    """The broker of this pytest process."""
    from levada.testing.embedded import EmbeddedBroker

    with EmbeddedBroker(levada_settings) as broker:
        yield broker


@pytest.fixture
def levada(levada_broker: "EmbeddedBroker") -> Iterator["EmbeddedBroker"]:
    """The broker, without faults; topics and groups that the test adds are deleted after it."""
    with levada_broker.cleanup():
        yield levada_broker
