"""A setting is declared once: its name, type, default, bounds and words come from one line.

Flags, DescribeConfigs, validation and the reference pages all read these declarations, so none can disagree.
Types, bounds and the way a text becomes a value are those of Kafka's ConfigDef.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from enum import IntEnum
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, get_args, get_origin

from levada.errors import ErrorCode, KafkaError

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None


class ConfigType(IntEnum):
    """Types by the numbers of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


Long: TypeAlias = Annotated[int, ConfigType.LONG]
Short: TypeAlias = Annotated[int, ConfigType.SHORT]
Strings: TypeAlias = tuple[str, ...]

LONG_MAX: Final = (1 << 63) - 1
INT_MAX: Final = (1 << 31) - 1

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_BITS: Final = {ConfigType.INT: 32, ConfigType.SHORT: 16, ConfigType.LONG: 64}
_UNITS: Final = {"minutes": 60_000, "hours": 3_600_000}
_PLAIN_TYPES: Final = {
    bool: ConfigType.BOOLEAN,
    int: ConfigType.INT,
    float: ConfigType.DOUBLE,
    str: ConfigType.STRING,
    tuple: ConfigType.LIST,
}


class Synonym(NamedTuple):
    """A broker setting that gives a topic setting its default; its name ends with its unit."""

    name: str

    @property
    def factor(self) -> int:
        """By how much a value is multiplied to be in the topic's unit."""
        return _UNITS.get(self.name.rpartition(".")[2], 1)


class Setting(NamedTuple):
    """One declared setting. `name` is Kafka's; the attribute is the same with `_` for `.`."""

    name: str
    type: ConfigType
    default: Value
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    # The choices that Levada honours where that is fewer than Kafka knows.
    honoured: tuple[str, ...] = ()
    # What the value, or each part of a list, must match.
    pattern: str = ""
    # A broker setting that may be altered while the broker runs.
    dynamic: bool = False
    # Other names of the same setting, read when the name itself is not given.
    aliases: tuple[str, ...] = ()
    # Of a topic setting: broker settings that give its default; the first that is set wins.
    synonyms: tuple[Synonym, ...] = ()
    # A value outside the bounds that is allowed all the same.
    special: int | None = None
    nullable: bool = False

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    @property
    def sensitive(self) -> bool:
        """Whether its value is never shown."""
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> Value:
        """The value that a text stands for, checked; KafkaError INVALID_CONFIG otherwise."""
        value = self._convert(text.strip())
        self._check(value)
        return value

    def render(self, value: Value) -> str | None:
        """The text that stands for a value, as Kafka writes it."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def rejected(self, why: str) -> KafkaError:
        """The error that names this setting and says why."""
        return KafkaError(ErrorCode.INVALID_CONFIG, f"{self.name}: {why}")

    def _convert(self, text: str) -> Value:
        kind = self.type
        if kind is ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self.rejected(f"{text!r} is neither true nor false")
            return text.lower() == "true"
        if kind in _BITS:
            if not _WHOLE_NUMBER.fullmatch(text):
                raise self.rejected(f"{text!r} is not a whole number (type {kind.name})")
            # A Java int or long has no more than 20 characters: nothing longer is turned into a number.
            limit = 1 << (_BITS[kind] - 1)
            number = int(text) if len(text) <= 20 else limit
            if not -limit <= number < limit:
                raise self.rejected(f"{text[:40]} does not fit type {kind.name}")
            return number
        if kind is ConfigType.DOUBLE:
            try:
                return float(text)
            except ValueError:
                raise self.rejected(f"{text!r} is not a number (type DOUBLE)") from None
        if kind is ConfigType.LIST:
            return tuple(part.strip() for part in text.split(",")) if text else ()
        return text

    def _check(self, value: Value) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            if value != self.special or self.special is None:
                self._check_bounds(value)
            return
        for part in value if isinstance(value, tuple) else (self.render(value),):
            self._check_part(part or "")

    def _check_part(self, part: str) -> None:
        if self.choices and part not in self.choices:
            raise self.rejected(f"{part!r} is not one of {', '.join(self.choices)}")
        if self.honoured and part not in self.honoured:
            raise self.rejected(f"{part!r} is not available in Levada, only {', '.join(self.honoured)}")
        if self.pattern and not re.fullmatch(self.pattern, part):
            raise self.rejected(f"{part!r} is not of the form {self.pattern}")

    def _check_bounds(self, value: float) -> None:
        # Written so that NaN fails too.
        if self.minimum is not None and not value >= self.minimum:
            raise self.rejected(f"{value} is less than the minimum of {self.minimum}")
        if self.maximum is not None and not value <= self.maximum:
            raise self.rejected(f"{value} is more than the maximum of {self.maximum}")


def setting(default: Any, doc: str, *, kafka: str | None = None, **constraints: Any) -> Any:
    """Declare a setting as a field of a dataclass; its name follows from the attribute's unless given."""
    return field(default=default, metadata={"doc": doc, "kafka": kafka, "constraints": constraints})


def topic_default(topic_setting: str, default: Any, **constraints: Any) -> Any:
    """Declare the broker's default of a topic's setting, which may be altered while the broker runs."""
    return setting(default, f"Default of {topic_setting}.", dynamic=True, **constraints)


def declared(owner: type) -> Mapping[str, Setting]:
    """The settings that a dataclass declares, by Kafka's name, in their order."""
    return {found.name: found for found in map(_from_field, fields(owner)) if found is not None}


def _from_field(item: Field[Any]) -> Setting | None:
    if "doc" not in item.metadata:
        return None
    assert item.default is not MISSING
    constraints = dict(item.metadata["constraints"])
    constraints["synonyms"] = tuple(map(Synonym, constraints.get("synonyms", "").split()))
    type_, nullable = _type_of(item.type)
    return Setting(
        name=item.metadata["kafka"] or item.name.replace("_", "."),
        type=type_,
        default=item.default,
        doc=item.metadata["doc"],
        nullable=nullable,
        **constraints,
    )


def _type_of(annotation: Any) -> tuple[ConfigType, bool]:
    """`int | None` is a nullable INT, `Long` a LONG, and so on."""
    alternatives = get_args(annotation)
    nullable = type(None) in alternatives
    if nullable:
        annotation = next(part for part in alternatives if part is not type(None))
    if get_origin(annotation) is Annotated:
        kind = get_args(annotation)[1]
        assert isinstance(kind, ConfigType)
        return kind, nullable
    return _PLAIN_TYPES[get_origin(annotation) or annotation], nullable


def nearest(name: str, known: Mapping[str, object]) -> str:
    """Words that point from a misspelt name to the one that was probably meant; empty if none is near."""
    import difflib  # costs 4 ms and is needed only after a mistake

    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; did you mean {matches[0]}?" if matches else ""
