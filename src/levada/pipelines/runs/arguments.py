"""What a run was begun with, kept in its checkpoint: under its name it goes on as it was begun, or not at all.

A checkpoint has places in topics, windows and sessions. Asked for other ones, a run would go on with results that are
neither the old nor the new.
"""

import json
from collections.abc import Mapping
from typing import Any

from levada.pipelines.lake.files import Files
from levada.pipelines.runs.queries import PipelineError

MEMORY = "levada-run.json"
BEGUN = "metadata"  # Spark writes it when a query starts


def remembered(files: Files) -> dict[str, Any] | None:
    """What the run of this checkpoint was begun with; None if it never began."""
    if not (files.exists(MEMORY) and files.exists(BEGUN)):
        return None
    known: dict[str, Any] = json.loads(files.read(MEMORY))
    return known


def remember(files: Files, asked: Mapping[str, Any], name: str) -> None:
    """Keep what the run is; PipelineError if its checkpoint is of another."""
    known = remembered(files)
    text = json.dumps(asked, indent=1)
    if known is None:
        files.write(MEMORY, text)
        return
    now = json.loads(text)
    differs = [field for field in known.keys() | now.keys() if known.get(field) != now.get(field)]
    if differs:
        was = "; ".join(f"{field} was {_told(known.get(field))}" for field in sorted(differs))
        raise PipelineError(
            f"run {name} was begun otherwise ({was}); ask the same, or give this one another name by --name"
        )


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}='{text}'" for key, text in value.items()) or "not given"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
