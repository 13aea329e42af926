"""Runs a coroutine with the public client of a broker."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from levada import Client
from levada.testing import EmbeddedBroker

TIMEOUT_S = 60


def run(
    broker: EmbeddedBroker,
    work: Callable[[Client], Awaitable[None]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    **options: Any,
) -> None:
    async def connected() -> None:
        async with asyncio.timeout(TIMEOUT_S), Client(broker.bootstrap, **options) as client:
            await work(client)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(connected())


class NoLog:
    """A logger for librdkafka, which reports every lost connection."""

    def log(self, *_: object) -> None:
        pass
