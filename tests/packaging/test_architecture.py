"""docs/architecture.md names the files that a request passes through: few enough to read in one sitting."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
FILES_MAX, LINES_MAX = 16, 3_200  # of the way of a produce
TOLERANCE = 0.05  # of the lines that the page states


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def files_of(title: str) -> list[str]:
    """The files of a section's table, in reading order."""
    cells = re.findall(r"^\| \d+ \| ([^|]+) \|", section(title), re.MULTILINE)
    return list(dict.fromkeys(re.findall(r"`([a-z_/]+\.py)`", " ".join(cells))))


def lines_of(files: list[str]) -> int:
    return sum((ROOT / "src" / "levada" / name).read_text().count("\n") for name in files)


def stated(title: str) -> tuple[int, int]:
    found = re.search(r"(\d+) files, ([\d,]+) lines", section(title))
    assert found, title
    return int(found[1]), int(found[2].replace(",", ""))


def test_the_way_of_a_produce_can_be_read_in_one_sitting() -> None:
    files = files_of("The way of a produce")
    assert len(files) <= FILES_MAX
    assert lines_of(files) <= LINES_MAX


@pytest.mark.parametrize(("title", "shared"), [("The way of a produce", 0), ("The way of a fetch", 4)])
def test_the_page_states_how_much_there_is_to_read(title: str, shared: int) -> None:
    files = list(dict.fromkeys([*files_of("The way of a produce")[:shared], *files_of(title)]))
    count, lines = stated(title)
    assert count == len(files)
    assert lines == pytest.approx(lines_of(files), rel=TOLERANCE)
