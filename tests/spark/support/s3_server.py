"""A program: moto's S3 on a free port of the loopback, until standard input ends. It prints its address.

Requests are served one at a time. In S3 a conditional write is atomic, which in moto's threads it is not. The server is
no thread of the tests: `deltalake` holds Python's lock while it waits for a response.
"""

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app  # type: ignore[attr-defined]
from werkzeug.serving import WSGIRequestHandler, make_server


class Quiet(WSGIRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


def main() -> None:
    lock, moto = threading.Lock(), DomainDispatcherApplication(create_backend_app)

    def serial(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with lock:
            return list(moto(environ, start))

    server = make_server("127.0.0.1", 0, serial, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
