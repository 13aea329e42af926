"""What a user should know although a query goes on: once in a process, and without a line of our source below it."""

import warnings

_told: dict[str | tuple[str, type[Warning], int], int] = {}  # where Python remembers what it has said


def warn(message: str) -> None:
    """Warn of it."""
    warnings.warn_explicit(message, UserWarning, "levada", 0, registry=_told)
