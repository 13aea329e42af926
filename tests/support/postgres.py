"""A PostgreSQL server for one test, on a free port and in a temporary folder."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.downloads import Unavailable, debian_package

START_S = 60
DEBIAN = Path("/usr/lib/postgresql")  # its server's programs are not on the PATH


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The address of a running server; raises `Unavailable` where none can be had."""
    programs = _programs()
    owner = _owner()
    folder = tempfile.mkdtemp(prefix="levada-postgres-")  # pytest's own folders are closed to other users
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    changes = os.geteuid() != owner.pw_uid

    def call(program: str, *arguments: str) -> None:
        command = [str(programs / program), "-D", f"{folder}/data", *arguments]
        subprocess.run(
            command,
            cwd=folder,
            user=owner.pw_uid if changes else None,
            group=owner.pw_gid if changes else None,
            extra_groups=[] if changes else None,
            stdout=subprocess.DEVNULL,
            timeout=2 * START_S,
            check=True,
        )

    try:
        call(
            "initdb",
            "--no-sync",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
            f"--username={owner.pw_name}",
        )
        port = _free_port()
        settings = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off"
        call("pg_ctl", "start", "-w", "-t", str(START_S), "-l", f"{folder}/log", "-o", settings)
        try:
            yield f"postgresql://{owner.pw_name}@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "stop", "-w", "-m", "immediate")  # nobody needs its data any more
    finally:
        shutil.rmtree(folder)


def _programs() -> Path:
    """The newest server here; root on Debian gets the package when there is none."""
    found = shutil.which("pg_ctl")
    if found is None and not list(DEBIAN.glob("*/bin/pg_ctl")):
        debian_package("postgresql")
    versions = sorted(DEBIAN.glob("*/bin/pg_ctl"), key=lambda path: float(path.parts[-3]))
    if versions:
        return versions[-1].parent
    if found is None:
        raise Unavailable("PostgreSQL is not installed")
    return Path(found).resolve().parent


def _owner() -> pwd.struct_passwd:
    """Who runs the server: it refuses root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise Unavailable("there is no user to run PostgreSQL as")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
