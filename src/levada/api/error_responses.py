"""Error responses of whole requests: each API has its own place for the error code.

Some responses have one error code, others one for each topic, partition or resource of the request. `ITEMS` maps the
lists of such requests to the lists of their responses.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

from levada.errors import ErrorCode, KafkaError
from levada.wire.schema import messages
from levada.wire.schema.fields import Struct, struct_of
from levada.wire.schema.versions import APIS


class Items(NamedTuple):
    """A list of the request, and the list of the response with one item for each of its items."""

    request: str
    response: str
    names: tuple[tuple[str, str], ...]  # field of the response's item, field of the request's item
    inner: "Items | None" = None


def _same(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


_BY_PARTITION = Items("partitions", "partitions", _same("partition_index"))
_BY_INDEX = Items("partition_indexes", "partitions", (("partition_index", ""),))
_RESOURCES = _same("resource_type", "resource_name")

ITEMS: dict[str, Items] = {
    "produce": Items(
        "topic_data",
        "responses",
        _same("name", "topic_id"),
        Items("partition_data", "partition_responses", _same("index")),
    ),
    "fetch": Items(
        "topics",
        "responses",
        _same("topic", "topic_id"),
        Items("partitions", "partitions", (("partition_index", "partition"),)),
    ),
    "list_offsets": Items("topics", "topics", _same("name"), _BY_PARTITION),
    "delete_records": Items("topics", "topics", _same("name"), _BY_PARTITION),
    "offset_for_leader_epoch": Items(
        "topics", "topics", _same("topic"), Items("partitions", "partitions", _same("partition"))
    ),
    "metadata": Items("topics", "topics", _same("name", "topic_id")),
    "create_topics": Items("topics", "topics", _same("name")),
    "delete_topics": Items("topics", "responses", _same("name", "topic_id")),
    "elect_leaders": Items(
        "topic_partitions",
        "replica_election_results",
        _same("topic"),
        Items("partitions", "partition_result", (("partition_id", ""),)),
    ),
    "alter_partition_reassignments": Items("topics", "responses", _same("name"), _BY_PARTITION),
    "create_partitions": Items("topics", "results", _same("name")),
    "describe_topic_partitions": Items("topics", "topics", _same("name")),
    "describe_configs": Items("resources", "results", _RESOURCES),
    "alter_configs": Items("resources", "responses", _RESOURCES),
    "incremental_alter_configs": Items("resources", "responses", _RESOURCES),
    "offset_commit": Items("topics", "topics", _same("name", "topic_id"), _BY_PARTITION),
    "txn_offset_commit": Items("topics", "topics", _same("name"), _BY_PARTITION),
    "offset_fetch": Items("groups", "groups", _same("group_id")),
    "describe_groups": Items("groups", "groups", (("group_id", ""),)),
    "consumer_group_describe": Items("group_ids", "groups", (("group_id", ""),)),
    "delete_groups": Items("groups_names", "results", (("group_id", ""),)),
    "find_coordinator": Items("coordinator_keys", "coordinators", (("key", ""),)),
    "add_partitions_to_txn": Items(
        "transactions",
        "results_by_transaction",
        _same("transactional_id"),
        Items(
            "topics",
            "topic_results",
            _same("name"),
            Items("partitions", "results_by_partition", (("partition_index", ""),)),
        ),
    ),
    "write_txn_markers": Items(
        "markers", "markers", _same("producer_id"), Items("topics", "topics", _same("name"), _BY_INDEX)
    ),
    "describe_producers": Items("topics", "topics", _same("name"), _BY_INDEX),
    "describe_transactions": Items("transactional_ids", "transaction_states", (("transactional_id", ""),)),
}

CODES = ("error_code", "partition_error_code")
# Lists whose error codes are not counted: they are long, and their responses are cached.
UNCOUNTED = {"metadata": "partitions", "describe_topic_partitions": "partitions"}

# A rejected member has no protocol, and keeps the id of its request.
OWN_FIELDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "join_group": lambda request: {"member_id": request.member_id, "protocol_name": None}
}


def error_response(api_key: int, request: Any, error: KafkaError) -> Any:
    """The response with this error for everything in the request."""
    name, shape = APIS[api_key].name, _shape(api_key)
    response = _with_error(shape, error)
    if name in OWN_FIELDS:
        response = replace(response, **OWN_FIELDS[name](request))
    items = ITEMS.get(name)
    return response if items is None else _fill(shape, response, items, request, error)


def error_codes(api_key: int, response: Any) -> list[int]:
    """The error codes in a response, of the whole and of its items."""
    codes: list[int] = []
    _collect_codes(_code_fields(api_key), response, codes)
    return codes


class _CodeFields(NamedTuple):
    """The fields of a struct with error codes, and the lists whose items have some."""

    codes: tuple[str, ...]
    lists: "tuple[tuple[str, _CodeFields], ...]"


@cache
def _code_fields(api_key: int) -> _CodeFields:
    return _code_fields_of(_shape(api_key), UNCOUNTED.get(APIS[api_key].name, ""))


def _code_fields_of(shape: Struct, uncounted: str) -> _CodeFields:
    lists = []
    for field in shape.fields:
        if field.struct is not None and field.is_array and field.name != uncounted:
            inner = _code_fields_of(field.struct, uncounted)
            if inner.codes or inner.lists:
                lists.append((field.name, inner))
    return _CodeFields(tuple(name for name in CODES if shape.find(name) is not None), tuple(lists))


def _collect_codes(fields: _CodeFields, item: Any, codes: list[int]) -> None:
    for name in fields.codes:
        code = getattr(item, name)
        if code:
            codes.append(code)
    for name, inner in fields.lists:
        for each in getattr(item, name) or ():
            _collect_codes(inner, each, codes)


@cache
def _shape(api_key: int) -> Struct:
    api = APIS[api_key]
    return messages.structs(api, api.last, "response")[2]


def _fill(shape: Struct, response: Any, items: Items, request: Any, error: KafkaError) -> Any:
    field = shape.find(items.response)
    assert field is not None and field.struct is not None
    filled = []
    for item in getattr(request, items.request) or ():
        names = {name: getattr(item, source) if source else item for name, source in items.names}
        failed = replace(_with_error(field.struct, error), **names)
        if items.inner is not None:
            failed = _fill(field.struct, failed, items.inner, item, error)
        filled.append(failed)
    return replace(response, **{items.response: tuple(filled)})


def _with_error(shape: Struct, error: KafkaError) -> Any:
    blank = _blank(shape.cls, error.code)
    return replace(blank, error_message=error.detail or None) if hasattr(blank, "error_message") else blank


@lru_cache(1_000)
def _blank(cls: type, code: ErrorCode) -> Any:
    """A response with default fields and the code."""
    shape = struct_of(cls)
    codes = {name: code for name in CODES if shape.find(name) is not None}
    return replace(shape.default(), **codes)
