"""What a sink can know of the plan of a micro-batch: the file that Spark keeps of it, where Python finds that.

Spark writes the offsets of a batch before the batch runs, and repeats it by this file; one that is planned anew has
another. A checkpoint on a file system of the JVM's alone cannot be looked into.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

LOCATION = "checkpointlocation"
LINES_BEFORE = 2  # the version of the file; when it was planned, and settings of the session


def location_of(given: Mapping[str, str]) -> str:
    """Where the checkpoint is, by the options of a query; empty if they do not tell."""
    found = next((value for name, value in given.items() if name.lower() == LOCATION), "")
    return re.sub("^file:(//)?/", "/", found)


def plan_of(location: str, batch: int) -> str | None:
    """A digest of the offsets up to which a batch goes; None if nobody can tell."""
    try:
        lines = (Path(location) / "offsets" / str(batch)).read_bytes().splitlines() if location else []
    except OSError:
        return None
    offsets = lines[LINES_BEFORE:]
    return sha256(b"\n".join(offsets)).hexdigest()[:32] if offsets else None
