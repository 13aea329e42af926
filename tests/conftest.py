"""Fixtures and rules of all tests: brokers, no leftover processes, no deadlines of examples."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.support.broker import BrokerThread, settings_of_run
from tests.support.raw import Connection

# How long an example takes says nothing on a machine that does other things as well. Where changes are let in by their
# tests, two runs of one state try the same examples of hypothesis; everywhere else each run tries new ones.
settings.register_profile(
    "no-deadline",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    max_examples=int(os.environ.get("EXAMPLES", "100")),
)
settings.load_profile("no-deadline")

# A shell starts background jobs with SIGINT ignored, and so would every process be that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "broker(**settings): settings of the module's broker, with _ for the dots")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Name what failed once more at the very end: a test may have said so much that its name is far above."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    for report in [*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())]:
        reason = str(getattr(report.longrepr, "reprcrash", "")).partition("\n")[0]
        reporter.write_line(f"failed: {report.nodeid}: {reason[:200]}")


def children_alive() -> list[str]:
    """The command lines of this process's children that are not yet gone, zombies left out."""
    alive = []
    for children in Path("/proc/self/task").glob("*/children"):
        try:
            pids = children.read_text().split()
        except OSError:
            continue  # the thread ended while we looked
        for pid in pids:
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                continue  # it ended while we looked
            if state != "Z":
                alive.append(f"{pid}: {command}")
    return alive


@pytest.fixture(scope="session", autouse=True)
def no_leftover_processes() -> Iterator[None]:
    """Fail when a child is alive that was not there at the start (where there is no /proc, none is seen)."""
    before = set(children_alive())
    yield
    left = [line for line in children_alive() if line not in before]
    assert not left, f"processes left running: {left}"


@pytest.fixture(scope="session")
def levada_settings() -> dict[str, str]:
    """Settings of the plugin's broker, the fixture `levada`."""
    return settings_of_run()


@pytest.fixture(scope="module")
def module_broker(request: pytest.FixtureRequest) -> Iterator[BrokerThread]:
    """A broker for a module; `pytestmark = pytest.mark.broker(num_partitions=2)` gives its settings."""
    mark = request.node.get_closest_marker("broker")
    with BrokerThread(**(mark.kwargs if mark else {})) as own:
        yield own


@pytest.fixture
def broker(module_broker: BrokerThread) -> Iterator[BrokerThread]:
    """The module's broker; topics and groups that a test adds end with it, and so do its faults."""
    with module_broker.cleanup():
        yield module_broker


@pytest.fixture
def wire(broker: BrokerThread) -> Iterator[Connection]:
    """A connection without a client."""
    with broker.connect() as connection:
        yield connection
