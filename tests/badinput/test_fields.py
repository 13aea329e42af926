"""Every field of every request in every version, replaced by extremes, nulls, lies and floods.

The broker answers or hangs up at once, stays up, holds no more memory and logs no trace; healthy clients notice
nothing.
"""

import uuid
from typing import Any

import pytest
from kio.index import load_entity_schema
from kio.serial import entity_reader
from kio.serial.errors import OutOfBoundValue
from kio.static.constants import EntityType
from tests.badinput.broker import Broker, Offender
from tests.badinput.golden import apis, golden, versions
from tests.badinput.hostile import mutations


def is_whole(api: str, version: int, answer: bytes) -> bool:
    """Whether kio reads every byte of an answer, as of this version."""
    schema: Any = load_entity_schema(api, version, EntityType.response)
    _, start = entity_reader(schema.__header_schema__)(answer, 0)
    try:
        _, size = entity_reader(schema)(answer, start)
    except OutOfBoundValue:
        return True  # kio has no word for "at no time", which Kafka writes as -1
    return start + int(size) == len(answer)


@pytest.mark.parametrize("api", [name for name, _ in apis()])
def test_every_field_mutated(api: str, broker: Broker, offender: Offender, topic_id: uuid.UUID) -> None:
    count = 0
    for version in versions(api):
        for what, frame in mutations(golden(api, version, topic_id)):
            count += 1
            try:
                offender.attack(frame)
            except TimeoutError:
                pytest.fail(f"{api} v{version}, {what}: neither an answer nor a closed connection")
            for answer in offender.answers:
                echoes = "\\x" in what and api in (
                    "produce",
                    "fetch",
                )  # these give a topic's name back as it came
                assert echoes or is_whole(api, version, answer), f"{api} v{version}, {what}: a broken answer"
            if count % 500 == 0:
                broker.check_health()
    print(f"{count} cases, {offender.closed} connections closed")


@pytest.mark.parametrize("api", [name for name, _ in apis()])
def test_a_golden_request_is_answered_or_its_api_unknown(
    api: str, broker: Broker, offender: Offender, topic_id: uuid.UUID
) -> None:
    """In all versions alike, but for those of Produce that are advertised and not served."""
    kept = {version: offender.attack(golden(api, version, topic_id).frame()) for version in versions(api)}
    assert len(set(kept.values())) == 1 or api in ("produce", "fetch"), kept
