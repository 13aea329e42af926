"""Requests to a registry: each schema once, again after failures, and errors that name the URL."""

import json
from collections.abc import Iterator
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Event, Thread
from uuid import uuid4

import pytest
from confluent_kafka.schema_registry import Schema as ConfluentSchema
from confluent_kafka.schema_registry import SchemaReference
from tests.spark.support.confluent import Confluent
from tests.spark.support.registry_proxy import RegistryProxy, registry_proxy

from levada.spark.errors import SchemaRegistryError
from levada.spark.formats.avro import AvroSchema
from levada.spark.registry.client import IncompatibleSchema, SchemaRegistry, UnknownSchema, schema_registry
from levada.spark.registry.options import RegistryConnection

TEXT = '{"type":"record","name":"A","fields":[{"name":"a","type":"int"}]}'


@pytest.fixture
def proxy(registry: str) -> Iterator[RegistryProxy]:
    with registry_proxy(registry) as own:
        yield own


def client(proxy: RegistryProxy, *before: str, user_info: str = "") -> SchemaRegistry:
    return SchemaRegistry(RegistryConnection((*before, proxy.url), user_info, backoff_ms=1))


def test_each_schema_is_requested_and_registered_once(proxy: RegistryProxy) -> None:
    registry, subject = client(proxy), f"{uuid4()}/value"
    number = registry.register(subject, "AVRO", TEXT)
    assert registry.register(subject, "AVRO", TEXT) == number
    assert registry.schema(number) == registry.schema(number)
    assert json.loads(registry.schema(number).text) == json.loads(TEXT)
    assert len(proxy.requests) == 2
    assert (
        registry.lookup(subject, "AVRO", TEXT)
        == registry.version(subject).id
        == registry.version(subject, 1).id
        == number
    )
    one = RegistryConnection((proxy.url,))
    assert schema_registry(one) is schema_registry(RegistryConnection((proxy.url,)))


def test_an_unknown_id_is_requested_again(proxy: RegistryProxy) -> None:
    registry = client(proxy)
    for _ in range(2):
        with pytest.raises(UnknownSchema, match=rf"{proxy.url}/schemas/ids/999996.*not found.*40403"):
            registry.schema(999_996)
    assert len(proxy.requests) == 2
    with pytest.raises(UnknownSchema, match="no-such-subject"):
        registry.version("no-such-subject")


def test_failures_of_a_gateway_are_retried(proxy: RegistryProxy) -> None:
    registry = client(proxy)
    number = registry.register(str(uuid4()), "AVRO", TEXT)
    proxy.failures = [(503, b"busy"), (429, b"{}"), (500, b"")]
    assert client(proxy).schema(number) == registry.schema(number)
    proxy.failures = [(503, b"busy")] * 4
    with pytest.raises(SchemaRegistryError, match=rf"at {proxy.url} does not respond to GET .*HTTP 503"):
        client(proxy).schema(number)
    assert not proxy.failures


def test_the_next_url_is_asked_if_one_does_not_respond(proxy: RegistryProxy) -> None:
    assert client(proxy, "http://127.0.0.1:1").register(str(uuid4()), "AVRO", TEXT) > 0


def test_a_password_is_in_the_option_or_the_url_and_never_in_a_message(proxy: RegistryProxy) -> None:
    proxy.user_info = "me:p@ss"
    with pytest.raises(SchemaRegistryError, match=r"refuses the request: Unauthorized \(HTTP 401, error code 40101\)"):
        client(proxy).version("any")
    with_password = RegistryConnection((proxy.url.replace("//", "//me:p%40ss@"),), backoff_ms=1)
    for registry in (client(proxy, user_info="me:p@ss"), SchemaRegistry(with_password)):
        with pytest.raises(UnknownSchema) as caught:
            registry.version("no-such-subject")
        assert "p@ss" not in str(caught.value) and "p%40ss" not in str(caught.value)
        assert registry.url == proxy.url


def test_what_is_no_registry_is_recognised(proxy: RegistryProxy) -> None:
    proxy.failures = [(200, b"<html>"), (404, b"<html>"), (422, b'{"error_code": 42201, "message": "Invalid"}')]
    with pytest.raises(SchemaRegistryError, match="something other than JSON"):
        client(proxy).schema(1)
    with pytest.raises(SchemaRegistryError, match="refuses the request: Not Found") as caught:
        client(proxy).schema(1)
    assert not isinstance(caught.value, UnknownSchema)
    with pytest.raises(IncompatibleSchema, match="Invalid"):
        client(proxy).register("s", "AVRO", "{")


def test_references_come_with_a_schema(confluent: Confluent, proxy: RegistryProxy) -> None:
    subject = str(uuid4())
    confluent.client.register_schema(f"{subject}-a", ConfluentSchema(TEXT, "AVRO"))
    outer = '{"type":"record","name":"B","fields":[{"name":"a","type":"A"}]}'
    references = [SchemaReference("A", f"{subject}-a", 1)]
    number = confluent.client.register_schema(subject, ConfluentSchema(outer, "AVRO", references))
    found = client(proxy).schema(number)
    assert [name for name, _ in found.references] == ["A"]
    kind = AvroSchema(found.text, [text for _, text in found.references]).type
    assert kind.simpleString() == "struct<a:struct<a:int>>"


class _Trickle(BaseRequestHandler):
    """Sends a valid response byte by byte, each sooner than a read times out, until the client is gone."""

    def handle(self) -> None:
        self.request.recv(4096)
        server = self.server
        assert isinstance(server, _TrickleServer)
        try:
            self.request.sendall(server.at_once)
            for byte in server.slowly:
                self.request.sendall(bytes([byte]))
                if server.stopped.wait(0.05):
                    return
        except OSError:
            server.cut.set()


class _TrickleServer(ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, at_once: bytes, slowly: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Trickle)
        self.at_once, self.slowly = at_once, slowly
        self.cut, self.stopped = Event(), Event()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1020\r\n"
BODY = b" " * 1000 + b'{"schema":"\\"int\\""}'


@pytest.mark.parametrize(("at_once", "slowly"), [(HEAD + b"\r\n", BODY), (b"", HEAD * 20 + b"\r\n" + BODY)])
def test_a_response_has_one_deadline(at_once: bytes, slowly: bytes) -> None:
    with _TrickleServer(at_once, slowly) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        slow = RegistryConnection((f"http://127.0.0.1:{server.server_address[1]}",), timeout_ms=300, retries=0)
        try:
            with pytest.raises(SchemaRegistryError, match="no complete response within 300 ms"):
                SchemaRegistry(slow).schema(1)
            assert server.cut.wait(60)
        finally:
            server.stopped.set()
            server.shutdown()
