"""What Spark's Python workers do around each task, made quicker from within.

They live for many tasks and collect garbage after each, walking all that is loaded: 80 ms. What modules hold stays for
good, so it is taken out of the collector's sight whenever new ones were loaded. A task takes the same megabytes over
and over, for what it fetches and decodes: they stay in the process, because pages that were given back to the system
cost as much as decoding when they come again. And a task is acknowledged when it arrives, without a wait of 40 ms.
"""

import ctypes
import gc
import os
import socket
import sys
from contextlib import suppress
from functools import cache
from typing import Any

_loaded = 0  # modules, when they were last taken out

# glibc's numbers for what `mallopt` sets, and how much.
_TRIM_THRESHOLD = (-1, 128 << 20)  # free memory that a process keeps
_MMAP_THRESHOLD = (-3, 32 << 20)  # the most that it allows; what is larger comes from the system each time
_keeps_memory = False


def keep_what_is_loaded() -> None:
    """Call after work that may have loaded modules; nothing happens outside of Spark's workers."""
    global _loaded  # noqa: PLW0603 (of the process)
    if len(sys.modules) != _loaded and _is_worker():
        _loaded = len(sys.modules)
        gc.collect()  # what is garbage now would be kept, too
        gc.freeze()


def keep_memory() -> None:
    """Call before work that takes much memory, piece by piece; nothing happens outside of Spark's workers."""
    global _keeps_memory  # noqa: PLW0603 (of the process)
    if _keeps_memory or not _is_worker():
        return
    _keeps_memory = True
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # other systems may have none
    if set_option is not None:
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            set_option(*option)


class Travels:
    """What Spark copies into its workers. Where it arrives, Spark is told so at once.

    Spark sends a task in two pieces over TCP, and the system holds the second back until the first, which has this
    object in it, is acknowledged: that takes 40 ms if nobody asks for it, for each reader and writer of a micro-batch.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if _is_worker():
            acknowledge()


def acknowledge() -> None:
    """Acknowledge what has come over this process's connections; on Linux, elsewhere nothing happens."""
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None:
        return
    for descriptor in _connections():
        with suppress(OSError):  # it may have been closed since
            connection = socket.socket(fileno=descriptor)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, option, 1)
            finally:
                connection.detach()


@cache
def _connections() -> list[int]:
    """The descriptors of a worker's connections to Spark: those it has when its first task arrives."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # not a socket, or that of this listing
            connection = socket.socket(fileno=int(name))
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                found.append(int(name))
            connection.detach()
    return found


def _is_worker() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"
