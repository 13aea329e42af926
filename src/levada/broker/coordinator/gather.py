"""Combines the results of several coordinator shards into one, for requests that name several keys."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from levada.broker.purgatory import DelayedResult


def gather(results: Sequence[DelayedResult], convert: Callable[[list[Any]], Any]) -> DelayedResult:
    """One result from many, in their order; one that failed is its exception."""
    gathered = DelayedResult(convert)
    values: list[Any] = [None] * len(results)
    missing = len(results)

    def take(position: int, value: Any) -> None:
        nonlocal missing
        values[position] = value
        missing -= 1
        if not missing:
            gathered.complete(values)

    for position, result in enumerate(results):
        result.add_done_callback(partial(take, position))
    if not results:
        gathered.complete(values)
    return gathered
