"""A mypy plugin that reads kio's phantom types as what they are at run time.

kio declares `i32`, `BrokerId`, `TopicName` and the like as classes, but its messages hold plain ints, strings and
timedeltas. With this plugin a handler passes those as they are, instead of converting each value for the checker.
"""

from collections.abc import Callable

from mypy.plugin import AnalyzeTypeContext, Plugin
from mypy.types import Type

INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
PLAIN = {f"kio.static.primitive.{name}": "builtins.int" for name in INTEGERS} | {
    "kio.static.primitive.f64": "builtins.float",
    "kio.static.primitive.Records": "builtins.bytes",
    "kio.static.primitive.i32Timedelta": "datetime.timedelta",
    "kio.static.primitive.i64Timedelta": "datetime.timedelta",
    "kio.static.primitive.TZAware": "datetime.datetime",
    "kio.schema.types.BrokerId": "builtins.int",
    "kio.schema.types.ProducerId": "builtins.int",
    "kio.schema.types.GroupId": "builtins.str",
    "kio.schema.types.TopicName": "builtins.str",
    "kio.schema.types.TransactionalId": "builtins.str",
    "kio.schema.errors.ErrorCode": "builtins.int",  # the broker's own ErrorCode is one too
}


class KioTypes(Plugin):
    """Answers mypy's question what a type's name means."""

    def get_type_analyze_hook(self, fullname: str) -> Callable[[AnalyzeTypeContext], Type] | None:
        plain = PLAIN.get(fullname)
        if plain is None:
            return None
        return lambda context: context.api.named_type(plain, [])


def plugin(version: str) -> type[Plugin]:
    """Where mypy starts."""
    return KioTypes
