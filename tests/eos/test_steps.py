"""Exactly once at each step: a copier dies or pauses between two steps, and another takes over.

What `test_copies` meets by chance is met here by design, one place at a time.
"""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.eos.copying import Feed, Progress, broker, check
from tests.eos.processes import ConfluentCopier
from tests.support.waiting import until

MESSAGES, SIZE = 300, 100
TIMEOUT_S = 60.0
TRANSACTION_TIMEOUT_MS = 5000
pytestmark = pytest.mark.slow


class Pair:
    """Two copiers: the first halts at a step, and the second starts then."""

    def __init__(self, folder: Path, step: str, by: str) -> None:
        self._stack = ExitStack()
        self._server = self._stack.enter_context(broker(folder, 1))
        self._progress = Progress(self._server.bootstrap, 1)
        self._stack.callback(self._progress.close)
        self._feed = Feed(self._server.bootstrap, 1, MESSAGES, rate=100_000)
        self._feed.start()
        self._feed.join()
        settings = {
            "session_timeout_ms": 1500,
            "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
            "aborted_share": 0,
        }
        self.first, self.second = (
            ConfluentCopier(folder, name, self._server.bootstrap, SIZE, **settings, **halt)
            for name, halt in (("first", {"halt_at": step, "halt_by": by}), ("second", {}))
        )
        self._step = step

    def __enter__(self) -> "Pair":
        self.first.start()
        self._stack.callback(self.first.kill)
        until(lambda: self.first.has_reached(self._step))
        self.second.start()
        self._stack.callback(self.second.kill)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait_until_all_is_copied(self) -> None:
        until(self._progress.complete)

    def check(self) -> None:
        self.wait_until_all_is_copied()
        history = [*self._feed.history, *self.first.history(), *self.second.history()]
        check(self._server.bootstrap, MESSAGES, history)


@pytest.mark.parametrize("step", ["begin", "produced", "offsets", "end"])
def test_a_copier_dies(tmp_path: Path, step: str) -> None:
    """Its transaction is aborted by its timeout; the other may not start from offsets that are not decided yet."""
    with Pair(tmp_path, step, "SIGKILL") as pair:
        pair.check()


@pytest.mark.parametrize("step", ["begin", "produced"])
def test_a_copier_wakes_up_when_another_has_its_partitions(tmp_path: Path, step: str) -> None:
    """It is of a past generation: its offsets are refused, and so its copies."""
    with Pair(tmp_path, step, "SIGSTOP") as pair:
        pair.wait_until_all_is_copied()
        pair.first.resume()
        until(lambda: pair.first.has_reached("done"))
        pair.check()


@pytest.mark.parametrize("step", ["offsets", "end"])
def test_a_copier_wakes_up_in_time_to_commit(tmp_path: Path, step: str) -> None:
    """Its offsets were taken when they were good, and hold up the other until it is known what becomes of them."""
    with Pair(tmp_path, step, "SIGSTOP") as pair:
        until(lambda: pair.second.has_reached("positioned"))
        time.sleep(1)  # the other gets an error that it retries; one that does not wait has copied by now
        pair.first.resume()
        until(lambda: pair.first.has_reached("done"))
        pair.check()


@pytest.mark.parametrize("step", ["offsets", "end"])
def test_a_copier_wakes_up_too_late(tmp_path: Path, step: str) -> None:
    """Its transaction was aborted by the timeout, and the other has copied: it is fenced."""
    with Pair(tmp_path, step, "SIGSTOP") as pair:
        pair.wait_until_all_is_copied()
        pair.first.resume()
        until(lambda: pair.first.has_reached("done") or not pair.first.alive)
        pair.check()
