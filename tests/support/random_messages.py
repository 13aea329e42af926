"""Random messages of any API and version, made from the fields of kio's classes with values at their limits."""

import importlib
from datetime import UTC, datetime, timedelta
from random import Random
from struct import Struct as Packer
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from levada.wire.schema.fields import Field, Struct, struct_of
from levada.wire.schema.messages import response_header_is_flexible
from levada.wire.schema.versions import APIS, Api

MESSAGES = [(api, kind) for api in APIS.values() for kind in ("request", "response")]
TEXTS = ["", "a", "orders", "é✓", "x" * 126, "y" * 127, "z" * 300, "q" * 20_000]
ERRORS = list(ErrorCode)
CORRELATION_ID = Packer(">i")


def kio_class(api: Api, version: int, kind: str) -> Any:
    name = "".join(part.title() for part in api.name.split("_")) + kind.title()
    return getattr(importlib.import_module(f"kio.schema.{api.name}.v{version}"), name)


def read_response_header(api_key: int, version: int, frame: bytes) -> tuple[int, int]:
    """The correlation id of a response behind its size, and where its body starts."""
    (correlation_id,) = CORRELATION_ID.unpack_from(frame)
    if not response_header_is_flexible(api_key, version):
        return correlation_id, CORRELATION_ID.size
    assert frame[CORRELATION_ID.size] == 0, "tagged fields in a header"
    return correlation_id, CORRELATION_ID.size + 1


def random_message(random: Random, api: Api, version: int, kind: str) -> Any:
    return random_struct(random, struct_of(kio_class(api, version, kind)))


def random_struct(random: Random, struct: Struct) -> Any:
    return struct.cls(**{field.name: random_field(random, field) for field in struct.fields})


def random_field(random: Random, field: Field) -> Any:
    if random.random() < 0.2 and (field.tag is not None or field.nullable):
        return field.default if field.tag is not None else None
    if field.is_array:
        count = random.choice([0, 1, 1, 2, 3]) if field.struct else random.choice([0, 1, 1, 1, 2, 3, 127, 200])
        return tuple(random_value(random, field) for _ in range(count))
    return random_value(random, field)


def random_value(random: Random, field: Field) -> Any:
    if field.struct is not None:
        return random_struct(random, field.struct)
    kind = field.kafka_type
    if kind == "string":
        return random.choice(TEXTS[:-1] if field.is_array else TEXTS)
    if kind in ("bytes", "records"):
        return random.choice([b"", b"\0", bytes(126), bytes(127), bytes(random.randrange(2_000))])
    if kind == "uuid":
        return random.choice([UUID(int=random.getrandbits(128)), None])
    if kind == "bool":
        return random.random() < 0.5
    if kind == "float64":
        return random.choice([0.0, -1.5, random.random(), 1e300])
    if kind == "error_code":
        return random.choice(ERRORS)
    if kind == "datetime_i64":
        return datetime.fromtimestamp(random.randrange(2**33), UTC)
    if kind.startswith("timedelta"):
        return timedelta(milliseconds=integer(random, "int32" if kind.endswith("32") else "int40"))
    return integer(random, kind)


def integer(random: Random, kind: str) -> int:
    bits = int(kind.lstrip("uint"))
    low, high = (0, (1 << bits) - 1) if kind.startswith("u") else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return random.choice((low, high, 0, 1, max(low, -1), random.randint(low, high)))
