"""Jars of Maven Central: the stock Spark connector, `spark-sql-kafka-0-10`, and Hadoop's client of S3.

The connector's parts are fetched one by one, without what their poms ask for: not every version that they name can be
had from Maven Central, and the rest is already in pyspark. The set is the one that works with the pyspark of this
project.
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
HADOOP_VERSION = "3.5.0"  # that of Spark's own client
# hadoop-aws asks for one jar with all services of AWS, 686 MB. The part that S3 needs is 10 MB.
_S3_POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>s3</groupId><artifactId>s3</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-aws</artifactId><version>{hadoop}</version>
<exclusions><exclusion><groupId>software.amazon.awssdk</groupId><artifactId>bundle</artifactId></exclusion></exclusions>
</dependency>
{parts}
</dependencies></project>
"""
_SDK_PART = (
    "<dependency><groupId>software.amazon.awssdk</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)
_SDK_VERSION = "2.35.4"  # the one that hadoop-aws asks for
_SDK_PARTS = ("s3", "s3-transfer-manager", "sts")
_IN_SPARK = "io.netty,org.apache.httpcomponents,org.slf4j,commons-codec,commons-logging,org.wildfly.openssl"


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


@cache
def s3_client() -> list[Path] | Unavailable:
    """The jars of s3a:// (12 MB), downloaded when missing."""
    try:
        with locked(f"hadoop-aws-{HADOOP_VERSION}-{_SDK_VERSION}") as folder:
            jars = folder / "jars"
            if not jars.exists():
                parts = "\n".join(_SDK_PART.format(name, _SDK_VERSION) for name in _SDK_PARTS)
                (folder / "pom.xml").write_text(_S3_POM.format(hadoop=HADOOP_VERSION, parts=parts))
                command = [executable("mvn"), "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
                run([*command, "-DoutputDirectory=copied", f"-DexcludeGroupIds={_IN_SPARK}"], cwd=folder)
                (folder / "copied").rename(jars)
            return sorted(jars.glob("*.jar"))
    except Unavailable as reason:
        return reason


def jar_settings() -> dict[str, str]:
    """For a session that can use the connector and S3; without those that cannot be had."""
    found = [jars for jars in (_found(), s3_client()) if not isinstance(jars, Unavailable)]
    return {"spark.jars": ",".join(str(jar) for jars in found for jar in jars)} if found else {}


def fetched(folder: Path, group: str, artifact: str, version: str) -> Path:
    """One jar of Maven Central, in a folder of the cache that is held."""
    jar = folder / f"{artifact}-{version}.jar"
    if not jar.exists():
        command = [executable("mvn"), "-q", "-B", "dependency:copy", f"-DoutputDirectory={folder}"]
        run([*command, f"-Dartifact={group}:{artifact}:{version}"], cwd=folder)
        if not jar.exists():
            raise Unavailable(f"maven left no {jar.name}")
    return jar
