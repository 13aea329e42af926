"""Runs `levada` commands as people and scripts do, in this process or in one of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from levada.cli.main import run

TIMEOUT_S = 60  # no command takes so long; a hang must not stop the tests


class Ended:
    """How a command ended."""

    def __init__(self, code: int | None, out: bytes, err: bytes) -> None:
        self.code = code
        self.out = out.decode(errors="surrogateescape")
        self.err = err.decode()

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    def lines(self) -> list[str]:
        assert self.code == 0, self.err
        return self.out.splitlines()


class Shell:
    """Runs `levada` against the broker of the test."""

    def __init__(self, bootstrap: str) -> None:
        self.environment = {**os.environ, "LEVADA_BOOTSTRAP": bootstrap}
        self.environment.pop("NO_COLOR", None)

    def __call__(
        self, *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] = MappingProxyType({})
    ) -> Ended:
        """Run a command in this process, which saves the time of starting one."""
        out, err = TextIOWrapper(BytesIO()), TextIOWrapper(BytesIO())
        with (
            TemporaryFile("w+", newline="") as file,
            patch.dict(os.environ, {**self.environment, **environment}),
        ):
            file.buffer.write(stdin)
            file.seek(0)
            with redirect_stdout(out), redirect_stderr(err), patch("sys.stdin", file):
                try:
                    code: int | None = run(list(arguments))
                except SystemExit as ending:  # the way completion ends
                    code = int(ending.code or 0)
                out.flush()
                err.flush()
        return Ended(code, out.buffer.getvalue(), err.buffer.getvalue())

    def apart(self, *arguments: str, stdin: bytes = b"") -> Ended:
        """Run a command in a process of its own."""
        process = subprocess.run(
            [sys.executable, "-m", "levada", *arguments],
            input=stdin,
            capture_output=True,
            env=self.environment,
            timeout=TIMEOUT_S,
        )
        return Ended(process.returncode, process.stdout, process.stderr)

    def start(self, *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-m", "levada", *arguments], env=self.environment, **options)
