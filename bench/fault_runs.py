"""Records the last whole run of each target that injects faults: `make chaos`, `chaos-spark` and `damage`.

Only a run in which nothing was wrong is recorded: in bench/results/faults.json and in docs/project_testing.md.
"""

import datetime
import json
from typing import Any

from bench import machine, results
from bench.generator.outcome import ROOT
from bench.report import put_between_markers, table

RECORD = results.DIRECTORY / "faults.json"
DOCS = ROOT / "docs" / "project_testing.md"
MARK = "faults"


def record(target: str, seed: int, seconds: float, what: str) -> None:
    """Replace the record of `target`; `what` says in a few words what ran and passed."""
    found: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    found[target] = {
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "revision": results.revision(),
        "machine": machine.describe(),
        "seed": seed,
        "minutes": round(seconds / 60, 1),
        "what": what,
    }
    results.save_results(RECORD, found)
    put_between_markers(DOCS, markdown(found), MARK)


def markdown(found: dict[str, Any]) -> str:
    """A line for each target."""
    lines = [
        (f"`{target}`", run["when"], run["revision"], str(run["seed"]), f"{run['minutes']:g}", run["what"])
        for target, run in sorted(found.items())
    ]
    return table(("target", "last run", "revision", "seed", "minutes", "passed"), lines)
