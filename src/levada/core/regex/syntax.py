"""Parses the syntax of RE2, which consumers use for regular expressions of topics (KIP-848).

Kafka's coordinator matches with RE2, whose syntax has no back references and no lookaround, so that matching takes
linear time. The parser is a recursive descent; a character class becomes a predicate of one character.
"""

import unicodedata
from collections.abc import Callable
from typing import Final, NamedTuple

from levada.errors import ErrorCode, KafkaError

PATTERN_BYTES_MAX: Final = 30_000  # the pattern is part of a record key
NESTING_MAX: Final = 100
REPEAT_MAX: Final = 1_000  # RE2's limit

BEGIN, END, WORD_BOUNDARY, NO_WORD_BOUNDARY = "begin", "end", "word boundary", "no word boundary"
LINE_BEGIN, LINE_END = "begin of a line", "end of a line"

Predicate = Callable[[str], bool]


class ClassElement(NamedTuple):
    """One element of a character class; with `fold_case` it ignores case."""

    test: Predicate
    negated: bool = False
    fold_case: bool = False

    def holds(self, char: str) -> bool:
        """Whether the element contains a character."""
        forms = _forms(char) if self.fold_case else (char,)
        return any(map(self.test, forms)) != self.negated


class CharClass(NamedTuple):
    """One character of a character class."""

    parts: tuple[ClassElement, ...]
    negated: bool = False

    def has(self, char: str) -> bool:
        """Whether the class contains a character."""
        return any(part.holds(char) for part in self.parts) != self.negated


class Assertion(NamedTuple):
    """A zero-width assertion."""

    kind: str


class Sequence(NamedTuple):
    """A concatenation; empty if there are no parts."""

    parts: tuple["Node", ...]


class Alternation(NamedTuple):
    """One of several nodes."""

    options: tuple["Node", ...]


class Repeat(NamedTuple):
    """A repetition; `most` is None if unbounded."""

    part: "Node"
    least: int
    most: int | None


Node = CharClass | Assertion | Sequence | Alternation | Repeat


def _forms(char: str) -> set[str]:
    """The case variants of a character; Unicode has two more for k and s."""
    more = {"k": {"\u212a"}, "s": {"\u017f"}}.get(char.lower(), set())
    return {char, char.lower(), char.upper(), char.casefold()} | more


def is_word(char: str) -> bool:
    """Whether a character is a word character of RE2: an ASCII letter, a digit or _."""
    return char == "_" or (char.isascii() and char.isalnum())


def _ascii(*ranges: str) -> Predicate:
    """A predicate of ranges, each given by its first and last character."""
    return lambda char: any(one[0] <= char <= one[1] for one in ranges)


_ALL: Final = _ascii("\0\x7f")
_PERL: Final = {"d": _ascii("09"), "w": is_word, "s": frozenset("\t\n\f\r ").__contains__}
_POSIX: Final = {
    "alnum": _ascii("09", "az", "AZ"),
    "alpha": _ascii("az", "AZ"),
    "ascii": _ALL,
    "blank": frozenset("\t ").__contains__,
    "cntrl": _ascii("\0\x1f", "\x7f\x7f"),
    "digit": _ascii("09"),
    "graph": _ascii("!~"),
    "lower": _ascii("az"),
    "print": _ascii(" ~"),
    "punct": _ascii("!/", ":@", "[`", "{~"),
    "space": frozenset("\t\n\v\f\r ").__contains__,
    "upper": _ascii("AZ"),
    "word": is_word,
    "xdigit": _ascii("09", "af", "AF"),
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
# The Unicode names of a script's characters start with these.
_SCRIPTS: Final = {
    name: name.upper() for name in ("Arabic", "Armenian", "Cyrillic", "Georgian", "Greek", "Hebrew", "Latin", "Thai")
} | {"Han": "CJK"}


def parse(pattern: str) -> Node:
    """Parse a pattern. INVALID_REGULAR_EXPRESSION."""
    if len(pattern.encode(errors="replace")) > PATTERN_BYTES_MAX:
        raise invalid(f"more than {PATTERN_BYTES_MAX} bytes")
    parser = _Parser(pattern)
    node = parser.alternation()
    if parser.peek() == ")":
        raise invalid("unexpected )")
    return node


def invalid(why: str) -> KafkaError:
    """The error of an invalid pattern."""
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"the regular expression is not valid: {why}")


