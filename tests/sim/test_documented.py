"""docs/project_testing.md lists exactly the invariants that are checked and the bugs that are planted."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.sim.compaction import test_cleaner
from tests.sim.groups import test_planted as test_groups_planted
from tests.sim.partition import test_planted
from tests.sim.replication import test_planted as test_replication_planted
from tests.sim.seeds import Invariant
from tests.sim.transactions import test_planted as test_transactions_planted

DOCS = Path(__file__).parents[2] / "docs" / "project_testing.md"
WORLDS: dict[str, Iterable[Callable[..., object]]] = {
    "a partition": test_planted.PLANTS,
    "transactions": test_transactions_planted.PLANTS,
    "groups and offsets": test_groups_planted.PLANTS,
    "compaction": test_cleaner.PLANTS,
    "replication": test_replication_planted.PLANTS,
}


def test_every_planted_bug_is_documented() -> None:
    table = DOCS.read_text().partition("### Bugs that were planted")[2].partition("\n#")[0]
    rows = re.findall(r"^\| ([a-z ]+) \| (.+) \|$", table, re.MULTILINE)
    found = {world: names.split("; ") for world, names in rows}
    del found["in the world of"]
    assert found == {world: [plant.__name__.replace("_", " ") for plant in plants] for world, plants in WORLDS.items()}


def test_every_invariant_is_documented() -> None:
    table = DOCS.read_text().partition("### Invariants")[2].partition("\n#")[0]
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.+) \|$", table, re.MULTILINE)
    assert rows == [(invariant.name, invariant.value) for invariant in Invariant]
