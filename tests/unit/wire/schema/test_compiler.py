"""The compiled writers and readers against kio's, for every API and version."""

import dataclasses
from random import Random
from typing import Any

import pytest
from kio.serial import entity_reader
from tests.support.kio_codec import IDS, READ, kio_bytes
from tests.support.random_messages import MESSAGES, kio_class, random_message, random_struct

from levada.errors import ErrorCode, KafkaError
from levada.wire.schema import messages
from levada.wire.schema.versions import SHAPES, Api

EXAMPLES = 6
FOLDED = {"leave_group.response.error_code"}
EMPTY_FOR_NULL = {
    "delete_topics.response.responses.name",
    "join_group.response.protocol_name",
    "metadata.request.topics",
    "metadata.response.topics.name",
}
WRITE = {"request": messages.write_request, "response": messages.write_response}


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
            for one, other in zip(ours, theirs, strict=True):
                assert_carries(one, other, here)
        elif here in FOLDED:
            assert ours == theirs or ours == ErrorCode.NONE
        else:
            assert ours == theirs or (ours is None and here in EMPTY_FOR_NULL and not theirs), here


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
def test_every_version_carries_the_shape(api: Api, kind: str) -> None:
    """What kio reads from our bytes of a version is the shape, in all fields that the version has."""
    random = Random(f"{api.name} {kind} shape")
    for version in messages.versions_known(api.key):
        _, _, shape = messages.structs(api, version, kind)
        carried = 0
        for _ in range(2 * EXAMPLES):
            message = random_struct(random, shape)
            try:
                data = WRITE[kind](api.key, version, message)
            except KafkaError as error:  # two groups, say, where a version has one
                if error.code != ErrorCode.UNSUPPORTED_VERSION:
                    raise
                continue
            old, size = entity_reader(kio_class(api, version, kind))(data, 0)
            assert size == len(data)
            assert_carries(message, old, f"{api.name}.{kind}")
            carried += 1
        assert carried, f"no example fits v{version}"


@pytest.mark.parametrize(("api", "kind"), MESSAGES, ids=IDS)
def test_the_newest_version_is_what_kio_writes(api: Api, kind: str) -> None:
    """The writer alone, against kio's."""
    random = Random(f"{api.name} {kind} newest")
    for _ in range(EXAMPLES):
        message = random_message(random, api, api.last, kind)
        if api.name not in SHAPES:
            assert WRITE[kind](api.key, api.last, message) == kio_bytes(message)
