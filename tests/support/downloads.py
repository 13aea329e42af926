"""Downloads of tests: outside the tree, shared by runs, filled under a lock.

Maven, npm, Go and apt are slow and need a network; a second run must need neither.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest


class Unavailable(Exception):
    """Something cannot be had on this machine; the text says what and why."""


def must_be_had(what: str, error: Unavailable) -> NoReturn:
    """Skip a test of what this machine does not have; where all is required (COMPAT_REQUIRE_ALL=1), fail it."""
    words = f"{what} cannot be had here: {error}"
    if os.environ.get("COMPAT_REQUIRE_ALL"):
        pytest.fail(words)
    pytest.skip(words)


def cache_dir() -> Path:
    """The folder that all runs of all checkouts share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "levada"


@contextmanager
def locked(name: str) -> Iterator[Path]:
    """The folder `name` of the cache, held by one process at a time."""
    folder = cache_dir() / name
    folder.mkdir(parents=True, exist_ok=True)
    with (cache_dir() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def executable(name: str) -> str:
    """The path of a program, or `Unavailable`."""
    path = shutil.which(name)
    if path is None:
        raise Unavailable(f"{name} is not installed")
    return path


def debian_package(name: str) -> None:
    """Install a package where we may; `Unavailable` says how elsewhere."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Unavailable(f"{name} is not installed (Debian: apt-get install {name})")
    with locked("apt") as folder:
        run(["apt-get", "update", "-q"], cwd=folder)
        run(["apt-get", "install", "-y", "-q", name], cwd=folder)


def run(command: list[str], cwd: Path, timeout: float = 600) -> None:
    """Run an installer; whatever goes wrong makes the client unavailable, with the installer's last words."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]} did not finish in {timeout:.0f} s") from error
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip())[-600:]
        raise Unavailable(f"{' '.join(command[:3])} failed: {words}")
