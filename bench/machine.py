"""What the machine spent and how it looks, read from /proc.

Wall time on a shared virtual machine moves by 30 % with its neighbours; the CPU time of a process is steadier, so
every row reports it, user and system apart. Memory that the host has taken back costs about 4 ms per MB to
touch again: `warm_memory` pays that before a round so that no broker pays it inside one.
"""

import mmap
import os
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = mmap.PAGESIZE
MEGABYTE = 1_000_000


class Usage(NamedTuple):
    """CPU seconds of a process and its children so far."""

    user: float
    system: float

    def since(self, earlier: "Usage") -> "Usage":
        return Usage(self.user - earlier.user, self.system - earlier.system)

    @property
    def total(self) -> float:
        return self.user + self.system


class Memory(NamedTuple):
    """Resident and anonymous megabytes; mapped log pages count as resident but belong to the page cache."""

    rss: float
    anonymous: float


class HostTimes(NamedTuple):
    """Seconds of all cores together since boot."""

    busy: float
    idle: float
    steal: float

    @property
    def total(self) -> float:
        return self.busy + self.idle + self.steal

    def since(self, earlier: "HostTimes") -> "HostTimes":
        return HostTimes(self.busy - earlier.busy, self.idle - earlier.idle, self.steal - earlier.steal)


def family(pid: int) -> list[int]:
    """The process and everything it has started and not yet lost."""
    found = [pid]
    for parent in found:
        for task in _list(Path(f"/proc/{parent}/task")):
            children = _read(task / "children").split()
            found.extend(int(child) for child in children)
    return found


def usage(pid: int) -> Usage:
    """The CPU time of the process and its children so far, also of those that ended and were waited for.

    Of what lives the sum is exact, its parts to a tick of 10 ms.
    """
    user = total = 0.0
    for member in family(pid):
        fields = _read(Path(f"/proc/{member}/stat")).rpartition(")")[2].split()
        if fields:
            own, ended_user, ended_system = (int(fields[at]) / TICKS_PER_SECOND for at in (11, 13, 14))
            user += own + ended_user
            total += _cpu_clock(member) + ended_user + ended_system
    return Usage(user, total - user)


def memory(pid: int) -> Memory:
    """What the process and its children hold now."""
    rss = anonymous = 0
    for member in family(pid):
        for line in _read(Path(f"/proc/{member}/status")).splitlines():
            if line.startswith("VmRSS:"):
                rss += int(line.split()[1])
            elif line.startswith("RssAnon:"):
                anonymous += int(line.split()[1])
    return Memory(rss * 1024 / MEGABYTE, anonymous * 1024 / MEGABYTE)


def host_times() -> HostTimes:
    """What all cores did since boot."""
    ticks = [int(field) for field in _read(Path("/proc/stat")).split("\n", 1)[0].split()[1:9]]
    user, nice, system, idle, iowait, irq, softirq, steal = (tick / TICKS_PER_SECOND for tick in ticks)
    return HostTimes(user + nice + system + irq + softirq, idle + iowait, steal)


def warm_memory(megabytes: int) -> None:
    """Touch and free as much memory as the next round will put into the page cache."""
    size = megabytes << 20
    with mmap.mmap(-1, size) as area:
        for position in range(0, size, PAGE_BYTES):
            area[position] = 1


def describe() -> dict[str, str]:
    """The machine in five words, kept with the results."""
    models = (
        line.partition(":")[2].strip()
        for line in _read(Path("/proc/cpuinfo")).splitlines()
        if line.startswith("model name")
    )
    total_kib = _read(Path("/proc/meminfo")).split()[1]
    return {
        "cpu": next(models, platform.processor() or "unknown"),
        "cores": str(os.cpu_count()),
        "memory": f"{int(total_kib) / (1 << 20):.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def percentile(ordered: list[float], fraction: float) -> float:
    """Of a sorted list; 0 when nothing was measured."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


def latencies_ms(seconds: Iterable[float]) -> dict[str, float]:
    """The percentiles that every row with latencies reports."""
    ordered = sorted(seconds)
    return {
        "p50_ms": percentile(ordered, 0.5) * 1e3,
        "p99_ms": percentile(ordered, 0.99) * 1e3,
        "p999_ms": percentile(ordered, 0.999) * 1e3,
    }


def _cpu_clock(pid: int) -> float:
    """Linux makes a clock id of a process id this way (clock_getcpuclockid)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _list(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    """Processes may end between two reads: what is gone reads as nothing."""
    try:
        return path.read_text()
    except OSError:
        return ""
