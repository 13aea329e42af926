"""Background tasks: each has a name and an owner, and a crash is logged."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from levada.logs import EventLog

log = EventLog(__name__)


class Tasks:
    """The running tasks of one broker."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` until it ends; an exception is logged with its trace."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def every(self, name: str, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` repeatedly with a pause between; a failure is logged and does not end the series."""

        async def series() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    await work()
                except Exception as error:
                    log.error("background task failed", task=name, exc_info=error)

        self.start(name, series())

    async def stop(self) -> None:
        """Cancel everything and wait for it."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task crashed", task=task.get_name(), exc_info=error)
