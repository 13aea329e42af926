"""Matches names with regular expressions in RE2's syntax: subscriptions (KIP-848) and ListTransactions (KIP-1152).

RE2 (google-re2) matches in time linear in the name. Its compiler and matcher still take time for large patterns, so a
pattern is checked before it is compiled, its program is limited, and matching many names has a limit of CPU time: one
client cannot block the event loop. The library is imported with the first pattern.
"""

import re
from collections.abc import Callable, Collection
from typing import Final

from levada.errors import ErrorCode, KafkaError

PATTERN_BYTES_MAX: Final = 8 * 1024
UNICODE_CLASSES_MAX: Final = 32  # each is a table of hundreds of ranges
PROGRAM_SIZE_MAX: Final = 10_000  # instructions; matching takes a few nanoseconds for each of them and each byte
MEMORY_BYTES_MAX: Final = 1 << 20  # of the program and the states that RE2 caches
MATCHING_S_MAX: Final = 0.03
MATCHING_S_PER_NAME: Final = 5e-6  # what a name costs with any pattern

_REPETITION: Final = re.compile(r"\{([0-9]{1,4})(,?)([0-9]{0,4})\}")

CpuTime = Callable[[], float]  # seconds that this thread has been running


class Pattern:
    """A compiled pattern, which matches whole names."""

    __slots__ = ("_fullmatch",)

    def __init__(self, pattern: str) -> None:
        import re2  # not at the start of the broker: few consumers use patterns

        encoded = pattern.encode("utf-8", "surrogatepass")
        _check_size(pattern, len(encoded))
        options = re2.Options()
        options.max_mem = MEMORY_BYTES_MAX
        options.log_errors = False
        options.never_capture = True
        try:
            compiled = re2.compile(encoded, options)
        except re2.error as error:
            (why,) = error.args
            raise _invalid(why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)) from None
        finally:
            re2.purge()  # its cache would keep up to 128 programs
        if compiled.programsize > PROGRAM_SIZE_MAX:
            raise _invalid(f"it compiles to more than {PROGRAM_SIZE_MAX} instructions")
        self._fullmatch = compiled.fullmatch

    def matches(self, name: str) -> bool:
        """Whether a name matches."""
        return self._fullmatch(name.encode("utf-8", "surrogatepass")) is not None

    def matching(self, names: Collection[str], cpu_time: CpuTime) -> frozenset[str]:
        """The names that match. INVALID_REGULAR_EXPRESSION if that takes too much CPU time."""
        until = cpu_time() + MATCHING_S_MAX + MATCHING_S_PER_NAME * len(names)
        found = []
        for name in names:
            if self.matches(name):
                found.append(name)
            if cpu_time() > until:
                raise _invalid(f"it takes too long to match it with {len(names)} names")
        return frozenset(found)


def _check_size(pattern: str, size: int) -> None:
    """Refuse patterns that would take long to parse or to compile, whatever their program."""
    if size > PATTERN_BYTES_MAX:
        raise _invalid(f"it has {size} bytes; {PATTERN_BYTES_MAX} are possible")
    if pattern.count("\\p") + pattern.count("\\P") > UNICODE_CLASSES_MAX:
        raise _invalid(f"it has more than {UNICODE_CLASSES_MAX} Unicode classes")
    repetitions = 0
    for least, comma, most in _REPETITION.findall(pattern):
        repetitions += 2 * int(most) - int(least) if comma and most else int(least)
    if repetitions > PROGRAM_SIZE_MAX:
        raise _invalid(f"it repeats its parts more than {PROGRAM_SIZE_MAX} times")


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"not a regular expression in RE2's syntax: {why}")
