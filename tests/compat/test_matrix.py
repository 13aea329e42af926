"""The tables of docs/compatibility.md are made from the drivers and the handlers, so that they stay true.

UPDATE_REFERENCE=1 writes them anew, otherwise they must agree.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.compat.drivers.registry import DRIVERS
from tests.compat.members.base import MEMBERS
from tests.compat.transactors.base import TRANSACTORS

import levada.server  # noqa: F401 (declares all handlers)
from levada.api.registry import HANDLERS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"

CAPABILITIES = {
    "create, describe and delete topics": "create_topic",
    "add partitions": "create_partitions",
    "describe and alter settings": "alter_configs",
    "delete records": "delete_records",
    "topic ids": "topic_ids",
    "produce: none, gzip, snappy, lz4, zstd": "produce",
    "produce: keys, headers, nulls, 900 KB, acks 0/1/all": "produce",
    "produce: idempotent": "produce",
    "produce: own timestamps": "timestamps",
    "offsets: earliest, latest, by time": "offsets",
    "consume by offset, all codecs, long poll": "consume",
    "write through restarts of the broker": "long_lived",
}
# What has tests of its own: who takes part in them.
ABLE = {
    "groups: classic protocol, committed offsets": {kind.name for kind in MEMBERS},
    "groups: static members": {kind.name for kind in MEMBERS if "static" not in kind.lacks},
    "groups: cooperative rebalances": {kind.name for kind in MEMBERS if "cooperative" not in kind.lacks},
    "transactions: exactly-once copies, fencing": {kind.name for kind in TRANSACTORS},
}


def clients() -> Iterator[str]:
    """What each client is tested to do."""
    yield "| |" + "|".join(f" {driver.name} " for driver in DRIVERS) + "|"
    yield "|---|" + ":-:|" * len(DRIVERS)
    for words, operation in CAPABILITIES.items():
        cells = ("" if operation in driver.lacks else "✓" for driver in DRIVERS)
        yield f"| {words} |" + "|".join(f" {cell} " for cell in cells) + "|"
    for words, able in ABLE.items():
        cells = ("✓" if driver.name in able else "" for driver in DRIVERS)
        yield f"| {words} |" + "|".join(f" {cell} " for cell in cells) + "|"


def apis() -> Iterator[str]:
    """What the broker serves."""
    yield "| API | versions | |"
    yield "|---|---|---|"
    for handler in sorted(HANDLERS.values()):
        name = "".join(part.capitalize() for part in handler.name.split("_"))
        first, last = handler.versions[0], handler.versions[-1]
        told = " ".join((handler.function.__doc__ or "").split("\n\n")[0].split())
        yield f"| {name} | {first if first == last else f'{first}-{last}'} | {told} |"


@pytest.mark.parametrize(("mark", "lines"), [("matrix", clients), ("apis", apis)], ids=["clients", "apis"])
def test_the_page_shows_what_is(mark: str, lines: Callable[[], Iterator[str]]) -> None:
    begin, end = f"<!-- {mark}:begin -->\n", f"<!-- {mark}:end -->"
    table = "".join(f"{line}\n" for line in lines())
    before, _, rest = PAGE.read_text().partition(begin)
    shown, _, after = rest.partition(end)
    if os.environ.get("UPDATE_REFERENCE"):
        PAGE.write_text(before + begin + table + end + after)
        return
    assert shown == table, "run UPDATE_REFERENCE=1 pytest tests/compat/test_matrix.py"
