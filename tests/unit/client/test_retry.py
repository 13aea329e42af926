"""The retry policy: what is retried, after which pause, and until when."""

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from levada.client.errors import BrokerNotResponding, ConnectionFailed, Failure
from levada.client.retry import COORDINATOR_RETRIABLE, TRANSACTION_END_S, Retries, RetryPolicy, retry
from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.client.client import Client

LOST = ConnectionFailed("lost")
LOADING = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "")
ENDING = KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "")
FINAL = KafkaError(ErrorCode.INVALID_TXN_STATE, "")


def client(backoff_s: float = 0.1) -> "Client":
    return cast("Client", SimpleNamespace(retry_backoff_s=backoff_s, closed=False, has_responded=False))


def test_the_backoff_doubles_up_to_a_second() -> None:
    retries = Retries(client(), RetryPolicy(COORDINATOR_RETRIABLE, 60_000))
    assert [retries.pause_s(LOST, 10.0) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    retries.reset()
    assert retries.pause_s(LOADING, 100.0) == 0.1


def test_a_transaction_that_ends_is_retried_at_once() -> None:
    retries = Retries(client(), RetryPolicy(COORDINATOR_RETRIABLE, 60_000))
    assert [retries.pause_s(ENDING, 0.0) for _ in range(3)] == [TRANSACTION_END_S] * 3


def test_retries_end_at_the_deadline_and_at_other_errors() -> None:
    retries = Retries(client(), RetryPolicy(COORDINATOR_RETRIABLE, 1_000))
    assert retries.pause_s(FINAL, 0.0) is None
    assert retries.pause_s(LOST, 0.0) == 0.1
    assert retries.pause_s(LOST, 0.9375) == 0.0625  # no longer than what is left
    assert retries.pause_s(LOST, 1.0) is None


@pytest.mark.parametrize(
    ("failure", "attempts"),
    [(LOST, 1), (BrokerNotResponding("suspended"), 3), (LOADING, 3)],
    ids=["unreachable", "not responding", "responding"],
)
def test_brokers_that_never_responded_have_a_timeout_of_their_own(failure: Failure, attempts: int) -> None:
    made: list[int] = []

    async def attempt() -> str:
        made.append(1)
        if len(made) < 3:
            raise failure
        return "done"

    async def main() -> str:
        return await retry(client(0.001), attempt, RetryPolicy(COORDINATOR_RETRIABLE, 60_000, 0))

    if attempts == 3:
        assert asyncio.run(main()) == "done"
    else:
        with pytest.raises(type(failure)):
            asyncio.run(main())
    assert len(made) == attempts
