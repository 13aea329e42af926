"""Brokers on data directories with randomly damaged files: no damage is silent.

`python -m tests.damage` searches further; `--first N` replays the start of a number.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.damage.prepared import Prepared, prepare
from tests.damage.world import Start

STARTS = 60
SEED = 1


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder in memory where there is one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


@pytest.fixture(scope="module")
def prepared(folder: Path) -> list[Prepared]:
    return prepare(folder)


@pytest.mark.parametrize("number", range(STARTS))
def test_no_damage_is_silent(prepared: list[Prepared], folder: Path, number: int) -> None:
    start = Start(prepared[number % 2], folder, f"{SEED} {number}")
    try:
        start.run()
    except Exception as error:
        error.add_note("; ".join(f"{path.relative_to(folder)}: {how}" for path, how in start.damaged))
        raise
