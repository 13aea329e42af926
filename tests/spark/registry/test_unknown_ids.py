"""Ids that no registry knows: each other URL is asked, and a task asks for a limited number. No registry is needed."""

import json
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.support.registry_proxy import RegistryProxy, registry_proxy

from levada.spark import errors
from levada.spark.errors import SchemaRegistryError, warn
from levada.spark.formats.rows import decode_rows
from levada.spark.read.options import read_options
from levada.spark.registry.client import Schema, SchemaRegistry, UnknownSchema
from levada.spark.registry.options import UNKNOWN_IDS_MAX, RegistryConnection
from levada.spark.registry.reading import column_decoder
from levada.spark.registry.wire_format import WARNINGS_MAX, RegistryDecoder, prefix

UNKNOWN = (404, b'{"error_code": 40403, "message": "Schema not found"}')
KNOWN = (200, json.dumps({"schema": '"string"'}).encode())
BUSY = (503, b"busy")


@pytest.fixture
def servers() -> Iterator[list[RegistryProxy]]:
    """Two URLs, which respond with what a test gives them."""
    with ExitStack() as opened:
        yield [opened.enter_context(registry_proxy("")) for _ in range(2)]


def registry(*servers: RegistryProxy) -> SchemaRegistry:
    return SchemaRegistry(RegistryConnection(tuple(server.url for server in servers), backoff_ms=1))


class _Texts:
    """Decodes values as text, after the id of their schema."""

    def __init__(self, schema: Schema) -> None:
        self._id = schema.id

    def decode(self, values: Any) -> tuple[Any, Any]:
        return decode_rows(values, lambda value: f"{self._id} {value.decode()}", pa.string())


def decode(source: SchemaRegistry, *values: bytes | None) -> tuple[list[str | None], list[bool]]:
    found, bad = RegistryDecoder(source, pa.string(), _Texts).decode(pa.array(values, pa.binary()))
    return found.to_pylist(), bad.to_pylist()


def test_an_id_that_one_url_does_not_know_yet_is_known_by_the_next(servers: list[RegistryProxy]) -> None:
    behind, leader = servers
    behind.failures, leader.failures = [UNKNOWN], [KNOWN]
    assert decode(registry(behind, leader), prefix(7) + b"a") == (["7 a"], [False])


@pytest.mark.parametrize(
    "response",
    [b'{"status": "ok"}', b'["ok"]', b"1", b'{"schema": 1, "id": "a"}', b'{"schema": "", "id": null, "references": 3}'],
)
def test_a_service_that_is_no_registry_is_named(servers: list[RegistryProxy], response: bytes) -> None:
    source = registry(servers[0])
    for request in (
        lambda: source.schema(7),
        lambda: source.version("s"),
        lambda: source.register("s", "AVRO", '"int"'),
        lambda: source.lookup("s", "AVRO", '"int"'),
    ):
        servers[0].failures = [(200, response)]
        with pytest.raises(SchemaRegistryError, match=rf"at {servers[0].url} responds without .*address of a schema"):
            request()


def test_an_id_is_unknown_if_all_urls_respond_and_none_knows_it(servers: list[RegistryProxy]) -> None:
    servers[0].failures, servers[1].failures = [UNKNOWN], [UNKNOWN]
    with pytest.raises(UnknownSchema, match="schemas/ids/7: Schema not found"):
        registry(*servers).schema(7)
    servers[0].failures, servers[1].failures = [UNKNOWN, UNKNOWN], [BUSY, KNOWN]
    assert registry(*servers).schema(7).text == '"string"'
    assert not servers[0].failures and not servers[1].failures


