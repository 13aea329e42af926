"""Spark's Python workers live for many tasks and collect garbage after each, walking all that is loaded: 80 ms.

What modules hold stays for good, so it is taken out of the collector's sight whenever new ones were loaded. And a task
takes the same megabytes over and over, for what it fetches and decodes: they stay in the process, because pages that
were given back to the system cost as much as decoding when they come again.
"""

import ctypes
import gc
import sys

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


def _is_worker() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"
