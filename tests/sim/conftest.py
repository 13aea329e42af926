"""Seeds for the simulator: `pytest tests/sim --seeds 5000` runs more, `SEED=123 pytest tests/sim` replays one."""

import os

import pytest
from tests.sim.seeds import SEEDS_DEFAULT


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=None, help="how many seeds the simulator runs")


def seeds(config: pytest.Config) -> list[int]:
    """The seeds of this run."""
    if "SEED" in os.environ:
        return [int(os.environ["SEED"])]
    count = config.getoption("--seeds", default=None) or int(os.environ.get("SEEDS", SEEDS_DEFAULT))
    return list(range(count))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a `seed` runs once for each."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", seeds(metafunc.config))
