"""How kernels become machine code, once for each machine and user, and not again in each worker of Spark.

numba keeps compiled code beside the module, or in the user's cache directory where an installation cannot be written,
or in NUMBA_CACHE_DIR. Its files are put in place by rename, so workers that compile at once do not disturb each other.
A place that is missing, full or damaged costs the time to compile and nothing else. What is kept goes by the content
of the file that a kernel stands in and of no other: so the pieces of a kernel stand in its own file.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba import extending, types
from numba.core import cgutils

Function = TypeVar("Function", bound=Callable[..., Any])

# `READ` takes bytes, the others are written to. Signatures are given, so that nothing is compiled at a first call.
READ = types.Array(types.uint8, 1, "C", readonly=True)
BYTES = types.Array(types.uint8, 1, "C")
INT8S = types.Array(types.int8, 1, "C")
INT32S = types.Array(types.int32, 1, "C")
INT64S = types.Array(types.int64, 1, "C")
TABLE = types.Array(types.int64, 2, "C", readonly=True)
BATCHES = types.Array(types.int64, 2, "C")
INT = types.int64

_njit: Any = numba.njit
_options = {"nogil": True, "error_model": "numpy"}


def kernel(*arguments: Any, returns: Any = types.void) -> Callable[[Function], Function]:
    """Compile for exactly these types; other Python threads run meanwhile."""

    def compiled(function: Function) -> Function:
        signature = returns(*arguments)
        try:
            made: Function = _njit(signature, cache=True, **_options)(function)
        except Exception:  # noqa: BLE001 (whatever ails the cache, code can be had without it)
            made = _njit(signature, **_options)(function)
        return made

    return compiled


def part(function: Function) -> Function:
    """A piece of kernels in the same file, compiled with them."""
    made: Function = _njit(**_options)(function)
    return made


def inlined(function: Function) -> Function:
    """A piece that is put into its callers as if written there: quicker to run, slower to compile."""
    made: Function = _njit(inline="always", **_options)(function)
    return made


def tuple_of(kind: type, *fields: Any) -> Any:
    """The type of a NamedTuple of arrays."""
    made: Any = types.NamedTuple
    return made(fields, kind)


_intrinsic: Any = extending.intrinsic
_memcpy: Any = cgutils.raw_memcpy


@_intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(_typing: Any, target: Any, at: Any, source: Any, start: Any, size: Any) -> Any:
    """memcpy, which numba has no word for: three times as fast as its loops for values of 100 bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        into = context.make_array(signature.args[0])(context, builder, arguments[0])
        out_of = context.make_array(signature.args[2])(context, builder, arguments[2])
        target_at = builder.gep(into.data, [arguments[1]])
        source_at = builder.gep(out_of.data, [arguments[3]])
        _memcpy(builder, target_at, source_at, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(target, at, source, start, size), generate
