"""The file systems that Spark can write to (local disk, HDFS, S3 ...), through its own JVM: few verbs, no surprises."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BY_TOPIC_AND_DATE = ("topic", "date")  # the directories of a lake
NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP)  # what a file system without them says


class Found(NamedTuple):
    """A file; its path is relative to where it was looked for."""

    path: str
    size: int


class Files:
    """What is below one directory."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm
        assert self._jvm is not None
        self._gateway: Any = spark.sparkContext._gateway
        self._hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        path = self._jvm.org.apache.hadoop.fs.Path(root)
        self._system = path.getFileSystem(self._hadoop)
        self._root = self._system.makeQualified(path)
        self.root = str(self._root.toString())

    def below(self, name: str) -> "Files":
        """What is below a directory that is here, or is made."""
        if not self._system.mkdirs(self._path(name)):
            raise OSError(f"cannot make {self.path(name)}")
        return Files(self._spark, self.path(name))

    def path(self, name: str) -> str:
        """The whole path of a name below the root, as Spark takes it."""
        return f"{self.root.rstrip('/')}/{name}"

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.path(name)) if name else self._root

    @property
    def _is_local(self) -> bool:
        return bool(self._root.toUri().getScheme() == "file")

    def _local(self, name: str) -> str:
        return str(self._path(name).toUri().getPath())

    def exists(self, name: str) -> bool:
        return bool(self._system.exists(self._path(name)))

    def names(self, directory: str) -> list[str]:
        """What a directory holds, in order; nothing if there is none."""
        if not self.exists(directory):
            return []
        return sorted(
            str(found.getPath().getName()) for found in self._system.listStatus(self._path(directory))
        )

    def walk(self, directory: str) -> Iterator[Found]:
        """All files below a directory, with paths relative to it."""
        if not self.exists(directory):
            return
        start = len(str(self._system.makeQualified(self._path(directory)).toString()).rstrip("/")) + 1
        found = self._system.listFiles(self._path(directory), True)
        while found.hasNext():
            status = found.next()
            yield Found(str(status.getPath().toString())[start:], int(status.getLen()))

    def read(self, name: str) -> str:
        """A small text file."""
        stream = self._system.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Make a small text file in one step, replacing one of that name: it is there whole, or as it was."""
        temporary = self._temporary(name, text)
        if self._is_local:
            self._replace(temporary, name)
            return
        hadoop = self._jvm.org.apache.hadoop.fs
        rename = getattr(hadoop, "Options$Rename")
        replacing = self._gateway.new_array(rename, 1)
        replacing[0] = rename.OVERWRITE
        context = hadoop.FileContext.getFileContext(self._root.toUri(), self._hadoop)
        context.rename(self._path(temporary), self._path(name), replacing)

    def _replace(self, source: str, target: str) -> None:
        """On a local disk, where Hadoop's own way removes first; its checksums would not fit and go before."""
        paths = [Path(self._local(name)) for name in (source, target)]
        for path in paths:
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        os.replace(*paths)

    def create(self, name: str, text: str) -> bool:
        """Make a small text file in one step unless there is one of that name; whether it was made.

        Of several who try one succeeds: a link on a local disk and a rename on HDFS replace nothing. Where neither is,
        as in object stores, that is so unless they try in the same moment.
        """
        temporary = self._temporary(name, text)
        try:
            if self._is_local:
                return self._link(temporary, name)
            return self._move_unless_there(temporary, name)
        finally:
            self.remove(temporary)

    def _link(self, source: str, target: str) -> bool:
        try:
            os.link(self._local(source), self._local(target))
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            return self._move_unless_there(source, target)
        return True

    def _move_unless_there(self, source: str, target: str) -> bool:
        return not self.exists(target) and bool(self._system.rename(self._path(source), self._path(target)))

    def _temporary(self, name: str, text: str) -> str:
        """A file beside another one that is to be."""
        temporary = f"{name}.{self._jvm.java.util.UUID.randomUUID().toString()}.tmp"
        stream = self._system.create(self._path(temporary), True)
        try:
            stream.write(bytearray(text.encode()))
            if hasattr(stream, "hsync"):
                stream.hsync()
        finally:
            stream.close()
        return temporary

    def rename(self, source: str, target: str) -> None:
        """Move a file, making the directory it goes to; somebody else may be doing just that."""
        goal = self._path(target)
        self._system.mkdirs(goal.getParent())
        try:
            moved = self._system.rename(self._path(source), goal)
        except Exception:  # whichever the file system has for a source that is gone
            if self.exists(source):
                raise
            return
        if not moved and self.exists(source):
            raise OSError(f"cannot move {self.path(source)} to {self.path(target)}")

    def remove(self, name: str) -> None:
        """A file, or a directory with all it holds; it may be gone already."""
        self._system.delete(self._path(name), True)

    def write_records(self, rows: "DataFrame", directory: str) -> int:
        """Records become Parquet files by topic and date, in a new directory; how many there were."""
        from pyspark.sql import Observation
        from pyspark.sql.functions import col, count, lit, to_date

        # Instants as other readers of Parquet want them; Spark's own default is a type that is long deprecated.
        rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        observed = Observation()
        (
            rows.withColumn("date", to_date(col("timestamp")))
            .observe(observed, count(lit(1)).alias("rows"))
            .sortWithinPartitions("topic", "date", "partition", "offset")
            .write.partitionBy(*BY_TOPIC_AND_DATE)
            .mode("overwrite")
            .parquet(self.path(directory))
        )
        return int(observed.get["rows"])

    def parquet_rows(self, name: str) -> int:
        """How many rows a Parquet file has, by its footer."""
        hadoop = self._jvm.org.apache.parquet.hadoop
        footer = hadoop.util.HadoopInputFile.fromPath(self._path(name), self._hadoop)
        reader = hadoop.ParquetFileReader.open(footer)
        try:
            return int(reader.getRecordCount())
        finally:
            reader.close()
