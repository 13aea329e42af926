"""The syntax of RE2, in which consumers write the pattern of the topics they subscribe to (KIP-848).

Kafka's coordinator matches such patterns with RE2, so that no pattern takes more than linear time: it has no back
references and no look-around. Topic names are made of 65 characters, so whatever matches one character (a class, a
Unicode property, a letter in any case) is a set of these.
"""

import unicodedata
from typing import Final, NamedTuple

from levada.errors import ErrorCode, KafkaError

ALPHABET: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
WORD: Final = frozenset(one for one in ALPHABET if one.isalnum() or one == "_")

PATTERN_LENGTH_MAX: Final = 10_000
NESTING_MAX: Final = 100
REPEAT_MAX: Final = 1_000  # RE2's own limit

BEGIN, END, WORD_BOUNDARY, NO_WORD_BOUNDARY = "begin", "end", "word boundary", "no word boundary"


class Chars(NamedTuple):
    """One character of a set."""

    members: frozenset[str]


class Assertion(NamedTuple):
    """A place between characters."""

    kind: str


class Sequence(NamedTuple):
    """One after the other; nothing at all if there are no parts."""

    parts: tuple["Node", ...]


class Choice(NamedTuple):
    """One of several."""

    options: tuple["Node", ...]


class Repeat(NamedTuple):
    """So many times; `most` is None where there is no end."""

    part: "Node"
    least: int
    most: int | None


Node = Chars | Assertion | Sequence | Choice | Repeat

_DIGITS = frozenset("0123456789")
_PERL: Final = {"d": _DIGITS, "w": WORD, "s": frozenset[str]()}
_POSIX: Final = {
    "alnum": frozenset(one for one in ALPHABET if one.isalnum()),
    "alpha": frozenset(one for one in ALPHABET if one.isalpha()),
    "ascii": ALPHABET,
    "blank": frozenset[str](),
    "cntrl": frozenset[str](),
    "digit": _DIGITS,
    "graph": ALPHABET,
    "lower": frozenset(one for one in ALPHABET if one.islower()),
    "print": ALPHABET,
    "punct": frozenset("._-"),
    "space": frozenset[str](),
    "upper": frozenset(one for one in ALPHABET if one.isupper()),
    "word": WORD,
    "xdigit": frozenset("0123456789abcdefABCDEF"),
}
_CONTROLS: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_ASSERTIONS: Final = {"A": BEGIN, "z": END, "b": WORD_BOUNDARY, "B": NO_WORD_BOUNDARY}
_CATEGORIES: Final = {
    major + minor
    for major, minors in {
        "L": "ultmo",
        "M": "nce",
        "N": "dlo",
        "P": "cdseifo",
        "S": "mcko",
        "Z": "slp",
        "C": "cfos",
    }.items()
    for minor in ("", *minors)
}
_SCRIPTS: Final = {
    "Any": ALPHABET,
    "Latin": _POSIX["alpha"],
    "Common": ALPHABET - _POSIX["alpha"],
}
# What a character is the same as where case does not count; Unicode has two more signs for k and s.
_FOLDS: Final = {
    one: {one, one.lower(), one.upper()} | {"k": {"\u212a"}, "s": {"\u017f"}}.get(one.lower(), set())
    for one in ALPHABET
}


class Range(NamedTuple):
    """Characters of a class from one to another, both included."""

    first: str
    last: str


