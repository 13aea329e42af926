"""The stock Spark connector, `spark-sql-kafka-0-10`, for tests and side-by-side runs.

Its parts are fetched one by one, without what their poms ask for: not every version that they name can be had from
Maven Central, and the rest is already in pyspark. The set is the one that works with the pyspark of this project.
"""

from functools import cache
from pathlib import Path

from tests.support.downloads import Unavailable, executable, locked, run

CONNECTOR_VERSION = "4.2.0"
_PARTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR_VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)


def stock_connector() -> list[Path]:
    """The jars (10 MB); downloads them when missing, raises `Unavailable` when that fails."""
    found = _found()
    if isinstance(found, Unavailable):
        raise found
    return found


@cache  # a session without them stays without, also if Maven Central can be reached a minute later
def _found() -> list[Path] | Unavailable:
    try:
        with locked(f"spark-kafka-{CONNECTOR_VERSION}") as folder:
            return [fetched(folder, *part) for part in _PARTS]
    except Unavailable as reason:
        return reason


def stock_settings() -> dict[str, str]:
    """For a session that can use the connector; nothing where it cannot be had."""
    try:
        return {"spark.jars": ",".join(map(str, stock_connector()))}
    except Unavailable:
        return {}


def fetched(folder: Path, group: str, artifact: str, version: str) -> Path:
    """One jar of Maven Central, in a folder of the cache that is held."""
    jar = folder / f"{artifact}-{version}.jar"
    if not jar.exists():
        command = [executable("mvn"), "-q", "-B", "dependency:copy", f"-DoutputDirectory={folder}"]
        run([*command, f"-Dartifact={group}:{artifact}:{version}"], cwd=folder)
        if not jar.exists():
            raise Unavailable(f"maven left no {jar.name}")
    return jar
