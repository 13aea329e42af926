"""Lengths of time as users write them, in Spark's words (pure).

Spark takes what it cannot read as the gap of a session for no gap at all, and says nothing, so it is checked here.
"""

import re

from levada.pipelines.runs.queries import PipelineError

_UNIT = r"(?:microsecond|millisecond|second|minute|hour|day|week)s?"
_LENGTH = re.compile(rf"\s*(?:\d+(?:\.\d+)?\s+{_UNIT}\s*)+", re.IGNORECASE)


def check_lengths(**lengths: str) -> None:
    """PipelineError for the first one that is none, by its name."""
    for name, text in lengths.items():
        if not _LENGTH.fullmatch(text):
            raise PipelineError(
                f"{name}: {text!r} is no length of time, such as '10 seconds' or '1 hour 30 minutes'"
            )