def parse(pattern: str) -> Node:
    """What a pattern says. INVALID_REGULAR_EXPRESSION if it says nothing."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise invalid(f"{len(pattern)} characters are more than {PATTERN_LENGTH_MAX}")
    parser = _Parser(pattern)
    node = parser.choice()
    if parser.peek() == ")":
        raise invalid("unexpected )")
    return node


def invalid(why: str) -> KafkaError:
    """The error for a pattern that cannot be used."""
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"the regular expression is not valid: {why}")


class _Parser:
    """Recursive descent over one pattern; `i` alone of RE2's flags changes what topic names match."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        self._fold_case = False
        self._depth = 0

    def peek(self, text: str = "") -> str:
        """The next character ("" at the end); with a text, the text if it comes next."""
        if text:
            return text if self._pattern.startswith(text, self._position) else ""
        return self._pattern[self._position : self._position + 1]

    def _take(self, text: str = "") -> str:
        found = self.peek(text)
        self._position += len(found)
        return found

    def _next(self) -> str:
        found = self._take()
        if not found:
            raise invalid("it ends too early")
        return found

    # Structure.

    def choice(self) -> Node:
        """Options up to the end or a closing parenthesis."""
        fold_case = self._fold_case
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        self._fold_case = fold_case  # flags set in a group end with it
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while (char := self.peek()) and char not in "|)":
            if self._take("\\Q"):
                parts += [self._literal(one) for one in self._quoted()]
                continue
            if (bounds := self._quantifier()) is not None:
                raise invalid(f"nothing to repeat at {self._position}")
            part = self._atom()
            if part is None:
                continue
            if (bounds := self._quantifier()) is not None:
                self._take("?")  # lazy or not, the same names match
                part = Repeat(part, *bounds)
                if self._quantifier() is not None:
                    raise invalid("a repetition of a repetition")
            parts.append(part)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _quoted(self) -> str:
        end = self._pattern.find("\\E", self._position)
        text = self._pattern[self._position :] if end < 0 else self._pattern[self._position : end]
        self._position += len(text) + (0 if end < 0 else 2)
        return text

    def _quantifier(self) -> tuple[int, int | None] | None:
        """How often, if a quantifier comes next. Braces without numbers stand for themselves."""
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if not self.peek("{"):
            return None
        end = self._pattern.find("}", self._position)
        inside = self._pattern[self._position + 1 : end] if end > 0 else ""
        low, comma, high = inside.partition(",")
        if not _is_number(low) or not (high == "" or _is_number(high)):
            return None
        self._position = end + 1
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if least > REPEAT_MAX or (most is not None and not least <= most <= REPEAT_MAX):
            raise invalid(f"repeat count {{{inside}}}")
        return least, most

    def _atom(self) -> Node | None:
        """What a quantifier would repeat; None for something that only sets flags."""
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return Chars(self._class())
        if char == ".":
            return Chars(ALPHABET)
        if char == "^":
            return Assertion(BEGIN)
        if char == "$":
            return Assertion(END)
        if char != "\\":
            return self._literal(char)
        if self.peek() and self.peek() in _ASSERTIONS:
            return Assertion(_ASSERTIONS[self._next()])
        found = self._escape()
        return Chars(found) if isinstance(found, frozenset) else self._literal(found)

    def _literal(self, char: str) -> Chars:
        return Chars(self._matching([Range(char, char)]))

    # Groups.

    def _group(self) -> Node | None:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise invalid(f"more than {NESTING_MAX} parentheses in each other")
        fold_case = self._fold_case
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                self._name()
            elif self._flags() == ")":
                self._depth -= 1
                return None  # flags for the rest of the group around
        node = self.choice()
        self._fold_case = fold_case
        if not self._take(")"):
            raise invalid("missing )")
        self._depth -= 1
        return node

    def _name(self) -> None:
        end = self._pattern.find(">", self._position)
        name = self._pattern[self._position : end] if end > 0 else ""
        if not name or any(one not in WORD for one in name):
            raise invalid("a group's name")
        self._position = end + 1

    def _flags(self) -> str:
        """Read `i`, `m`, `s`, `U`, the last three without effect on topic names; what ended them: `:` or `)`."""
        on = True
        while (char := self._next()) not in ":)":
            if char == "-" and on:
                on = False
            elif char == "i":
                self._fold_case = on
            elif char not in "msU":
                raise invalid(f"(?{char} is not supported")
        return char

    # Characters.

    def _escape(self) -> str | frozenset[str]:
        """After a backslash: a character, or a set of them."""
        char = self._next()
        if char.lower() in _PERL:
            return _PERL[char] if char in _PERL else ALPHABET - _PERL[char.lower()]
        if char in "pP":
            return self._property(negated=char == "P")
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "x":
            return self._hexadecimal()
        if char in "01234567":
            return self._octal(char)
        if not (char.isascii() and char.isalnum()):
            return char
        raise invalid(f"\\{char} is not supported")

    def _hexadecimal(self) -> str:
        digits = self._until("}") if self._take("{") else self._next() + self._next()
        try:
            return chr(int(digits, 16))
        except (ValueError, OverflowError):
            raise invalid(f"\\x{digits}") from None

    def _octal(self, first: str) -> str:
        digits = first
        while len(digits) < 3 and self.peek() and self.peek() in "01234567":
            digits += self._next()
        if first != "0" and len(digits) == 1:
            raise invalid("back references are not supported")
        return chr(int(digits, 8))

    def _until(self, end: str) -> str:
        position = self._pattern.find(end, self._position)
        if position < 0:
            raise invalid(f"missing {end}")
        text = self._pattern[self._position : position]
        self._position = position + 1
        return text

    def _property(self, *, negated: bool) -> frozenset[str]:
        name = self._until("}") if self._take("{") else self._next()
        if name.startswith("^"):
            name, negated = name[1:], not negated
        if name in _CATEGORIES:
            found = frozenset(one for one in ALPHABET if unicodedata.category(one).startswith(name))
        elif name in _SCRIPTS:
            found = _SCRIPTS[name]
        else:
            raise invalid(f"no such property: {name}")
        return self._chosen(found, negated)

    def _class(self) -> frozenset[str]:
        """A class in brackets; a closing bracket at its beginning stands for itself."""
        negated = bool(self._take("^"))
        found: set[str] = set()
        ranges: list[Range] = []
        first = True
        while first or not self.peek("]"):
            first = False
            if self._take("[:"):
                found |= self._posix()
                continue
            low = self._class_member()
            if isinstance(low, frozenset):
                found |= low
                continue
            high: str | frozenset[str] = low
            if self.peek("-") and not self.peek("-]"):
                self._take("-")
                high = self._class_member()
            if not isinstance(high, str) or high < low:
                raise invalid("a range of characters")
            ranges.append(Range(low, high))
        self._take("]")
        found |= self._matching(ranges)
        return ALPHABET - found if negated else frozenset(found)

    def _class_member(self) -> str | frozenset[str]:
        char = self._next()
        return self._escape() if char == "\\" else char

    def _posix(self) -> frozenset[str]:
        end = self._pattern.find(":]", self._position)
        name = self._pattern[self._position : end] if end > 0 else ""
        negated = name.startswith("^")
        found = _POSIX.get(name.removeprefix("^"))
        if found is None:
            raise invalid("no such class of characters")
        self._position = end + 2
        return self._chosen(found, negated)

    def _chosen(self, members: frozenset[str], negated: bool) -> frozenset[str]:
        """A named class, in both cases where case does not count, or what is not in it."""
        if self._fold_case:
            members = members | {one.swapcase() for one in members}
        return ALPHABET - members if negated else members

    def _matching(self, ranges: list[Range]) -> frozenset[str]:
        """The characters of topic names that are in one of the ranges."""
        return frozenset(
            one
            for one in ALPHABET
            for form in (_FOLDS[one] if self._fold_case else (one,))
            if any(first <= form <= last for first, last in ranges)
        )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 4
