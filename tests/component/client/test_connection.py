"""A client's connection against servers that misbehave: every bad response is a clear error, within bounds."""

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable

import pytest

from levada import Client, ConnectionFailed, KafkaError
from levada.client.connection import RECEIVE_BUFFER_BYTES, Address, Connection
from levada.client.metadata import Api

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

API_VERSIONS = b"\0\0" + b"\x02" + struct.pack(">hhh", 3, 0, 13) + b"\0" + struct.pack(">i", 0) + b"\0"


def frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


async def next_request(reader: asyncio.StreamReader) -> tuple[int, int]:
    """API key and correlation id."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    key, _, correlation_id = struct.unpack_from(">hhi", await reader.readexactly(size))
    return key, correlation_id


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer ApiVersions as a broker does."""
    _, correlation_id = await next_request(reader)
    writer.write(frame(correlation_id, API_VERSIONS))


def against(serve: Serve, work: Callable[[Address], Awaitable[None]]) -> None:
    """Run `work` against a server that treats each connection with `serve`."""

    async def both() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(reader, writer)
                await writer.drain()
                await reader.read()  # until the client leaves
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(20):
            await work(Address("127.0.0.1", port))
        server.close()
        await server.wait_closed()

    asyncio.run(both())


async def connect(address: Address, timeout_s: float = 5.0, **options: int) -> Connection:
    return await Connection.open(address, "test", timeout_s=timeout_s, **options)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is it a Kafka listener without TLS"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "announced a response of"),
        (struct.pack(">i", -5), "announced a response of -5 bytes"),
        (struct.pack(">i", 3) + b"abc", "announced a response of 3 bytes"),
        (struct.pack(">i", 2**31 - 1), "the limit is"),
        (frame(77, API_VERSIONS), r"without a request \(correlation id 77\)"),
        (frame(1, b""), "malformed response"),
        (frame(1, b"\0\0\xff\xff\xff\xff\x0f"), "malformed response"),
        (frame(1, API_VERSIONS[:7]), "malformed response"),
    ],
)
def test_a_malformed_response(response: bytes, message: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await next_request(reader)
        writer.write(response)

    async def work(address: Address) -> None:
        with pytest.raises(ConnectionFailed, match=message):
            await connect(address)

    against(serve, work)


def test_a_broker_that_refuses_the_version() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await next_request(reader)
        writer.write(frame(1, struct.pack(">h", 35) + b"\0\0\0\0"))

    async def work(address: Address) -> None:
        with pytest.raises(KafkaError, match="UNSUPPORTED_VERSION"):
            await connect(address)

    against(serve, work)


def test_a_server_that_says_nothing() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await next_request(reader)

    async def work(address: Address) -> None:
        with pytest.raises(ConnectionFailed, match="does not respond: is it a broker"):
            await connect(address, timeout_s=0.05)

    against(serve, work)


def test_a_server_that_leaves() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await next_request(reader)
        writer.write(struct.pack(">i", 1_000) + b"the beginning")
        await writer.drain()
        writer.close()

    async def work(address: Address) -> None:
        connection = await connect(address)
        waiting = [asyncio.create_task(connection.send(3, 12, b"", timeout_s=5)) for _ in range(3)]
        for task in waiting:
            with pytest.raises(ConnectionFailed, match="closed the connection"):
                await task
        with pytest.raises(ConnectionFailed, match="is closed"):
            await connection.send(3, 12, b"", timeout_s=5)

    against(serve, work)


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 11, 1_000])
def test_frames_arrive_in_any_pieces(piece: int) -> None:
    bodies = [bytes([number]) * (number * 37 % 90) for number in range(20)]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        stream = b""
        for body in bodies:
            _, correlation_id = await next_request(reader)
            stream += frame(correlation_id, body)
        for start in range(0, len(stream), piece):
            writer.write(stream[start : start + piece])
            await writer.drain()
            await asyncio.sleep(0)

    async def work(address: Address) -> None:
        connection = await connect(address)
        responses = await asyncio.gather(
            *(connection.send(1, 4, b"x", timeout_s=5, flexible_response=False) for _ in bodies)
        )
        assert [bytes(response) for response in responses] == bodies
        connection.close()

    against(serve, work)


@pytest.mark.parametrize("size", [0, 100, RECEIVE_BUFFER_BYTES - 8, RECEIVE_BUFFER_BYTES - 7, 1_000_000])
def test_a_large_response_is_received_into_the_given_memory(size: int) -> None:
    """Between small ones, which have memory of their own and do not change when the next comes."""
    bodies = [b"before", os.urandom(size), b"after"]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        correlation_ids = [(await next_request(reader))[1] for _ in bodies]
        writer.write(b"".join(map(frame, correlation_ids, bodies)))

    async def work(address: Address) -> None:
        given: list[bytearray] = []

        def memory(size: int) -> memoryview:
            given.append(bytearray(size))
            return memoryview(given[-1])

        connection = await connect(address)
        responses = await asyncio.gather(
            *(connection.send(1, 4, b"x", timeout_s=5, flexible_response=False, allocate=memory) for _ in bodies)
        )
        assert [bytes(response) for response in responses] == bodies
        assert all(response.readonly for response in responses)
        if size > RECEIVE_BUFFER_BYTES:
            assert [len(area) for area in given] == [size + 4]
        connection.close()

    against(serve, work)


def test_a_response_larger_than_the_limit_is_not_read() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        _, correlation_id = await next_request(reader)
        writer.write(frame(correlation_id, bytes(2_000)))

    async def work(address: Address) -> None:
        connection = await connect(address, response_bytes_max=1_000)
        with pytest.raises(ConnectionFailed, match="2004 bytes, the limit is 1000"):
            await connection.send(3, 12, b"", timeout_s=5)

    against(serve, work)


@pytest.mark.parametrize("tags", [b"\x01", b"\xff\xff\xff\xff\xff\xff", b"\x01\x00\x7f"])
def test_a_malformed_response_header(tags: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        _, correlation_id = await next_request(reader)
        writer.write(frame(correlation_id, tags))

    async def work(address: Address) -> None:
        connection = await connect(address)
        with pytest.raises(ConnectionFailed, match="malformed response header"):
            await connection.send(3, 12, b"", timeout_s=5)

    against(serve, work)


def test_metadata_that_cannot_be_read_and_a_version_that_nobody_knows() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        _, correlation_id = await next_request(reader)
        writer.write(frame(correlation_id, b"\0" + b"\xff" * 30))

    async def work(address: Address) -> None:
        async with Client(str(address)) as client:
            with pytest.raises(KafkaError, match="does not support list_offsets"):
                (await client.connection()).version(Api("list_offsets", 2, range(6, 12)))
            with pytest.raises(KafkaError, match="supports metadata 0-13, this client 20-21"):
                (await client.connection()).version(Api("metadata", 3, range(20, 22)))
            with pytest.raises(ConnectionFailed, match="malformed response"):
                await client.metadata()

    against(serve, work)


def test_a_caller_that_gives_up_disturbs_nobody() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        requests = [await next_request(reader) for _ in range(2)]
        for _, correlation_id in requests:
            writer.write(frame(correlation_id, b"response"))

    async def work(address: Address) -> None:
        connection = await connect(address)
        first = asyncio.create_task(connection.send(1, 4, b"", timeout_s=5, flexible_response=False))
        await asyncio.sleep(0)
        first.cancel()
        assert bytes(await connection.send(1, 4, b"", timeout_s=5, flexible_response=False)) == b"response"
        assert not connection.closed
        await connection.drain_and_close()

    against(serve, work)
