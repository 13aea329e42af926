"""The pytest plugin: the fixture `levada`, an embedded broker.

One broker serves a whole pytest process, since starting it costs more than a test. Topics and groups that a test adds,
itself or through clients of the code under test, are deleted after it, and injected faults end with it. Under
pytest-xdist each worker process has its own broker on its own free port and directory, so workers share nothing.
Nothing of Levada is imported before the first test requests the fixture.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from levada.testing.embedded import EmbeddedBroker


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
