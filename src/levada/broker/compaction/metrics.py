"""What compaction has done so far, for the metrics."""

from dataclasses import dataclass


@dataclass(slots=True)
class CleanerFigures:
    """Counts since the start, and how things stood at the last look."""

    cleanings: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    dirty_ratio_max: float = 0.0  # of all logs that are compacted
    set_aside: int = 0  # logs that could not be cleaned and wait for their next turn
