"""Works inside Spark's Python workers: garbage collection, memory, TCP acknowledgements, and the end of a task's input.

A worker runs many tasks and collects garbage after each of them, which visits every object of every module. Objects
of modules live as long as the process, so they are frozen whenever modules were loaded. A task allocates the same
megabytes again and again to fetch and decode; freed memory stays in the process, because page faults would cost as
much as decoding. And a task is acknowledged when it arrives, without the delay of 40 ms.
"""

import ctypes
import gc
import os
import socket
import sys
from contextlib import suppress
from functools import cache
from types import FrameType
from typing import Any

_modules_frozen = 0  # the number of modules at the last freeze

# glibc's parameters of `mallopt`, and their values.
_TRIM_THRESHOLD = (-1, 128 << 20)  # free memory that a process keeps
_MMAP_THRESHOLD = (-3, 32 << 20)  # the largest that glibc allows; larger blocks are mapped each time
_memory_is_retained = False


def freeze_loaded_modules() -> None:
    """Call after work that may have loaded modules; does nothing outside Spark's workers."""
    global _modules_frozen  # noqa: PLW0603 (of the process)
    if len(sys.modules) != _modules_frozen and _is_worker():
        _modules_frozen = len(sys.modules)
        gc.collect()  # garbage must not be frozen
        gc.freeze()


def retain_freed_memory() -> None:
    """Call before work that allocates much memory piece by piece; does nothing outside Spark's workers."""
    global _memory_is_retained  # noqa: PLW0603 (of the process)
    if _memory_is_retained or not _is_worker():
        return
    _memory_is_retained = True
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    if set_option is not None:
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            set_option(*option)


class QuickAck:
    """Base of the objects that Spark pickles into its workers: unpickling acknowledges what has arrived by TCP.

    Spark sends a task in two segments, and Nagle's algorithm holds the second back until the first, which has this
    object in it, is acknowledged. A delayed acknowledgement takes 40 ms, for each reader and writer of a micro-batch.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if _is_worker():
            acknowledge()


def acknowledge() -> None:
    """Send pending TCP acknowledgements of the process's connections (TCP_QUICKACK); only Linux has it."""
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None:
        return
    for descriptor in _connections():
        with suppress(OSError):  # closed since
            connection = socket.socket(fileno=descriptor)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, option, 1)
            finally:
                connection.detach()


@cache
def _connections() -> list[int]:
    """The descriptors of a worker's connections to Spark: those that are open when its first task arrives."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # not a socket, or the descriptor of this listing
            connection = socket.socket(fileno=int(name))
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                found.append(int(name))
            connection.detach()
    return found


def is_input_closed() -> bool:
    """Whether Spark has closed the input of the current task: an operator before it failed, or the task is killed.

    An Arrow stream that breaks off between two batches looks like one that has ended, so a task must check this after
    its last row. Spark keeps the connection open for the result of a task that has read all rows.
    """
    descriptor = _input_descriptor()
    if descriptor is None:
        return False  # no worker, or one whose input is not a socket
    connection = socket.socket(fileno=descriptor)
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        connection.detach()


def _input_descriptor() -> int | None:
    """The descriptor from which the worker reads, found in the frame of pyspark's `main(infile, outfile)`."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and {"infile", "outfile"} <= frame.f_locals.keys():
            with suppress(OSError):  # a file without a descriptor
                return int(frame.f_locals["infile"].fileno())
        frame = frame.f_back
    return None


def _is_worker() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"
