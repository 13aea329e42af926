"""Brokers that are away: asked again until they are back, for as long as it makes sense.

A broker that restarts, a leader that moves and a coordinator that reads its journal are back in seconds, and a query
that waits for them need not be started again. Servers that have never answered and take no connection are rather a
mistake in an option, and whoever made it wants to know soon; one that takes connections is more likely a broker that
stands still for a moment, on a machine that does.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakSet

from levada.client.client import MOVED
from levada.client.connection import ConnectionFailed, NoAnswer, RequestTimedOut
from levada.client.consumer.coordinator import NOT_YET
from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.client.client import Client

T = TypeVar("T")
Failure = ConnectionFailed | RequestTimedOut | KafkaError

FAILURES = (ConnectionFailed, RequestTimedOut, KafkaError)
GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
PASSING = (
    (MOVED - GONE)
    | NOT_YET
    | {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
BACKOFF_S_MAX = 1.0

_known: "WeakSet[Client]" = WeakSet()  # those whose servers were there, ever


class Unreachable(ConnectionError):  # noqa: N818
    """No broker answers; says which, and how long they were asked."""


class Patience(NamedTuple):
    """How long brokers may be away."""

    known_ms: int  # those that have answered this process before, or taken connections
    unknown_ms: int


async def patiently(client: "Client", ask: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """Ask, and again while brokers are away: so only what may be asked twice.

    Raises Unreachable if they stay away, and a KafkaError that does not pass at once.
    """
    loop = asyncio.get_running_loop()
    asked_at = loop.time()
    pause_s = client.retry_backoff_s
    while True:
        try:
            answer = await ask()
            _known.add(client)
            return answer
        except FAILURES as failure:
            if isinstance(failure, KafkaError | NoAnswer):
                _known.add(client)
            waited_s = loop.time() - asked_at
            if not is_passing(failure) or client.closed:
                raise
            left_s = (patience.known_ms if client in _known else patience.unknown_ms) / 1000 - waited_s
            if left_s <= 0:
                raise given_up(client, failure, waited_s) from None
        await asyncio.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 2, BACKOFF_S_MAX)


async def reach(client: "Client", patience: Patience) -> None:
    """Have servers answer that never have, before anything is asked that waits for its own reasons."""
    if client not in _known:
        await patiently(client, lambda: client.metadata(()), patience)


def is_passing(failure: Failure) -> bool:
    """Whether it may be over in a moment."""
    return not isinstance(failure, KafkaError) or failure.code in PASSING


def given_up(client: "Client", failure: Failure, waited_s: float) -> Unreachable | KafkaError:
    """What to raise when brokers stay away: who they are, how long they were waited for, and what was last heard."""
    if isinstance(failure, KafkaError):
        return KafkaError(failure.code, f"{failure.detail}; for {waited_s:.0f} s now".removeprefix("; "))
    servers = ",".join(map(str, client.bootstrap))
    return Unreachable(
        f"no answer from the brokers at {servers} (option kafka.bootstrap.servers) for {waited_s:.0f} s: {failure}"
    )
