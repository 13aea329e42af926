"""A proxy before a real registry: counts requests, asks for a password, and fails as gateways do."""

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError
from urllib.request import Request, urlopen


class RegistryProxy(ThreadingHTTPServer):
    """Forwards to a registry."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.requests: list[str] = []
        self.user_info = ""  # required, if any
        self.failures: list[tuple[int, bytes]] = []  # the next responses

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: RegistryProxy

    def do_GET(self) -> None:
        self._forward()

    def do_POST(self) -> None:
        self._forward()

    def _forward(self) -> None:
        proxy = self.server
        proxy.requests.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        wanted = f"Basic {base64.b64encode(proxy.user_info.encode()).decode()}"
        if proxy.failures:
            self._respond(*proxy.failures.pop(0))
        elif proxy.user_info and self.headers.get("Authorization") != wanted:
            self._respond(401, b'{"error_code": 40101, "message": "Unauthorized"}')
        else:
            headers = {"Content-Type": self.headers["Content-Type"]}
            request = Request(proxy.target + self.path, body or None, headers, method=self.command)
            try:
                with urlopen(request, timeout=30) as response:
                    self._respond(response.status, response.read())
            except HTTPError as error:
                self._respond(error.code, error.read())

    def _respond(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def registry_proxy(target: str) -> Iterator[RegistryProxy]:
    with RegistryProxy(target) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
