"""Runs kazoo on the event loop: everything that the connection receives reaches the loop, in the order of arrival.

kazoo has a thread of its own for the connection. It would pass watch events and responses to two more threads, and
their order would be lost, by which a watcher knows that what it has read is complete. It also has neither recursive
watches nor reads of many nodes in one request, which ZooKeeper has since 3.6: both are request classes here.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, ConnectionClosedError, KazooException, ZookeeperError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

PERSISTENT_RECURSIVE: Final = 1
RETRY_DELAY_S: Final = 0.05
RETRY_DELAY_MAX_S: Final = 1.0
RESTART_DELAY_S: Final = 1.0
CONNECT_TIMEOUT_S: Final = 1.5  # of a host; a server that is starting accepts connections and does not answer
STOP_TIMEOUT_S: Final = 5.0
_ENDED: Final = (KeeperState.CLOSED, KeeperState.AUTH_FAILED)


class Reply(NamedTuple):
    """A response and the newest transaction that its server had applied."""

    value: Any
    zxid: int


class Listener(NamedTuple):
    """What is called on the loop."""

    connected: Callable[[int, bytes, float], None]  # session id, its password, its timeout in seconds
    disconnected: Callable[[], None]
    session_ended: Callable[[str], None]  # with the reason
    changed: Callable[[str], None]  # with the path of a node that was created, changed or deleted


class KazooConnection:
    """A session of ZooKeeper, and the next one when it has ended."""

    def __init__(self, hosts: str, timeout_s: float, auth: Sequence[tuple[str, str]], listener: Listener) -> None:
        self._hosts = hosts
        self._timeout_s = timeout_s
        self._auth = list(auth)
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._client: KazooClient | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._stopped = False

    def start(self, session: tuple[int, bytes] | None = None) -> None:
        """Begin to connect, to continue a session if one is given."""
        log = logging.getLogger(__name__)
        log.setLevel(logging.ERROR)  # the listener logs lost connections, not each attempt to connect
        client = KazooClient(
            self._hosts,
            timeout=self._timeout_s,
            client_id=session,
            handler=_Handler(),
            auth_data=self._auth,
            connection_retry=KazooRetry(max_tries=-1, delay=RETRY_DELAY_S, max_delay=RETRY_DELAY_MAX_S),
            logger=log,
        )
        client.handler.connect_timeout_s = min(self._timeout_s / (2 * len(client.hosts)), CONNECT_TIMEOUT_S)
        client._connection = _Connection(client, client._conn_retry.copy(), log, self)
        client.add_listener(lambda state: self.deliver(lambda: self._state_changed(client, state)))
        self._client = client
        client.start_async()

    def request(self, request: Any) -> "asyncio.Future[Reply]":
        """Send a request; the future gets its reply or a ZookeeperError, in the order of the connection."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        if self._client is None:
            future.set_exception(ConnectionClosedError())
        else:
            self._client._call(request, _AsyncReply(self, self._client, future))
        return future

    async def stop(self) -> None:
        """Close the session and the connection. An unreachable server ends the session by its timeout."""
        self._stopped = True
        if self._restart is not None:
            self._restart.cancel()
        client, self._client = self._client, None
        if client is not None:
            stopped = asyncio.Event()

            def stop() -> None:
                _stop(client)
                self.deliver(stopped.set)

            threading.Thread(target=stop, name="zookeeper-stop", daemon=True).start()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await stopped.wait()

    def deliver(self, call: Callable[[], None]) -> None:
        """Call on the loop, in the order of the calls of this method; called in the thread of the connection."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def connected(self, client: KazooClient, timeout_s: float) -> None:
        """Notify of a connection; called in its thread."""
        session_id, password = client._session_id, client._session_passwd
        self.deliver(lambda: self._listener.connected(session_id, password, timeout_s))

    def changed(self, path: str) -> None:
        """Notify of a watch event; called in the thread of the connection."""
        self.deliver(lambda: self._listener.changed(path))

    def _state_changed(self, client: KazooClient, state: str) -> None:
        if self._stopped:
            return
        if state == KazooState.SUSPENDED:
            self._listener.disconnected()
        elif state == KazooState.LOST:
            is_denied = client.client_state == KeeperState.AUTH_FAILED
            self._listener.session_ended("authentication failed" if is_denied else "session expired")
            if client.client_state in _ENDED and self._restart is None:
                self._restart = self._loop.call_later(RESTART_DELAY_S, self._start_again, client)

    def _start_again(self, client: KazooClient) -> None:
        """Replace a client that does not connect any more."""
        self._restart = None
        threading.Thread(target=_stop, args=(client,), name="zookeeper-stop", daemon=True).start()
        self.start()


async def end_session(hosts: str, timeout_s: float, session: tuple[int, bytes]) -> bool:
    """Connect to a session to close it; False if it has ended already or no server answers."""
    found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def finish(is_alive: bool) -> None:
        if not found.done():
            found.set_result(is_alive)

    listener = Listener(
        connected=lambda *_: finish(True),
        disconnected=lambda: None,
        session_ended=lambda _: finish(False),
        changed=lambda _: None,
    )
    connection = KazooConnection(hosts, timeout_s, (), listener)
    connection.start(session)
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            return await found
    except TimeoutError:
        return False
    finally:
        await connection.stop()


@dataclass(frozen=True, slots=True)
class AddWatch:
    """The request for a recursive watch of all nodes from a path on."""

    type: ClassVar[int] = 106
    path: str

    def serialize(self) -> bytes:
        """Encode the request."""
        return bytes(serialization.write_string(self.path) + serialization.int_struct.pack(PERSISTENT_RECURSIVE))

    @staticmethod
    def deserialize(response: bytes, offset: int) -> None:
        """Decode the response, which has no content."""


@dataclass(frozen=True, slots=True)
class MultiRead:
    """The request for data (GetData) or children (GetChildren) of many nodes, as of one transaction."""

    type: ClassVar[int] = 22
    operations: list[Any]

    def serialize(self) -> bytes:
        """Encode the request."""
        return bytes(serialization.Transaction(self.operations).serialize())

    @staticmethod
    def deserialize(response: bytes, offset: int) -> list[Any]:
        """Decode data with its stat, or children, or a ZookeeperError for each operation."""
        results: list[Any] = []
        while True:
            header, offset = serialization.MultiHeader.deserialize(response, offset)
            if header.done:
                return results
            if header.type == serialization.GetData.type:
                data, offset = serialization.read_buffer(response, offset)
                stat = serialization.ZnodeStat._make(serialization.stat_struct.unpack_from(response, offset))
                offset += serialization.stat_struct.size
                results.append((data, stat))
            elif header.type == serialization.GetChildren.type:
                children, offset = _read_strings(response, offset)
                results.append(children)
            else:
                (code,) = serialization.int_struct.unpack_from(response, offset)
                offset += serialization.int_struct.size
                results.append(EXCEPTIONS[code]())


def _read_strings(response: bytes, offset: int) -> tuple[list[str], int]:
    (count,) = serialization.int_struct.unpack_from(response, offset)
    offset += serialization.int_struct.size
    found = []
    for _ in range(count):
        text, offset = serialization.read_string(response, offset)
        found.append(text)
    return found, offset


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Starts no threads but that of the connection. Connecting to one host must not take a whole session timeout."""

    connect_timeout_s = 0.0

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = min(kwargs["timeout"], self.connect_timeout_s)
        return super().create_connection(*args, **kwargs)


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """Passes sessions and watch events to the loop; in the thread of the connection."""

    def __init__(self, client: KazooClient, retry: KazooRetry, log: logging.Logger, owner: KazooConnection) -> None:
        super().__init__(client, retry, logger=log)
        self._owner = owner

    def _connect(self, *args: Any) -> Any:
        read_timeout, connect_timeout = super()._connect(*args)
        self._owner.connected(self.client, read_timeout * 1.5 / 1_000)  # kazoo takes two thirds of the session timeout
        return read_timeout, connect_timeout

    def _invoke(self, timeout: float, *args: Any, **kwargs: Any) -> Any:
        return super()._invoke(min(timeout, self.handler.connect_timeout_s), *args, **kwargs)

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        event, _ = serialization.Watch.deserialize(buffer, offset)
        self._owner.changed(event.path)


class _AsyncReply:
    """What kazoo sets to the response of a request; in the thread of the connection."""

    def __init__(self, connection: KazooConnection, client: KazooClient, future: "asyncio.Future[Reply]") -> None:
        self._connection = connection
        self._client = client
        self._future = future

    def set(self, value: Any = None) -> None:
        """Pass a response to the loop."""
        self._finish(self._future.set_result, Reply(value, self._client.last_zxid))

    def set_exception(self, error: Exception) -> None:
        """Pass an error to the loop."""
        is_zookeepers = isinstance(error, ZookeeperError)
        self._finish(self._future.set_exception, error if is_zookeepers else ConnectionClosedError(str(error)))

    def _finish(self, finish: Callable[[Any], None], result: Any) -> None:
        def finish_once() -> None:
            if not self._future.done():  # the caller was cancelled, or kazoo has set it twice
                finish(result)

        self._connection.deliver(finish_once)


def _stop(client: KazooClient) -> None:
    with suppress(KazooException):  # the thread of the connection does not end in time
        client.stop()
        client.close()
