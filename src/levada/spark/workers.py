"""Spark's Python workers live for many tasks and collect garbage after each, walking all that is loaded: 80 ms.

What modules hold stays for good, so it is taken out of the collector's sight whenever new ones were loaded.
"""

import gc
import sys

_loaded = 0  # modules, when they were last taken out


def keep_what_is_loaded() -> None:
    """Call after work that may have loaded modules; nothing happens outside of Spark's workers."""
    global _loaded  # noqa: PLW0603 (of the process)
    if len(sys.modules) != _loaded and _is_worker():
        _loaded = len(sys.modules)
        gc.collect()  # what is garbage now would be kept, too
        gc.freeze()


def _is_worker() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"
