"""How many clients a broker lets in, over all its listeners (`max.connections`, `max.connections.per.ip`)."""

from collections import Counter


class Admission:
    """The clients of one broker, counted."""

    __slots__ = ("_per_ip", "_per_ip_max", "_total", "_total_max")

    def __init__(self, total_max: int, per_ip_max: int) -> None:
        self._total_max = total_max
        self._per_ip_max = per_ip_max
        self._total = 0
        self._per_ip: Counter[str] = Counter()

    def enter(self, host: str) -> str | None:
        """Count a client in; or why it may not come in."""
        if self._total >= self._total_max:
            return f"max.connections={self._total_max} is reached"
        if self._per_ip[host] >= self._per_ip_max:
            return f"max.connections.per.ip={self._per_ip_max} is reached"
        self._total += 1
        self._per_ip[host] += 1
        return None

    def leave(self, host: str) -> None:
        """A client that came in is gone."""
        self._total -= 1
        self._per_ip[host] -= 1
        if not self._per_ip[host]:
            del self._per_ip[host]
