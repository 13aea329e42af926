"""Requests schemas from a schema registry, and registers them.

A schema never changes under its id, so each Python process keeps those it has requested. An id that the registry does
not know is requested again: it may be registered later. Responses and paths are those of Confluent's registry, which
others (Apicurio, Karapace, Redpanda) offer as well.
"""

from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from levada.spark.errors import SchemaRegistryError
from levada.spark.registry.options import LATEST, RegistryConnection

REFERENCE_DEPTH_MAX = 16
T = TypeVar("T")


class UnknownSchema(SchemaRegistryError):  # noqa: N818
    """The registry has no schema with this id, subject or version."""


class IncompatibleSchema(SchemaRegistryError):  # noqa: N818
    """The registry refuses a schema: it is not compatible with the subject's earlier ones, or not valid."""


class Schema(NamedTuple):
    """A schema with all that it refers to."""

    type: str  # AVRO, JSON or PROTOBUF
    text: str
    id: int | None = None  # None if it does not come from a registry
    references: tuple[tuple[str, str], ...] = ()  # names and texts; those that others refer to come first


class SchemaRegistry:
    """The schemas of one registry."""

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection
        self._by_id: dict[int, Schema] = {}
        self._ids: dict[tuple[str, str, str, bool], int] = {}

    @property
    def url(self) -> str:
        """Its URLs, without credentials, for messages."""
        return self._connection.shown

    def schema(self, schema_id: int) -> Schema:
        """The schema with this id; UnknownSchema if there is none."""
        found = self._by_id.get(schema_id)
        if found is None:
            found = self._by_id[schema_id] = self._resolved(schema_id, self._call("GET", f"/schemas/ids/{schema_id}"))
        return found

    def version(self, subject: str, version: int | str = LATEST) -> Schema:
        """A version of a subject, or its latest; UnknownSchema if there is none."""
        body = self._call("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}")
        return self._resolved(self._field(body, "id", int), body)

    def register(self, subject: str, kind: str, text: str) -> int:
        """The id of a schema, registered under a subject if it is not yet."""
        return self._id_of(subject, kind, text, registers=True)

    def lookup(self, subject: str, kind: str, text: str) -> int:
        """The id of a schema that is registered under a subject; UnknownSchema if it is not."""
        return self._id_of(subject, kind, text, registers=False)

    def _id_of(self, subject: str, kind: str, text: str, *, registers: bool) -> int:
        key = (subject, kind, text, registers)
        if key not in self._ids:
            path = f"/subjects/{quote(subject, safe='')}" + ("/versions" if registers else "")
            body = {"schema": text} | ({} if kind == "AVRO" else {"schemaType": kind})
            self._ids[key] = self._field(self._call("POST", path, body), "id", int)
        return self._ids[key]

    def _resolved(self, schema_id: int, body: Any, depth: int = 0) -> Schema:
        """A schema with those that it refers to."""
        if depth > REFERENCE_DEPTH_MAX:
            raise SchemaRegistryError(f"the schema registry at {self.url} has references in a circle: id {schema_id}")
        text, references = self._field(body, "schema", str), dict[str, str]()
        for one in self._field(body, "references", list) if body.get("references") else ():
            subject, version = self._field(one, "subject", str), self._field(one, "version", int)
            path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
            found = self._resolved(-1, self._call("GET", path), depth + 1)
            references |= dict(found.references) | {self._field(one, "name", str): found.text}
        return Schema(body.get("schemaType") or "AVRO", text, schema_id, tuple(references.items()))

    def _field(self, body: Any, name: str, kind: type[T]) -> T:
        """A field of a response; SchemaRegistryError if it is missing: another service has the URL."""
        found = body.get(name) if isinstance(body, dict) else None
        if not isinstance(found, kind):
            raise SchemaRegistryError(
                f"the schema registry at {self.url} responds without the {name} of a schema: {str(body)[:80]}. "
                "Is option schema.registry.url the address of a schema registry?"
            )
        return found

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        from levada.spark.registry.http import call  # loads modules that a query without a registry does not need

        return call(self._connection, method, path, body)


_registries: dict[RegistryConnection, SchemaRegistry] = {}


def schema_registry(connection: RegistryConnection) -> SchemaRegistry:
    """The registry of a connection, one for each process; Spark uses its Python workers for many tasks."""
    if connection not in _registries:
        _registries[connection] = SchemaRegistry(connection)
    return _registries[connection]
