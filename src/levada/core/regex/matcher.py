"""Patterns of topic names and other names, matched in linear time whatever a client sends.

A pattern becomes a set of states that are followed all at once (Thompson's construction); combinations of states that
were met are kept, so a name costs one look-up a character. Building all of it is counted: a pattern that would cost
more than `WORK_MAX` steps over all topics is refused instead of keeping the broker from its other clients.
"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from levada.core.regex.syntax import (
    BEGIN,
    END,
    LINE_BEGIN,
    LINE_END,
    WORD_BOUNDARY,
    Assertion,
    Chars,
    Choice,
    Node,
    Repeat,
    Sequence,
    invalid,
    is_word,
    parse,
)

STATES_MAX: Final = 10_000
WORK_MAX: Final = 100_000
LOOK_UPS_A_STEP: Final = 16  # as many take about as long as one step
WORD, OTHER = "w", "-"
MATCHED: Final = 0  # the state in which a name has matched


class _Read(NamedTuple):
    """Read one of these characters and go on."""

    members: Chars
    then: int


class _Split(NamedTuple):
    """Go on in each of these."""

    then: tuple[int, ...]


class _Check(NamedTuple):
    """Go on if this is such a place."""

    kind: str
    then: int


_State = _Read | _Split | _Check


class _Place(NamedTuple):
    """States that were reached, before the character that comes next is known, and what the last character was."""

    states: frozenset[int]
    before: str  # "" at the beginning, a newline, WORD or OTHER


class _Node:
    """A place that was met, and where characters led from it."""

    __slots__ = ("after", "ended", "is_dead", "place")

    def __init__(self, place: _Place) -> None:
        self.place = place
        self.after: dict[str, _Node] = {}
        self.ended: bool | None = None  # whether a name that ends here matches, once it is known
        self.is_dead = not place.states


class Pattern:
    """A compiled pattern; a whole name matches it or does not."""

    __slots__ = ("_nodes", "_start", "_states", "_work", "_work_max")

    def __init__(self, pattern: str, work_max: int = WORK_MAX) -> None:
        self._work_max = work_max
        self._states: list[_State] = [_Split(())]  # MATCHED leads nowhere
        self._work = 0
        start = self._compile(parse(pattern), MATCHED)
        self._start = _Node(_Place(frozenset({start}), ""))
        self._nodes = {self._start.place: self._start}

    def matches(self, name: str) -> bool:
        """Whether a topic's name matches. INVALID_REGULAR_EXPRESSION if finding out costs too much."""
        node = self._start
        for char in name:
            following = node.after.get(char)
            if following is None:
                place = self._step(node.place, char)
                following = node.after[char] = self._nodes.setdefault(place, _Node(place))
            node = following
            if node.is_dead:
                return False
        if node.ended is None:
            node.ended = MATCHED in self._reach(node.place, "")
        return node.ended

    def matching(self, names: Collection[str]) -> tuple[frozenset[str], int]:
        """The names that match, and how many steps all of it took."""
        found = frozenset(name for name in names if self.matches(name))
        return found, self._work + sum(map(len, names)) // LOOK_UPS_A_STEP

    # Compiling.

    def _add(self, state: _State) -> int:
        if len(self._states) >= STATES_MAX:
            raise invalid("it is too large")
        self._states.append(state)
        return len(self._states) - 1

    def _compile(self, node: Node, then: int) -> int:
        """The state from which a node is read and which then goes on with `then`."""
        self._spend(1)  # nothing repeated a thousand times a thousand times adds no states, but takes as long
        match node:
            case Chars():
                return self._add(_Read(node, then))
            case Assertion(kind):
                return self._add(_Check(kind, then))
            case Sequence(parts):
                for part in reversed(parts):
                    then = self._compile(part, then)
                return then
            case Choice(options):
                return self._add(_Split(tuple([self._compile(option, then) for option in options])))
            case Repeat(part, least, most):
                return self._compile_repeat(part, least, most, then)

    def _compile_repeat(self, part: Node, least: int, most: int | None, then: int) -> int:
        if most is None:
            loop = self._add(_Split((then,)))
            self._states[loop] = _Split((self._compile(part, loop), then))
            then = loop
        else:
            out = then
            for _ in range(most - least):
                then = self._add(_Split((self._compile(part, then), out)))
        for _ in range(least):
            then = self._compile(part, then)
        return then

    # Matching.

    def _step(self, place: _Place, char: str) -> _Place:
        reached = set()
        for number in self._reach(place, char):
            state = self._states[number]
            if isinstance(state, _Read):
                self._spend(
                    max(0, len(state.members.parts) - 1)
                )  # one was counted when the state was reached
                if state.members.has(char):
                    reached.add(state.then)
        return _Place(frozenset(reached), char if char == "\n" else WORD if is_word(char) else OTHER)

    def _reach(self, place: _Place, following: str) -> set[int]:
        """All states that can be reached without reading, between the last character and the next ("" for none)."""
        seen = set(place.states)
        queue = list(seen)
        while queue:
            number = queue.pop()
            state = self._states[number]
            if isinstance(state, _Read):
                continue
            if isinstance(state, _Check):
                then: Iterable[int] = (state.then,) if _is_at(state.kind, place.before, following) else ()
            else:
                then = state.then
            for one in then:
                if one not in seen:
                    seen.add(one)
                    queue.append(one)
        self._spend(len(seen))
        return seen

    def _spend(self, steps: int) -> None:
        self._work += steps
        if self._work > self._work_max:
            raise invalid("it costs too much to match")


def _is_at(kind: str, before: str, following: str) -> bool:
    if kind in (BEGIN, LINE_BEGIN):
        return before == "" or (before == "\n" and kind == LINE_BEGIN)
    if kind in (END, LINE_END):
        return following == "" or (following == "\n" and kind == LINE_END)
    boundary = (before == WORD) != is_word(following)
    return boundary == (kind == WORD_BOUNDARY)