class _Parser:
    """A recursive descent parser of one pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        self._flags_on: frozenset[str] = frozenset()
        self._depth = 0

    def peek(self, text: str = "") -> str:
        """The next character ("" at the end); with a text, the text if it is next."""
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
            raise invalid("unexpected end of pattern")
        return found

    # Structure.

    def alternation(self) -> Node:
        """Alternatives up to the end or a closing parenthesis."""
        flags = self._flags_on
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        self._flags_on = flags  # flags end with their group
        return options[0] if len(options) == 1 else Alternation(tuple(options))

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
                self._take("?")  # lazy quantifiers match the same names
                part = Repeat(part, *bounds)
                if self._quantifier() is not None:
                    raise invalid("a quantifier of a quantifier")
            parts.append(part)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _quoted(self) -> str:
        end = self._pattern.find("\\E", self._position)
        text = self._pattern[self._position :] if end < 0 else self._pattern[self._position : end]
        self._position += len(text) + (0 if end < 0 else 2)
        return text

    def _quantifier(self) -> tuple[int, int | None] | None:
        """The bounds of a quantifier, if one is next. Braces without numbers are literals."""
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
        """One node without its quantifier; None for a group that only sets flags."""
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return self._class()
        if char == ".":
            return CharClass(() if "s" in self._flags_on else (ClassElement("\n".__eq__),), negated=True)
        if char in "^$":
            lines = "m" in self._flags_on
            begin, end = (LINE_BEGIN, LINE_END) if lines else (BEGIN, END)
            return Assertion(begin if char == "^" else end)
        if char != "\\":
            return self._literal(char)
        if self.peek() and self.peek() in _ASSERTIONS:
            return Assertion(_ASSERTIONS[self._next()])
        found = self._escape()
        return CharClass((found,)) if isinstance(found, ClassElement) else self._literal(found)

    def _literal(self, char: str) -> CharClass:
        return CharClass((self._element(char.__eq__),))

    def _element(self, test: Predicate, negated: bool = False) -> ClassElement:
        return ClassElement(test, negated, "i" in self._flags_on)

    # Groups.

    def _group(self) -> Node | None:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise invalid(f"more than {NESTING_MAX} nested groups")
        flags = self._flags_on
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                self._name()
            elif self._flags() == ")":
                self._depth -= 1
                return None  # flags for the rest of the enclosing group
        node = self.alternation()
        self._flags_on = flags
        if not self._take(")"):
            raise invalid("missing )")
        self._depth -= 1
        return node

    def _name(self) -> None:
        end = self._pattern.find(">", self._position)
        name = self._pattern[self._position : end] if end > 0 else ""
        if not name or not all(map(is_word, name)):
            raise invalid("invalid group name")
        self._position = end + 1

    def _flags(self) -> str:
        """Parse the flags `i`, `m`, `s` and `U` (without effect on matches); the character that ends them."""
        on = True
        while (char := self._next()) not in ":)":
            if char == "-" and on:
                on = False
            elif char in "imsU":
                self._flags_on = self._flags_on | {char} if on else self._flags_on - {char}
            else:
                raise invalid(f"(?{char} is not supported")
        return char

    # Characters.

    def _escape(self) -> str | ClassElement:
        """An escape sequence: a character, or an element of a class."""
        char = self._next()
        if char.lower() in _PERL:
            return self._element(_PERL[char.lower()], negated=char not in _PERL)
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

    def _property(self, *, negated: bool) -> ClassElement:
        name = self._until("}") if self._take("{") else self._next()
        if name.startswith("^"):
            name, negated = name[1:], not negated
        if name in _CATEGORIES:
            return self._element(lambda char: unicodedata.category(char).startswith(name), negated)
        if name in _SCRIPTS:
            return self._element(lambda char: unicodedata.name(char, "").startswith(_SCRIPTS[name]), negated)
        if name == "Any":
            return ClassElement(lambda _: True, negated)
        raise invalid(f"unknown Unicode property {name}")

    def _class(self) -> CharClass:
        """A bracket expression; a closing bracket at its start is a literal."""
        negated = bool(self._take("^"))
        parts: list[ClassElement] = []
        while not parts or not self.peek("]"):
            if self._take("[:"):
                parts.append(self._posix())
                continue
            low = self._class_member()
            if isinstance(low, ClassElement):
                parts.append(low)
                continue
            high: str | ClassElement = low
            if self.peek("-") and not self.peek("-]"):
                self._take("-")
                high = self._class_member()
            if not isinstance(high, str) or high < low:
                raise invalid("invalid character range")
            parts.append(self._element(_between(low, high)))
        self._take("]")
        return CharClass(tuple(parts), negated)

    def _class_member(self) -> str | ClassElement:
        char = self._next()
        return self._escape() if char == "\\" else char

    def _posix(self) -> ClassElement:
        end = self._pattern.find(":]", self._position)
        name = self._pattern[self._position : end] if end > 0 else ""
        test = _POSIX.get(name.removeprefix("^"))
        if test is None:
            raise invalid("unknown POSIX class")
        self._position = end + 2
        return self._element(test, negated=name.startswith("^"))


def _between(low: str, high: str) -> Predicate:
    return lambda char: low <= char <= high


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 4
