"""The only reader of time, so that tests and the simulator can own it."""

import time
from typing import Protocol


class Clock(Protocol):
    """What tells the time: the wall for timestamps, a monotonic second hand for durations."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, as records carry them."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


class SystemClock:
    """The clock of this machine."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