@pytest.mark.parametrize("silent", [0, 1])
def test_an_id_is_not_unknown_while_a_url_that_may_know_it_does_not_respond(
    servers: list[RegistryProxy], silent: int
) -> None:
    """The value may be valid: it must not go to the dead-letter topic."""
    behind, leader = servers[1 - silent], servers[silent]
    behind.failures, leader.failures = [UNKNOWN] * 4, [BUSY] * 4
    with pytest.raises(SchemaRegistryError, match=rf"at {leader.url} does not respond to GET /schemas/ids/7") as caught:
        registry(*servers).schema(7)
    assert not isinstance(caught.value, UnknownSchema)
    assert not behind.failures and not leader.failures


def test_a_task_fails_after_too_many_unknown_ids(servers: list[RegistryProxy]) -> None:
    server = servers[0]
    values = [prefix(number) for number in range(1, 5 * UNKNOWN_IDS_MAX)]
    server.failures = [UNKNOWN] * len(values)
    message = f"at {server.url} does not know {UNKNOWN_IDS_MAX + 1} schema ids of a task: the values are not"
    with (
        pytest.warns(UserWarning, match="malformed") as shown,
        pytest.raises(SchemaRegistryError, match=message) as caught,
    ):
        decode(registry(server), *values)
    assert not isinstance(caught.value, UnknownSchema)
    assert len(server.requests) == UNKNOWN_IDS_MAX + 1
    assert len(shown) == WARNINGS_MAX + 1


@pytest.mark.parametrize("limit", [1, UNKNOWN_IDS_MAX + 1])
def test_the_limit_is_an_option_of_readers(servers: list[RegistryProxy], limit: int) -> None:
    server = servers[0]
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "keyFormat": "json", "keySchema": "a int"}
    given |= {"schema.registry.url": server.url, "schema.registry.max.unknown.ids": str(limit)}
    form = read_options(given).column_format("key")
    assert form is not None
    kind = pa.struct({"a": pa.int32()})
    decoder = column_decoder(form, None, kind)
    values = [prefix(number) for number in range(1, limit + 2)]
    server.failures = [UNKNOWN] * len(values)
    with (
        pytest.warns(UserWarning, match="malformed"),
        pytest.raises(SchemaRegistryError, match=r"raise option schema\.registry\.max\.unknown\.ids"),
    ):
        decoder.decode(pa.array(values, pa.binary()))
    assert len(server.requests) == limit + 1


def test_values_of_unknown_ids_are_malformed_up_to_the_limit(servers: list[RegistryProxy]) -> None:
    server = servers[0]
    values = [prefix(number) for number in range(1, UNKNOWN_IDS_MAX + 1)]
    server.failures = [*[UNKNOWN] * len(values), KNOWN]
    with pytest.warns(UserWarning, match=r"values with .* malformed"):
        found, bad = decode(registry(server), *values, *values, prefix(1000) + b"a")
    assert found == [None] * 2 * UNKNOWN_IDS_MAX + ["1000 a"]
    assert bad == [True] * 2 * UNKNOWN_IDS_MAX + [False]
    assert len(server.requests) == UNKNOWN_IDS_MAX + 1


def test_rows_of_many_schemas_keep_their_order(servers: list[RegistryProxy]) -> None:
    server, ids = servers[0], [number * 7 % 300 + 1 for number in range(900)]
    server.failures = [KNOWN] * 300
    values: list[bytes | None] = [prefix(number) + str(row).encode() for row, number in enumerate(ids)]
    wanted: list[str | None] = [f"{number} {row}" for row, number in enumerate(ids)]
    values[5::50], wanted[5::50] = [None] * 18, [None] * 18
    values[6::50], wanted[6::50] = [b"plain"] * 18, [None] * 18
    found, bad = decode(registry(server), *values)
    assert found == wanted
    assert bad == [value == b"plain" for value in values]
    assert len(server.requests) == len({value[:5] for value in values if value and value[0] == 0})


def test_warnings_that_were_shown_are_forgotten_some_day() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for number in range(2 * errors.WARNED_MAX):
            warn(f"warning {number}")
            warn(f"warning {number}")
    assert 0 <= len(shown) - 2 * errors.WARNED_MAX < 5  # some twice
    assert len(errors._warned) <= errors.WARNED_MAX + 1
