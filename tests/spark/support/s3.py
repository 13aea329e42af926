"""S3 on this machine: moto's server in a process of its own, with a bucket that Spark's session can reach."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import boto3
from tests.spark.support import s3_server
from tests.spark.support.jars import s3_client
from tests.support.downloads import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REGION = "eu-central-1"


class Bucket(NamedTuple):
    """A bucket, and the settings with which Hadoop reaches it."""

    name: str
    settings: dict[str, str]

    def path(self, key: str) -> str:
        return f"s3a://{self.name}/{key}"

    def configure(self, spark: "SparkSession") -> None:
        """Set what `--conf spark.hadoop...` would, on a session that is there; other buckets keep theirs."""
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        for name, value in self.settings.items():
            hadoop.set(name.replace("fs.s3a.", f"fs.s3a.bucket.{self.name}.", 1), value)


@contextmanager
def s3(name: str) -> Iterator[Bucket]:
    """An empty bucket; raises `Unavailable` if Hadoop's client of S3 cannot be had."""
    jars = s3_client()
    if isinstance(jars, Unavailable):
        raise jars
    command = [sys.executable, str(Path(s3_server.__file__))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        endpoint = process.stdout.readline().strip()
        keys = {"aws_access_key_id": "tester", "aws_secret_access_key": "secret"}
        client = boto3.client("s3", endpoint_url=endpoint, region_name=REGION, **keys)
        client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
        client.close()
        yield Bucket(
            name,
            {
                "fs.s3a.endpoint": endpoint,
                "fs.s3a.endpoint.region": REGION,
                "fs.s3a.path.style.access": "true",
                "fs.s3a.access.key": "tester",
                "fs.s3a.secret.key": "secret",
            },
        )
        process.stdin.close()
