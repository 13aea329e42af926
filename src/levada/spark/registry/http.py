"""Sends requests to a schema registry over HTTP, and repeats those without a response.

urllib is enough: a process sends a few requests in its life, and what is added here is needed with any library.
"""

import base64
import json
import time
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from levada.spark.errors import SchemaRegistryError
from levada.spark.registry.client import IncompatibleSchema, UnknownSchema
from levada.spark.registry.options import RegistryConnection, without_credentials

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
BACKOFF_MAX_S = 5.0
RETRIABLE = frozenset({408, 429, 500, 502, 503, 504})
NOT_FOUND, CONFLICT, UNPROCESSABLE = 404, 409, 422
RESPONSE_BYTES_MAX = 16 << 20
MESSAGE_CHARACTERS_MAX = 500


class _NoResponse(Exception):  # noqa: N818
    """A URL does not respond, or only for now."""


def call(connection: RegistryConnection, method: str, path: str, body: Any = None) -> Any:
    """Send a request to the URLs in turn, again after a while if none responds.

    What one does not know another may: it can have been registered a moment ago. UnknownSchema means that of those that
    respond none knows it.
    """
    wait_s, failures = connection.backoff_ms / 1000, {}
    for attempt in range(connection.retries + 1):
        unknown = None
        for url in connection.urls:
            try:
                return _request(connection, url, method, path, body)
            except UnknownSchema as error:
                unknown = error
            except _NoResponse as error:
                failures[url] = str(error)
        if unknown is not None:
            raise unknown
        if attempt < connection.retries:
            time.sleep(min(wait_s, BACKOFF_MAX_S))
            wait_s *= 2
    why = "; ".join(dict.fromkeys(failures.values()))
    raise SchemaRegistryError(
        f"the schema registry at {connection.shown} does not respond to {method} {path}: {why}. Check option "
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
        with urlopen(request, timeout=connection.timeout_ms / 1000) as response:  # noqa: S310
            content = response.read(RESPONSE_BYTES_MAX)
    except HTTPError as error:
        raise _NoResponse(_explained(error, plain + path)) from None
    except (OSError, HTTPException) as error:
        raise _NoResponse(str(getattr(error, "reason", error)) or type(error).__name__) from None
    try:
        return json.loads(content)
    except ValueError:
        raise SchemaRegistryError(
            f"{plain}{path} responds with something other than JSON: {content[:80]!r}. Is option "
            "schema.registry.url the address of a schema registry?"
        ) from None


def _explained(error: HTTPError, url: str) -> str:
    """What a registry says; raises unless it makes sense to ask again."""
    try:
        content = error.read(RESPONSE_BYTES_MAX)
    except (OSError, HTTPException):
        content = b""
    try:
        message, code = json.loads(content)["message"], json.loads(content).get("error_code", error.code)
    except (ValueError, KeyError, TypeError):
        message, code = error.reason, error.code
    why = f"{str(message)[:MESSAGE_CHARACTERS_MAX]} (HTTP {error.code}, error code {code})"
    if error.code == NOT_FOUND and str(code).startswith("404") and code != NOT_FOUND:
        raise UnknownSchema(f"{url}: {why}") from None
    if error.code in (CONFLICT, UNPROCESSABLE):
        raise IncompatibleSchema(f"the schema registry at {url} refuses the schema: {why}") from None
    if error.code not in RETRIABLE:
        raise SchemaRegistryError(f"the schema registry at {url} refuses the request: {why}") from None
    return why
