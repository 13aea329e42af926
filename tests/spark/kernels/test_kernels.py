"""Kernels stay within their arrays, and are compiled once for all workers; without a usable cache they work too.

The program that the tests start also checks that kernels count no references.
"""

import os
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 300.0
ROOT = Path(__file__).parents[3]
COMPILED = "0 of 9 from the cache"
CACHED = "9 of 9 from the cache"


def worker(**settings: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.support.kernel_program"],
        cwd=ROOT,
        env=os.environ | settings,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def printed(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, output
    return output.strip()


def test_a_second_worker_does_not_compile(tmp_path: Path) -> None:
    """Also if two compile at once; and a cache that is damaged is made again."""
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    at_once = [worker(**cache), worker(**cache)]
    assert printed(at_once[0]).endswith("from the cache") and printed(at_once[1]).endswith("from the cache")
    assert printed(worker(**cache)) == CACHED
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(b"\x80damaged")
    assert printed(worker(**cache)).endswith("from the cache")


def test_no_place_for_a_cache_costs_time_only(tmp_path: Path) -> None:
    """As for a user without a home directory on a machine where packages cannot be written."""
    (tmp_path / "file").touch()
    settings = {
        "NUMBA_CACHE_DIR": str(tmp_path / "file"),
        "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
    }
    assert printed(worker(**settings)) == COMPILED


def test_no_kernel_leaves_its_arrays(tmp_path: Path) -> None:
    """Over bad input of every kind, with each access to an array checked by numba."""
    assert printed(worker(NUMBA_CACHE_DIR=str(tmp_path), NUMBA_BOUNDSCHECK="1")) == COMPILED
