"""Apache Kafka's own jars, for its Java client, its command line tools and side-by-side runs.

They come from Maven Central once (54 MB) and stay in the cache.
"""

from pathlib import Path

from tests.cache import Unavailable, executable, locked, run

KAFKA_VERSION = "4.3.1"

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>levada</groupId><artifactId>kafka-jars</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA_VERSION}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{KAFKA_VERSION}</version></dependency>
</dependencies></project>
"""
_NEEDED = (
    f"kafka_2.13-{KAFKA_VERSION}.jar",
    f"kafka-tools-{KAFKA_VERSION}.jar",
    f"kafka-clients-{KAFKA_VERSION}.jar",
)


def kafka_jars() -> Path:
    """The folder with the jars; downloads them when missing, raises `Unavailable` when that fails."""
    with locked(f"kafka-{KAFKA_VERSION}") as folder:
        if all((folder / jar).exists() for jar in _NEEDED):
            return folder
        maven = executable("mvn")
        pom = folder.parent / f"kafka-{KAFKA_VERSION}.pom.xml"
        pom.write_text(_POM)
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        run([*command, f"-DoutputDirectory={folder}"], cwd=folder.parent, timeout=900)
        if not (folder / _NEEDED[0]).exists():
            raise Unavailable("maven left no Kafka jars")
        return folder


def client_jar(version: str) -> Path:
    """The Java client alone, of another version."""
    with locked(f"kafka-clients-{version}") as folder:
        jar = folder / f"kafka-clients-{version}.jar"
        if not jar.exists():
            command = [executable("mvn"), "-q", "-B", "dependency:copy", f"-DoutputDirectory={folder}"]
            run([*command, f"-Dartifact=org.apache.kafka:kafka-clients:{version}"], cwd=folder)
        return jar


def java(*arguments: str, memory_mb: int = 256, first_jar: Path | None = None) -> list[str]:
    """A command that runs a class or a source file with Kafka's jars, tuned for a short life.

    `first_jar` goes before the others, so that its classes win.
    """
    flags = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", f"-Xmx{memory_mb}m"]
    jars = f"{kafka_jars()}/*" if first_jar is None else f"{first_jar}:{kafka_jars()}/*"
    return [executable("java"), *flags, "-cp", jars, *arguments]
