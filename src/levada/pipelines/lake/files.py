"""Files on the file systems that Spark can write to (local disk, HDFS, S3 ...), through Hadoop's FileSystem."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from levada.pipelines.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION_COLUMNS = ("topic", "date")  # the directories of a lake
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"  # the directory name that stands for null
# Parquet counts 100 rows before it first looks at their size, and readers decompress a row group at once. With these
# options a page and a row group end by bytes, so that large values fit into a small heap.
PARQUET_OPTIONS = {
    "parquet.block.size": str(32 << 20),
    "parquet.block.size.row.check.min": "1",
    "parquet.page.size.row.check.min": "1",
}
SPARK_SCHEMA = "org.apache.spark.sql.parquet.row.metadata"  # the key in the footer of a file that Spark wrote
CONDITIONAL_CREATE = "fs.option.create.conditional.overwrite"  # an object is created only if it does not exist
CHECKSUM_FILE = re.compile(r"\..*\.crc")  # Hadoop does not list its own
RENAMING_SCHEMES = ("file", "hdfs", "viewfs", "webhdfs", "swebhdfs")
S3_CLIENT = "org.apache.hadoop.fs.s3a.S3AFileSystem not found"
S3_DOCUMENTATION = "docs/lakes.md#s3"
NO_HARD_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP)  # errors of a file system without them


class FoundFile(NamedTuple):
    """A file of `Files.walk`; its path is relative to the directory."""

    path: str
    size: int


class Footer(NamedTuple):
    """The footer of a Parquet file."""

    rows: int
    schema: str  # as Spark writes it in JSON


class Files:
    """The files below one directory."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm
        assert self._jvm is not None
        self._gateway: Any = spark.sparkContext._gateway
        self._hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        path = self._jvm.org.apache.hadoop.fs.Path(root)
        self._system = self._file_system(path)
        self._root = self._system.makeQualified(path)
        self.root = str(self._root.toString())

    def _file_system(self, path: Any) -> Any:
        """The file system of a path; LakeError if it is S3 and Spark has no client of it."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        try:
            return path.getFileSystem(self._hadoop)
        except Py4JJavaError as error:
            text = str(error)
            if S3_CLIENT in text:
                advice = f"give Spark the jars of the S3 client, with the --conf lines of {S3_DOCUMENTATION}"
            elif any(f'No FileSystem for scheme "{scheme}"' in text for scheme in ("s3", "s3n")):
                advice = f"write s3a:// instead ({S3_DOCUMENTATION})"
            else:
                raise
            raise LakeError(f"Spark cannot open {path.toString()}: {advice}") from None

    def below(self, name: str) -> "Files":
        """The files below a subdirectory, which is created if it does not exist."""
        if not self._system.mkdirs(self._path(name)):
            raise OSError(f"cannot create {self.path(name)}")
        return Files(self._spark, self.path(name))

    def path(self, name: str) -> str:
        """The full path of a name below the root, as Spark takes it."""
        return f"{self.root.rstrip('/')}/{name}"

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.path(name)) if name else self._root

    def setting(self, name: str) -> str | None:
        """A setting of Hadoop."""
        value = self._hadoop.get(name)
        return None if value is None else str(value)

    @property
    def _is_local(self) -> bool:
        return bool(self._root.toUri().getScheme() == "file")

    @property
    def renames_by_copying(self) -> bool:
        """Whether a rename may take the time of a copy, as in object stores."""
        return self._root.toUri().getScheme() not in RENAMING_SCHEMES

    def _local(self, name: str) -> str:
        return str(self._path(name).toUri().getPath())

    def exists(self, name: str) -> bool:
        return bool(self._system.exists(self._path(name)))

    def names(self, directory: str) -> list[str]:
        """The sorted names in a directory; empty if it does not exist."""
        if not self.exists(directory):
            return []
        return sorted(str(found.getPath().getName()) for found in self._system.listStatus(self._path(directory)))

    def size(self, name: str) -> int | None:
        """The bytes of a file; None if it does not exist."""
        return int(self._system.getFileStatus(self._path(name)).getLen()) if self.exists(name) else None

    def walk(self, directory: str) -> Iterator[FoundFile]:
        """All files below a directory, with paths relative to it."""
        if not self.exists(directory):
            return
        if self._is_local:
            yield from self._walk_local(Path(self._local(directory)))
            return
        start = len(str(self._system.makeQualified(self._path(directory)).toString()).rstrip("/")) + 1
        found = self._system.listFiles(self._path(directory), True)
        while found.hasNext():
            status = found.next()
            yield FoundFile(str(status.getPath().toString())[start:], int(status.getLen()))

    def _walk_local(self, root: Path) -> Iterator[FoundFile]:
        """The same without the JVM: a call of it takes longer than the system's."""
        for directory, _, names in os.walk(root):
            for path in (Path(directory, name) for name in names if not CHECKSUM_FILE.fullmatch(name)):
                with suppress(FileNotFoundError):  # moved meanwhile
                    yield FoundFile(str(path.relative_to(root)), path.stat().st_size)

    def read(self, name: str) -> str:
        """Read a small text file."""
        stream = self._system.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a small text file atomically, replacing one of that name."""
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
        """Rename on a local disk. Hadoop would remove the target first; its checksum files would no longer match."""
        paths = [Path(self._local(name)) for name in (source, target)]
        for path in paths:
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        os.replace(*paths)

    def create(self, name: str, text: str) -> bool:
        """Create a small text file atomically unless the name exists; return whether it was created.

        Of several processes one succeeds: a hard link on a local disk and a rename on HDFS replace nothing, and S3
        checks the condition of a conditional write. Without all of them the check and the rename are two steps, and
        two processes may both succeed.
        """
        if self._system.hasPathCapability(self._path(name), CONDITIONAL_CREATE):
            return self._create_conditionally(name, text)
        temporary = self._temporary(name, text)
        try:
            if self._is_local:
                return self._link(temporary, name)
            return self._rename_unless_exists(temporary, name)
        finally:
            self.remove(temporary)

    def _create_conditionally(self, name: str, text: str) -> bool:
        """Write an object unless it exists, which the store checks at the end of the write.

        A repeated request after a lost response finds the object of the first one: it counts as that of another.
        """
        from py4j.protocol import Py4JJavaError

        builder = self._system.createFile(self._path(name)).overwrite(True)
        stream = builder.must(CONDITIONAL_CREATE, True).build()
        try:
            stream.write(bytearray(text.encode()))
        except Exception:
            stream.abort()  # to close it would create the object with a part of the text
            raise
        try:
            stream.close()
        except Py4JJavaError:
            if not self.exists(name):
                raise
            return False
        return True

    def _link(self, source: str, target: str) -> bool:
        """Make a hard link, or a copy on disks without them; return False if the target exists."""
        try:
            os.link(self._local(source), self._local(target))
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            return self._copy(source, target)
        return True

    def _rename_unless_exists(self, source: str, target: str) -> bool:
        return not self.exists(target) and bool(self._system.rename(self._path(source), self._path(target)))

    def _temporary(self, name: str, text: str) -> str:
        """Write a temporary file beside the one it will become."""
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
        """Move a file and create its new directory; another process may move the same file at the same time."""
        goal = self._path(target)
        self._system.mkdirs(goal.getParent())
        try:
            moved = self._system.rename(self._path(source), goal)
        except Exception:  # file systems differ in the error for a missing source
            if self.exists(source):
                raise
            return
        if not moved and self.exists(source):
            raise OSError(f"cannot move {self.path(source)} to {self.path(target)}")

    def link(self, source: str, target: str) -> None:
        """Give a file a second name: a hard link on a local disk, elsewhere a copy.

        Another process may do the same, or move the file, at the same time.
        """
        self._system.mkdirs(self._path(target).getParent())
        try:
            if self._is_local:
                self._link(source, target)
            else:
                self._copy(source, target)
        except Exception:  # file systems differ in the error for a missing source
            if self.exists(source):
                raise

    def _copy(self, source: str, target: str) -> bool:
        """Copy under a temporary name first: of a copy that fails, a part may stay, in an object store as well."""
        copy = f"{source}.{self._jvm.java.util.UUID.randomUUID().toString()}.tmp"
        util = self._jvm.org.apache.hadoop.fs.FileUtil
        util.copy(self._system, self._path(source), self._system, self._path(copy), False, self._hadoop)
        if self._rename_unless_exists(copy, target):
            return True
        self.remove(copy)
        return False

    def remove(self, name: str) -> None:
        """Remove a file or a directory tree; it need not exist."""
        self._system.delete(self._path(name), True)

    def write_records(self, rows: "DataFrame", directory: str) -> int:
        """Write records as Parquet files by topic and date into a new directory; return their number."""
        from pyspark.sql import Observation
        from pyspark.sql.functions import count, expr, lit

        from levada.pipelines.lake.schemas import DATE, DATE_EXPRESSION

        # Spark's default is INT96, a deprecated type that other readers of Parquet do not take for an instant.
        rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        observed = Observation()
        (
            rows.withColumn(DATE, expr(DATE_EXPRESSION))
            .observe(observed, count(lit(1)).alias("rows"))
            .sortWithinPartitions("topic", "date", "partition", "offset")
            .write.options(**PARQUET_OPTIONS)
            .partitionBy(*PARTITION_COLUMNS)
            .mode("overwrite")
            .parquet(self.path(directory))
        )
        return int(observed.get["rows"])

    def parquet_footer(self, name: str) -> Footer:
        """The number of rows and the schema of a Parquet file."""
        hadoop = self._jvm.org.apache.parquet.hadoop
        footer = hadoop.util.HadoopInputFile.fromPath(self._path(name), self._hadoop)
        reader = hadoop.ParquetFileReader.open(footer)
        try:
            rows = int(reader.getRecordCount())
            schema = reader.getFileMetaData().getKeyValueMetaData().get(SPARK_SCHEMA)
        finally:
            reader.close()
        return Footer(rows, str(schema or self._spark.read.parquet(self.path(name)).schema.json()))
