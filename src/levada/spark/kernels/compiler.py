"""Compiles kernels to machine code once per machine and user, and not again in each worker of Spark.

numba caches compiled code beside the module, or in the user's cache directory if the installation is read-only, or in
NUMBA_CACHE_DIR. It renames files into place, so workers may compile at the same time. A cache that is missing, full
or damaged costs the time to compile and nothing else. The key of the cache is the content of the kernel's own file,
so the subroutines of a kernel are in the same file.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba import extending, types
from numba.core import cgutils

Function = TypeVar("Function", bound=Callable[..., Any])

# `READ` is read-only, the others are written to. Signatures are explicit: nothing is compiled at a first call.
READ = types.Array(types.uint8, 1, "C", readonly=True)
BYTES = types.Array(types.uint8, 1, "C")
INT8S = types.Array(types.int8, 1, "C")
INT32S = types.Array(types.int32, 1, "C")
INT64S = types.Array(types.int64, 1, "C")
TABLE = types.Array(types.int64, 2, "C", readonly=True)
BATCHES = types.Array(types.int64, 2, "C")
INT = types.int64

_njit: Any = numba.njit
# The caller holds the arrays during a call, so a kernel counts no references: atomic operations for each row would cost
# more than the rest of a small row. Such a kernel cannot allocate arrays.
_options = {"nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(*arguments: Any, returns: Any = types.void) -> Callable[[Function], Function]:
    """Compile for exactly these types; the kernel releases the GIL."""

    def compiled(function: Function) -> Function:
        signature = returns(*arguments)
        try:
            made: Function = _njit(signature, cache=True, **_options)(function)
        except Exception:  # noqa: BLE001 (any failure of the cache: compile without it)
            made = _njit(signature, **_options)(function)
        return made

    return compiled


def subroutine(function: Function) -> Function:
    """A function called by kernels of the same file, compiled with them."""
    made: Function = _njit(**_options)(function)
    return made


def inlined(function: Function) -> Function:
    """A subroutine that is inlined into its callers: faster to run, slower to compile."""
    made: Function = _njit(inline="always", **_options)(function)
    return made


def tuple_of(kind: type, *fields: Any) -> Any:
    """The numba type of a NamedTuple of arrays."""
    made: Any = types.NamedTuple
    return made(fields, kind)


_intrinsic: Any = extending.intrinsic
_memcpy: Any = cgutils.raw_memcpy


@_intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(_typing: Any, target: Any, at: Any, source: Any, start: Any, size: Any) -> Any:
    """memcpy, which numba does not offer; faster than a compiled loop."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        into = context.make_array(signature.args[0])(context, builder, arguments[0])
        out_of = context.make_array(signature.args[2])(context, builder, arguments[2])
        target_at = builder.gep(into.data, [arguments[1]])
        source_at = builder.gep(out_of.data, [arguments[3]])
        _memcpy(builder, target_at, source_at, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(target, at, source, start, size), generate


@_intrinsic  # type: ignore[untyped-decorator]
def load_word(_typing: Any, source: Any, at: Any) -> Any:
    """The 8 bytes at a position of an array of bytes as one number, wherever they begin."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        word = context.get_value_type(types.uint64).as_pointer()
        return builder.load(builder.bitcast(builder.gep(data, [arguments[1]]), word), align=1)

    return types.uint64(source, at), generate
