"""The clock, which tests and the simulator replace."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time for timestamps, monotonic time for durations."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, as in record timestamps."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never decrease."""
        ...


class SystemClock:
    """The clock of the operating system."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # without a Python call: each loop iteration reads it
