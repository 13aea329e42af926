"""Confluent's clients beside ours."""

from collections.abc import Iterator

import pytest
from tests.spark.support.confluent import Confluent

from levada.testing import EmbeddedBroker


@pytest.fixture
def confluent(registry: str, broker: EmbeddedBroker) -> Iterator[Confluent]:
    own = Confluent(registry, broker)
    with own.client:
        yield own
