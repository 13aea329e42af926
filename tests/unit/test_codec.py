"""The compiled writers and readers against kio's, for every API and version."""

import dataclasses
import io
from random import Random
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer
from tests.unit.messages_at_random import MESSAGES, kio_class, random_message

from levada.wire import messages
from levada.wire.versions import Api

EXAMPLES = 6
IDS = [f"{api.name}-{kind}" for api, kind in MESSAGES]

READ = {"request": messages.read_request, "response": messages.read_response}
WRITE = {"request": messages.write_request, "response": messages.write_response}


def kio_bytes(message: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def assert_carries(shape: Any, old: Any, path: str) -> None:
    """Every field that both have is equal, all the way down."""
    for field in dataclasses.fields(old):
        if not hasattr(shape, field.name):
            continue
        ours, theirs = getattr(shape, field.name), getattr(old, field.name)
        here = f"{path}.{field.name}"
        if dataclasses.is_dataclass(theirs):
            assert_carries(ours, theirs, here)
        elif isinstance(theirs, tuple) and theirs and dataclasses.is_dataclass(theirs[0]):
            assert len(ours) == len(theirs), here
            for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                assert_carries(one, other, f"{here}[{index}]")
        elif here == "metadata.request.topics":
            assert (ours or ()) == (theirs or ())
        else:
            assert ours == theirs, here


@pytest.mark.parametrize(("api", "kind"), MESSAGES, ids=IDS)
def test_reads_and_writes_what_kio_writes(api: Api, kind: str) -> None:
    """Bytes of a version, read into the shape and written again, are the same bytes: nothing is lost on the way."""
    random = Random(f"{api.name} {kind}")
    for version in messages.versions_known(api.key):
        for _ in range(EXAMPLES):
            old = random_message(random, api, version, kind)
            data = kio_bytes(old)
            shape = READ[kind](api.key, version, memoryview(data), 0)
            assert_carries(shape, old, f"{api.name}.{kind}")
            assert WRITE[kind](api.key, version, shape) == data, f"v{version}: {old}"


@pytest.mark.parametrize(("api", "kind"), MESSAGES, ids=IDS)
def test_older_versions_carry_the_shape(api: Api, kind: str) -> None:
    """What kio reads from our bytes of an old version is what the shape said, in all fields that version has."""
    random = Random(f"{api.name} {kind} older")
    for version in messages.versions_known(api.key):
        for _ in range(EXAMPLES):
            shape = READ[kind](api.key, version, kio_bytes(random_message(random, api, version, kind)))
            data = WRITE[kind](api.key, version, shape)
            old, size = entity_reader(kio_class(api, version, kind))(data, 0)
            assert size == len(data)
            assert_carries(shape, old, f"{api.name}.{kind}")
