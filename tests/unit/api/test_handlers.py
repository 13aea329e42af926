"""Declarations of handlers: each API once, and each with a response for errors."""

from dataclasses import replace

import pytest

from levada.api import registry
from levada.api.error_responses import ITEMS, error_response
from levada.api.registry import handlers
from levada.errors import ErrorCode, KafkaError
from levada.wire.schema import messages
from levada.wire.schema.versions import APIS


@pytest.mark.parametrize("name", sorted(handler.name for handler in handlers().values()))
def test_every_api_can_say_that_it_failed(name: str) -> None:
    """In every version; what the request named is named in the answer."""
    key = messages.api_key(name)
    error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a bug")
    api = APIS[key]
    _, _, shape = messages.structs(api, api.last, "request")
    request = shape.default()
    if name in ITEMS:
        field = shape.find(ITEMS[name].request)
        assert field is not None
        item = field.struct.default() if field.struct else "key"
        request = replace(request, **{ITEMS[name].request: (item,)})
    response = error_response(key, request, error)
    for version in handlers()[key].versions:
        assert messages.write_response(key, version, response)
    if name in ITEMS:
        assert len(getattr(response, ITEMS[name].response)) == 1


def test_handlers_are_declared_once() -> None:
    with pytest.raises(AssertionError, match="two handlers"):
        registry.handles("metadata", versions=range(14))(lambda *_: None)
