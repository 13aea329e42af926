"""The tables of docs/compatibility.md agree with this run, whose last test this is.

UPDATE_REFERENCE=1 writes them anew, otherwise they must agree. A run of some of the tests, or without some of the
clients, checks only the cells that it has tested. A cell without a test has the letter of its reason.
"""

import os
import string
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.compat.drivers.registry import DRIVERS
from tests.compat.features import ABSENCES, CHOSEN, SHOWN, Feature, Shown

from levada.api.registry import handlers

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "compatibility.md"
CLIENTS = [driver.name for driver in DRIVERS]
TESTED = ("✓", "✗")

Cells = Mapping[tuple[str, str], str]


def cells(shown: str) -> Cells:
    """What a table shows of tests."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if line.startswith("|")]
    if not rows:
        return {}
    names = rows[0][1:]
    found = {(row[0], name): cell for row in rows[2:] for name, cell in zip(names, row[1:], strict=True)}
    return {place: cell for place, cell in found.items() if cell in TESTED}


def absent() -> Cells:
    """The letters of the reasons."""
    return {
        (feature, client): letter
        for letter, absence in zip(string.ascii_lowercase, ABSENCES, strict=False)
        for feature in absence.features
        for client in absence.clients
    }


def seen(shown: Shown, *, is_whole: bool) -> Cells:
    """The cells that a run has tested."""
    result: dict[tuple[str, str], str] = {}
    for feature in Feature:
        for client in CLIENTS:
            outcomes = shown.get((feature, client), set())
            if "failed" in outcomes:
                result[feature, client] = "✗"
            elif "passed" in outcomes:
                result[feature, client] = "✓"
            elif is_whole and not outcomes:
                result[feature, client] = ""
    return result


def clients(result: Cells) -> Iterator[str]:
    """The table of clients and features."""
    yield "| |" + "|".join(f" {client} " for client in CLIENTS) + "|"
    yield "|---|" + ":-:|" * len(CLIENTS)
    reasons = absent()
    for feature in Feature:
        row = [result.get((feature, client)) or reasons.get((feature, client), "") for client in CLIENTS]
        yield f"| {feature} |" + "|".join(f" {cell} " for cell in row) + "|"
    yield ""
    for letter, absence in zip(string.ascii_lowercase, ABSENCES, strict=False):
        yield f"- {letter}: {absence.why}"


def apis() -> Iterator[str]:
    """The table of APIs: the first paragraph of each handler's docstring."""
    yield "| API | versions | |"
    yield "|---|---|---|"
    for handler in sorted(handlers().values()):
        name = "".join(part.capitalize() for part in handler.name.split("_"))
        first, last = handler.versions[0], handler.versions[-1]
        result = " ".join((handler.function.__doc__ or "").split("\n\n")[0].split())
        yield f"| {name} | {first if first == last else f'{first}-{last}'} | {result} |"


class Table:
    """One of the page, between its marks."""

    def __init__(self, mark: str) -> None:
        begin, end = f"<!-- {mark}:begin -->\n", f"<!-- {mark}:end -->"
        before, _, rest = PAGE.read_text().partition(begin)
        self.shown, _, after = rest.partition(end)
        self._before, self._after = before + begin, end + after

    def must_show(self, lines: Iterator[str], how: str) -> None:
        table = "".join(f"{line}\n" for line in lines)
        if os.environ.get("UPDATE_REFERENCE"):
            PAGE.write_text(self._before + table + self._after)
        else:
            assert self.shown == table, f"run UPDATE_REFERENCE=1 pytest {how}"


def test_the_page_shows_what_the_broker_serves() -> None:
    Table("apis").must_show(apis(), "tests/compat/test_matrix.py")


def test_the_page_shows_what_clients_did(request: pytest.FixtureRequest) -> None:
    """Everything in the table was done in this run by that client, and nothing that was done is missing."""
    result = seen(request.config.stash.get(SHOWN, {}), is_whole=is_whole(request.session))
    table = Table("matrix")
    table.must_show(clients({**cells(table.shown), **result}), "tests/compat")


def test_every_cell_is_a_test_or_a_reason() -> None:
    """And not both: a reason that is no longer true goes."""
    tested = cells(Table("matrix").shown)
    places = {(str(feature), client) for feature in Feature for client in CLIENTS}
    assert tested.keys() | absent().keys() == places
    assert not tested.keys() & absent().keys()


def is_whole(session: pytest.Session) -> bool:
    """Whether every test of this folder runs in this process."""
    files = set(HERE.rglob("test_*.py"))
    chosen = any("::" in argument for argument in session.config.args)
    return (
        files <= {item.path for item in session.items}
        and not chosen
        and not session.config.stash.get(CHOSEN, False)
        and not hasattr(session.config, "workerinput")
        and "COMPAT_BOOTSTRAP" not in os.environ
    )
