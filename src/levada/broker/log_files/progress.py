"""Logs the progress of operations that may take long: opening and closing thousands of logs."""

from typing import Final

from levada.clock import Clock
from levada.logs import EventLog

log = EventLog(__name__)

INTERVAL_S: Final = 3.0


class Progress:
    """Logs how far an operation is, every few seconds."""

    def __init__(self, what: str, total: int, clock: Clock) -> None:
        self._what = what
        self._total = total
        self._monotonic = clock.monotonic
        self._done = 0
        self._began = self._logged = clock.monotonic()

    @property
    def seconds(self) -> float:
        """The time since the operation began."""
        return round(self._monotonic() - self._began, 3)

    def advance(self, count: int) -> None:
        """Add to what is done; log a line if the last one is long ago."""
        self._done += count
        now = self._monotonic()
        if now - self._logged >= INTERVAL_S:
            self._logged = now
            log.info(self._what, done=self._done, total=self._total, seconds=self.seconds)
