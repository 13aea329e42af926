"""The golden requests are valid: kio reads every byte of each. Else their mutations would prove nothing."""

import uuid
from typing import Any

import pytest
from kio.index import load_entity_schema
from kio.serial import entity_reader
from kio.static.constants import EntityType
from tests.badinput.golden import apis, golden, versions
from tests.badinput.hostile import mutations


@pytest.mark.parametrize(("api", "version"), [(api, version) for api, _ in apis() for version in versions(api)])
def test_a_golden_request_is_valid(api: str, version: int) -> None:
    request = golden(api, version, uuid.UUID(int=5))
    body = b"".join(piece.data for piece in request.body)
    schema: Any = load_entity_schema(api, version, EntityType.request)
    _, size = entity_reader(schema)(body, 0)
    assert size == len(body)


def test_there_are_thousands_of_mutations() -> None:
    wanted = ("produce", "fetch", "metadata", "create_topics")
    found = [
        frame
        for api in wanted
        for version in versions(api)
        for _, frame in mutations(golden(api, version, uuid.UUID(int=5)))
    ]
    assert len(found) > 2_000
