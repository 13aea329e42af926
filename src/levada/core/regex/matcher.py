"""Matches names with RE2 regular expressions in linear time.

A pattern is compiled to a nondeterministic finite automaton (Thompson's construction) and executed as a lazily built
deterministic one: sets of NFA states become DFA states, so a known name costs one lookup a character. Compiling and
building DFA states is counted in steps; a pattern that exceeds its limit fails with INVALID_REGULAR_EXPRESSION, so that
one client cannot block the event loop.
"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from levada.core.regex.syntax import (
    BEGIN,
    END,
    LINE_BEGIN,
    LINE_END,
    WORD_BOUNDARY,
    Alternation,
    Assertion,
    CharClass,
    Node,
    Repeat,
    Sequence,
    invalid,
    is_word,
    parse,
)

STATES_MAX: Final = 10_000
STEPS_MAX: Final = 100_000
LOOKUPS_PER_STEP: Final = 16  # DFA lookups that cost about as much as one step
WORD, OTHER = "w", "-"
MATCHED: Final = 0  # the accepting NFA state


class _Read(NamedTuple):
    """An NFA state that consumes one character of a set."""

    members: CharClass
    then: int


class _Split(NamedTuple):
    """An NFA state with empty transitions to several states."""

    then: tuple[int, ...]


class _Check(NamedTuple):
    """An NFA state with an empty transition if an assertion holds."""

    kind: str
    then: int


_NfaState = _Read | _Split | _Check


class _DfaKey(NamedTuple):
    """A set of NFA states, before the next character is known, and the class of the last character."""

    states: frozenset[int]
    before: str  # "" at the start, a newline, WORD or OTHER


class _DfaState:
    """A DFA state and its known transitions."""

    __slots__ = ("accepts", "is_dead", "key", "transitions")

    def __init__(self, key: _DfaKey) -> None:
        self.key = key
        self.transitions: dict[str, _DfaState] = {}
        self.accepts: bool | None = None  # whether a name that ends here matches; None if not computed
        self.is_dead = not key.states


class Pattern:
    """A compiled pattern, which matches whole names."""

    __slots__ = ("_dfa", "_nfa", "_start", "_steps", "_steps_max")

    def __init__(self, pattern: str, steps_max: int = STEPS_MAX) -> None:
        self._steps_max = steps_max
        self._nfa: list[_NfaState] = [_Split(())]  # MATCHED has no transitions
        self._steps = 0
        start = self._compile(parse(pattern), MATCHED)
        self._start = _DfaState(_DfaKey(frozenset({start}), ""))
        self._dfa = {self._start.key: self._start}

    def matches(self, name: str) -> bool:
        """Whether a name matches. INVALID_REGULAR_EXPRESSION if that exceeds the limit of steps."""
        state = self._start
        for char in name:
            following = state.transitions.get(char)
            if following is None:
                key = self._step(state.key, char)
                following = state.transitions[char] = self._dfa.setdefault(key, _DfaState(key))
            state = following
            if state.is_dead:
                return False
        if state.accepts is None:
            state.accepts = MATCHED in self._closure(state.key, "")
        return state.accepts

    def matching(self, names: Collection[str]) -> tuple[frozenset[str], int]:
        """The names that match, and the number of steps spent so far."""
        found = frozenset(name for name in names if self.matches(name))
        return found, self._steps + sum(map(len, names)) // LOOKUPS_PER_STEP

    # Compiling to an NFA.

    def _add(self, state: _NfaState) -> int:
        if len(self._nfa) >= STATES_MAX:
            raise invalid("it has too many states")
        self._nfa.append(state)
        return len(self._nfa) - 1

    def _compile(self, node: Node, then: int) -> int:
        """Add the states of a node; the first state, from which the node leads to `then`."""
        self._count_steps(1)  # an empty node that is repeated adds no states, but takes time
        match node:
            case CharClass():
                return self._add(_Read(node, then))
            case Assertion(kind):
                return self._add(_Check(kind, then))
            case Sequence(parts):
                for part in reversed(parts):
                    then = self._compile(part, then)
                return then
            case Alternation(options):
                return self._add(_Split(tuple([self._compile(option, then) for option in options])))
            case Repeat(part, least, most):
                return self._compile_repeat(part, least, most, then)

    def _compile_repeat(self, part: Node, least: int, most: int | None, then: int) -> int:
        if most is None:
            loop = self._add(_Split((then,)))
            self._nfa[loop] = _Split((self._compile(part, loop), then))
            then = loop
        else:
            out = then
            for _ in range(most - least):
                then = self._add(_Split((self._compile(part, then), out)))
        for _ in range(least):
            then = self._compile(part, then)
        return then

    # Building DFA states.

    def _step(self, key: _DfaKey, char: str) -> _DfaKey:
        reached = set()
        for number in self._closure(key, char):
            state = self._nfa[number]
            if isinstance(state, _Read):
                self._count_steps(max(0, len(state.members.parts) - 1))  # one was counted when the state was reached
                if state.members.has(char):
                    reached.add(state.then)
        return _DfaKey(frozenset(reached), char if char == "\n" else WORD if is_word(char) else OTHER)

    def _closure(self, key: _DfaKey, following: str) -> set[int]:
        """All states that empty transitions reach, between the last character and the next ("" at the end)."""
        seen = set(key.states)
        queue = list(seen)
        while queue:
            number = queue.pop()
            state = self._nfa[number]
            if isinstance(state, _Read):
                continue
            if isinstance(state, _Check):
                then: Iterable[int] = (state.then,) if _holds(state.kind, key.before, following) else ()
            else:
                then = state.then
            for one in then:
                if one not in seen:
                    seen.add(one)
                    queue.append(one)
        self._count_steps(len(seen))
        return seen

    def _count_steps(self, steps: int) -> None:
        self._steps += steps
        if self._steps > self._steps_max:
            raise invalid("it exceeds the limit of matching steps")


def _holds(kind: str, before: str, following: str) -> bool:
    if kind in (BEGIN, LINE_BEGIN):
        return before == "" or (before == "\n" and kind == LINE_BEGIN)
    if kind in (END, LINE_END):
        return following == "" or (following == "\n" and kind == LINE_END)
    boundary = (before == WORD) != is_word(following)
    return boundary == (kind == WORD_BOUNDARY)
