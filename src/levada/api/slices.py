"""Handles requests that name thousands of topics or partitions in slices, one slice per loop iteration."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from levada.broker.broker import Broker

Item = TypeVar("Item")
Result = TypeVar("Result")


async def map_in_slices(
    broker: Broker, function: Callable[[Item], Result], items: Sequence[Item], per_iteration: int
) -> list[Result]:
    """The results of a function for each item; between slices other requests are handled.

    One such request at a time takes slices, so that several of them do not share a loop iteration.
    """
    results: list[Result] = []
    async with broker.large_requests:
        for item in items:
            if len(results) % per_iteration == 0:
                await asyncio.sleep(0)
            results.append(function(item))
    return results
