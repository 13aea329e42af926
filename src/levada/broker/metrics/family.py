"""A metric family in Prometheus' text format."""

from collections.abc import Iterable
from typing import Final, NamedTuple

COUNTER: Final = "counter"
HISTOGRAM: Final = "histogram"
GAUGE: Final = "gauge"


class Family(NamedTuple):
    """One metric family in Prometheus' text format; its labels are escaped where they need it."""

    name: str
    kind: str
    description: str
    samples: Iterable[tuple[str, float]]  # labels, of a histogram after the suffix of the name, and value

    def text(self) -> str:
        """The lines of the exposition."""
        name = self.name
        head = f"# HELP {name} {self.description}\n# TYPE {name} {self.kind}\n"
        return head + "".join([f"{name}{labels} {value}\n" for labels, value in self.samples])
