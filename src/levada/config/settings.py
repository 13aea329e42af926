"""Declares settings: name, type, default, bounds and documentation of a setting stand in one place.

Loading, flags, DescribeConfigs, dynamic changes and docs/reference/settings.md all read these declarations. Types,
bounds and parsing follow Kafka's ConfigDef. A config is a frozen dataclass whose fields are settings or sections; a
section is a dataclass of settings.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, replace
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar, get_args, get_origin

from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Config = TypeVar("Config", bound=DataclassInstance)

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None


class ConfigType(IntEnum):
    """Types of settings, numbered as in DescribeConfigs."""

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
Password: TypeAlias = Annotated[str, ConfigType.PASSWORD]
Strings: TypeAlias = tuple[str, ...]

LONG_MAX: Final = (1 << 63) - 1
LONG_MIN: Final = -(1 << 63)
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
    """A broker setting that provides the default of a topic or group setting; its name ends with its unit."""

    name: str

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    @property
    def factor(self) -> int:
        """Converts a value to milliseconds where the unit is another one."""
        return _UNITS.get(self.name.rpartition(".")[2], 1)


class Setting(NamedTuple):
    """One declared setting. `name` is Kafka's; the attribute is the name with `_` for `.`."""

    name: str
    type: ConfigType
    default: Value
    doc: str
    section: str = ""  # the attribute of the config that holds the setting; empty: the config itself
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    supported: tuple[str, ...] = ()  # the choices that Levada supports where Kafka has more
    pattern: str = ""  # a regular expression for the value, or for each element of a list
    dynamic: bool = False  # a broker setting that can be changed while the broker runs
    aliases: tuple[str, ...] = ()  # deprecated names, read if the name itself is absent
    synonyms: tuple[Synonym, ...] = ()  # broker settings that provide the default; the first that is set wins
    special: int | None = None  # a valid value outside the bounds
    nullable: bool = False

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    @property
    def sensitive(self) -> bool:
        """Whether responses leave the value out."""
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> Value:
        """Return the valid value that a text stands for; raise INVALID_CONFIG otherwise."""
        value = self._convert(text.strip())
        self._check(value)
        return value

    def render(self, value: Value) -> str | None:
        """Return the text of a value as Kafka writes it."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def value_of(self, config: object) -> Any:
        """Return this setting's value in a config or in the section that declares it."""
        return getattr(getattr(config, self.section) if self.section else config, self.attribute)

    def invalid(self, why: str) -> KafkaError:
        """Return INVALID_CONFIG with the name of this setting and the reason."""
        return KafkaError(ErrorCode.INVALID_CONFIG, f"{self.name}: {why}")

    def _convert(self, text: str) -> Value:
        kind = self.type
        if kind is ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self.invalid(f"{text!r} is neither true nor false")
            return text.lower() == "true"
        if kind in _BITS:
            if not _WHOLE_NUMBER.fullmatch(text):
                raise self.invalid(f"{text!r} is not a whole number (type {kind.name})")
            # A Java int or long has at most 20 characters; longer texts are not converted.
            limit = 1 << (_BITS[kind] - 1)
            number = int(text) if len(text) <= 20 else limit
            if not -limit <= number < limit:
                raise self.invalid(f"{text[:40]} does not fit type {kind.name}")
            return number
        if kind is ConfigType.DOUBLE:
            try:
                return float(text)
            except ValueError:
                raise self.invalid(f"{text!r} is not a number (type DOUBLE)") from None
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
            raise self.invalid(f"{part!r} is not one of {', '.join(self.choices)}")
        if self.supported and part not in self.supported:
            raise self.invalid(f"{part!r} is not available in Levada, only {', '.join(self.supported)}")
        if self.pattern and not re.fullmatch(self.pattern, part):
            raise self.invalid(f"{part!r} is not of the form {self.pattern}")

    def _check_bounds(self, value: float) -> None:
        # Written so that NaN fails too.
        if self.minimum is not None and not value >= self.minimum:
            raise self.invalid(f"{value} is less than the minimum of {self.minimum}")
        if self.maximum is not None and not value <= self.maximum:
            raise self.invalid(f"{value} is more than the maximum of {self.maximum}")


def setting(default: Any, doc: str, **constraints: Any) -> Any:
    """Declare a setting as a field of a dataclass; its name is the attribute's with `.` for `_`."""
    return field(default=default, metadata={"doc": doc, "constraints": constraints})


def section(owner: "type[Config]") -> "Config":
    """Declare a section of settings as a field of a config."""
    return field(default_factory=owner, metadata={"section": owner})


@cache
def declared(owner: "type[DataclassInstance]") -> Mapping[str, Setting]:
    """Return the settings of a config, sections included, by Kafka's name in declaration order."""
    found: dict[str, Setting] = {}
    for item in fields(owner):
        if "section" in item.metadata:
            for name, inner in declared(item.metadata["section"]).items():
                found[name] = inner._replace(section=item.name)
        elif "doc" in item.metadata:
            declaration = _from_field(item)
            found[declaration.name] = declaration
    return found


def _from_field(item: Field[Any]) -> Setting:
    assert item.default is not MISSING
    constraints = dict(item.metadata["constraints"])
    constraints["synonyms"] = tuple(map(Synonym, constraints.get("synonyms", "").split()))
    type_, nullable = _type_of(item.type)
    return Setting(
        item.name.replace("_", "."),
        type_,
        item.default,
        item.metadata["doc"],
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


def updated(config: "Config", settings: Mapping[str, Setting], texts: Mapping[str, str]) -> "Config":
    """Return a copy of a config with the values of these texts, each in its section."""
    values: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for name, text in texts.items():
        item = settings[name]
        values[item.section][item.attribute] = item.parse(text)
    own = values.pop("", {})
    sections = {name: replace(getattr(config, name), **inner) for name, inner in values.items()}
    return replace(config, **own, **sections)


def inherited(item: Setting, defaults: object) -> Any:
    """Return the default of a topic or group setting: its first synonym with a value, in milliseconds if a time."""
    for synonym in item.synonyms:
        value = getattr(defaults, synonym.attribute)
        if value is not None:
            # -1 hours means no limit, not minus one hour.
            return value if synonym.factor == 1 else max(value * synonym.factor, -1)
    return item.default


def override(defaults: "DataclassInstance", synonyms: str, doc: str) -> Any:
    """Declare a topic or group setting that overrides broker settings: default and bounds are those of the synonyms."""
    first = declared(type(defaults))[synonyms.split()[0]]
    default = inherited(first._replace(synonyms=tuple(map(Synonym, synonyms.split()))), defaults)
    bounds = {name: getattr(first, name) for name in ("minimum", "maximum", "choices", "supported", "special")}
    return setting(default, doc, synonyms=synonyms, **bounds)


def did_you_mean(name: str, known: Mapping[str, object]) -> str:
    """Suggest the known name closest to a misspelt one; empty if none is close."""
    import difflib  # costs 4 ms and is needed only after a mistake

    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; did you mean {matches[0]}?" if matches else ""
