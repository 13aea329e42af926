"""Waits for conditions that other threads and processes bring about."""

import time
from collections.abc import Callable

TIMEOUT_S = 60.0  # a busy machine is slow; passing it is a failure


def until(
    condition: Callable[[], bool],
    what: str | Callable[[], object] = "the condition did not become true",
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Wait until a condition is true; a timeout fails with the text `what`, or with what it returns."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.01)
