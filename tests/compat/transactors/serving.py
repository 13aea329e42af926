"""Serves transactional producers of Python clients: JSON lines in and out."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def serve(operations: dict[str, Callable[[dict[str, Any]], Any]], error_name: Callable[[Exception], str]) -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        call = json.loads(line)
        try:
            reply = {"ok": operations[call["op"]](call)}
        except Exception as error:
            reply = {"error": error_name(error), "detail": repr(error)}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
    os._exit(0)  # open transactions stay open
