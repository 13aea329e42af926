"""Sends requests to a schema registry over HTTP, and repeats those without a response.

urllib is enough: a process sends a few requests in its life, and what is added here is needed with any library.
"""

import base64
import json
import time
from http.client import HTTPException
from typing import Any
from urllib.request import Request

from levada.spark.errors import SchemaRegistryError
from levada.spark.registry.client import IncompatibleSchema, UnknownSchema
from levada.spark.registry.options import RegistryConnection, without_credentials
from levada.spark.registry.response import Response, read_response

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
BACKOFF_MAX_S = 5.0
RETRIABLE = frozenset({408, 429, 500, 502, 503, 504})
NOT_FOUND, CONFLICT, UNPROCESSABLE = 404, 409, 422
SUCCESS = range(200, 300)
MESSAGE_CHARACTERS_MAX = 500


class _NoResponse(Exception):  # noqa: N818
    """A URL does not respond, or only for now."""


def call(connection: RegistryConnection, method: str, path: str, body: Any = None) -> Any:
    """Send a request to the URLs in turn, again after a while if none responds.

    What one does not know another may: it can have been registered a moment ago. UnknownSchema means that each of them
    responds, and none knows it.
    """
    wait_s, failures = connection.backoff_ms / 1000, dict[str, str]()
    for attempt in range(connection.retries + 1):
        unknown, failures = None, {}
        for url in connection.urls:
            try:
                return _request(connection, url, method, path, body)
            except UnknownSchema as error:
                unknown = error
            except _NoResponse as error:
                failures[url] = str(error)
        if unknown is not None and not failures:
            raise unknown
        if attempt < connection.retries:
            time.sleep(min(wait_s, BACKOFF_MAX_S))
            wait_s *= 2
    why = "; ".join(dict.fromkeys(failures.values()))
    silent = ", ".join(without_credentials(url)[0] for url in failures)
    raise SchemaRegistryError(
        f"the schema registry at {silent} does not respond to {method} {path}: {why}. Check option "
        "schema.registry.url and whether a registry runs there"
    )


def _request(connection: RegistryConnection, url: str, method: str, path: str, body: Any) -> Any:
    plain, user_info = without_credentials(url)
    user_info = connection.user_info or user_info
    headers = {"Accept": f"{CONTENT_TYPE}, application/json", "Content-Type": CONTENT_TYPE}
    data = None if body is None else json.dumps(body).encode()
    request = Request(plain + path, data, headers, method=method)  # noqa: S310 (the option accepts only http)
    if user_info:  # for this host, not for one that it redirects to
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(user_info.encode()).decode()}")
    try:
        response = read_response(request, connection.timeout_ms)
    except (OSError, HTTPException) as error:
        raise _NoResponse(str(getattr(error, "reason", error)) or type(error).__name__) from None
    content = response.content
    if response.status not in SUCCESS:
        raise _NoResponse(_explained(response, plain + path))
    try:
        return json.loads(content)
    except ValueError:
        raise SchemaRegistryError(
            f"{plain}{path} responds with something other than JSON: {content[:80]!r}. Is option "
            "schema.registry.url the address of a schema registry?"
        ) from None


def _explained(response: Response, url: str) -> str:
    """What a registry says; raises unless it makes sense to ask again."""
    status = response.status
    try:
        content = json.loads(response.content)
        message, code = content["message"], content.get("error_code", status)
    except (ValueError, KeyError, TypeError):
        message, code = response.reason, status
    why = f"{str(message)[:MESSAGE_CHARACTERS_MAX]} (HTTP {status}, error code {code})"
    if status == NOT_FOUND and str(code).startswith("404") and code != NOT_FOUND:
        raise UnknownSchema(f"{url}: {why}")
    if status in (CONFLICT, UNPROCESSABLE):
        raise IncompatibleSchema(f"the schema registry at {url} refuses the schema: {why}")
    if status not in RETRIABLE:
        raise SchemaRegistryError(f"the schema registry at {url} refuses the request: {why}")
    return why
