"""Reads an HTTP response within one deadline: a timeout of urllib counts for each read, and for each byte anew."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import AbstractHTTPHandler, HTTPHandler, HTTPSHandler, Request, build_opener

RESPONSE_BYTES_MAX = 16 << 20


class Response(NamedTuple):
    """A response, of any status."""

    status: int
    reason: str
    content: bytes


def read_response(request: Request, timeout_ms: int) -> Response:
    """Send a request and read the whole response; TimeoutError after `timeout_ms`, redirects included."""
    seconds, sockets = timeout_ms / 1000, _Sockets()
    opener = build_opener(_Http(sockets), _Https(sockets))
    timer = threading.Timer(seconds, sockets.shut_down)
    timer.daemon = True
    timer.start()
    try:
        with opener.open(request, timeout=seconds) as response:
            found = Response(response.status, response.reason, response.read(RESPONSE_BYTES_MAX))
    except HTTPError as error:
        found = Response(error.code, str(error.reason), error.read(RESPONSE_BYTES_MAX))
    except Exception:
        sockets.check(timeout_ms)
        raise
    finally:
        timer.cancel()
    sockets.check(timeout_ms)  # a connection that is shut down ends as a complete one
    return found


class _Sockets:
    """The sockets of a request, which a timer shuts down at its deadline."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[socket.socket] = []
        self._is_late = False

    def add(self, found: socket.socket) -> None:
        with self._lock:
            self._found.append(found)
            if self._is_late:
                found.close()

    def shut_down(self) -> None:
        with self._lock:
            self._is_late = True
            for found in self._found:
                with suppress(OSError):  # closed meanwhile
                    socket.socket.shutdown(found, socket.SHUT_RDWR)

    def check(self, timeout_ms: int) -> None:
        """Raise TimeoutError after the deadline."""
        with self._lock:
            if self._is_late:
                raise TimeoutError(f"no complete response within {timeout_ms} ms")


class _Watched(AbstractHTTPHandler):
    """Opens connections whose sockets are known."""

    def __init__(self, sockets: _Sockets) -> None:
        super().__init__()
        self._sockets = sockets

    def do_open(self, http_class: Any, req: Request, **http_conn_args: Any) -> Any:
        def create(host: str, **given: Any) -> Any:
            connection = http_class(host, **given)
            connection.connect = self._watched(connection, connection.connect)
            return connection

        return super().do_open(create, req, **http_conn_args)

    def _watched(self, connection: Any, connect: Callable[[], None]) -> Callable[[], None]:
        def connect_and_watch() -> None:
            connect()
            self._sockets.add(connection.sock)

        return connect_and_watch


class _Http(_Watched, HTTPHandler):
    """http"""


class _Https(_Watched, HTTPSHandler):
    """https"""
