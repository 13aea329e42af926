"""A real broker for tests: inside the test process, on a free port, in a directory of its own.

    with levada.testing.broker() as broker:
        confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

Under pytest the `levada` fixture does this once per process; see `levada.testing.plugin`. The names below load on first
use, since pytest imports this package in every run, also in those that need no broker.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from levada.testing.embedded import EmbeddedBroker, broker

__all__ = ["EmbeddedBroker", "broker"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from levada.testing import embedded

    return getattr(embedded, name)
