"""Apache Kafka's own jars, for its Java client, its command line tools and side-by-side runs.

They come from Maven Central once (54 MB) and stay in the cache.
"""

from pathlib import Path

from tests.support.downloads import Unavailable, executable, locked, run

KAFKA_VERSION = "4.3.1"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>levada</groupId><artifactId>kafka-jars</artifactId><version>1</version><dependencies>{}</dependencies></project>
"""
_DEPENDENCY = """
<dependency><groupId>org.apache.kafka</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"""


def kafka_jars() -> Path:
    """The server, the tools and the client; downloads them when missing, raises `Unavailable` when that fails."""
    return _with_dependencies(f"kafka-{KAFKA_VERSION}", "kafka_2.13", "kafka-tools")


def streams_jars() -> Path:
    """Kafka Streams with its client and RocksDB (92 MB)."""
    return _with_dependencies(f"kafka-streams-{KAFKA_VERSION}", "kafka-streams")


def _with_dependencies(name: str, *artifacts: str) -> Path:
    """A folder with the jars of Kafka's artifacts and all they need."""
    with locked(name) as folder:
        needed = [folder / f"{artifact}-{KAFKA_VERSION}.jar" for artifact in (*artifacts, "kafka-clients")]
        if all(jar.exists() for jar in needed):
            return folder
        maven = executable("mvn")
        pom = folder.parent / f"{name}.pom.xml"
        pom.write_text(_POM.format("".join(_DEPENDENCY.format(artifact, KAFKA_VERSION) for artifact in artifacts)))
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        run([*command, f"-DoutputDirectory={folder}"], cwd=folder.parent, timeout=900)
        if not needed[0].exists():
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


def java(*arguments: str, memory_mb: int = 256, jars: Path | None = None, first_jar: Path | None = None) -> list[str]:
    """A command that runs a class or a source file with Kafka's jars, tuned for a short life.

    `jars` is another folder of them; `first_jar` goes before the others, so that its classes win.
    """
    flags = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", f"-Xmx{memory_mb}m"]
    path = f"{jars or kafka_jars()}/*"
    return [executable("java"), *flags, "-cp", f"{first_jar}:{path}" if first_jar else path, *arguments]
