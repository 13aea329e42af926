"""What becomes of clients that wait for memory to receive requests into.

They are woken as others end their requests. Somebody who began one and does not come to its end must not keep the
memory from them: who is given the time for it and does not use it is cut off.
"""

import asyncio

from levada.net.buffer_pool import ReceiveMemory

FRAME_SECONDS_MAX = 10.0  # for a request to come whole, while others wait for the memory that it has
LOOK_SECONDS = 1.0  # between two looks at who has it


class Relief:
    """Looks after those that wait, as long as there are any."""

    __slots__ = ("_loop", "_memory", "_timer")

    def __init__(self, memory: ReceiveMemory, loop: asyncio.AbstractEventLoop) -> None:
        self._memory = memory
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def look_later(self) -> None:
        """Somebody waits."""
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        memory = self._memory
        if memory.cramped or memory.waiting:
            for owner in memory.begun_before(self._loop.time() - FRAME_SECONDS_MAX):
                owner.close("a request took too long to come, while memory for requests was short")
            memory.wake(len(memory.cramped) + len(memory.waiting))
            self.look_later()
