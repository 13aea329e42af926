"""A lake as a Delta table, without jars: Spark writes the Parquet files, the `deltalake` package commits them.

The end offsets are in the table: each partition of a topic is an application transaction of Delta whose version is the
offset after the last record. It changes in the same commit as the files and survives Delta's log cleanup. The id of a
topic is another application transaction. Files of a killed writer are in no commit, so no reader sees them; a full
vacuum of Delta (`full=True`) removes them. The table's schema grows with the records: a commit that adds columns
precedes their first files.

The last writer to claim the table owns it. A claim is an application transaction, too, and every commit of the writer
carries it. Delta rejects a commit if one of its applications is in the log since, so an earlier writer fails.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from levada.pipelines.errors import LakeError
from levada.pipelines.lake.commits import NO_IDS, CompactionPolicy, EndOffsets, LakeFile, TopicIds
from levada.pipelines.lake.compaction import check_merged, merge_files, small_files
from levada.pipelines.lake.files import NULL_PARTITION, PARTITION_COLUMNS, Files, FoundFile
from levada.pipelines.lake.s3 import storage_options

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, Transaction
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

STAGING = "_levada/staging"
DELTA_LOG = "_delta_log"
WRITER = "levada/writer"  # the application whose version is the claim number
SCHEMA = "levada/schema"  # the application that shows that the table has all columns of its files
HOUR_MS = 3_600_000


class DeltaLake:
    """A lake in one Delta table, with any number of readers and one writer: the last that claimed it."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._uri = _uri(files.root)
        self._storage_options = storage_options(files)
        self._table = self._open()
        self._claim = 0  # until there is a table: the process that creates it is its writer
        self._writer = uuid.uuid4().hex[:12]

    def _open(self) -> "DeltaTable | None":
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._uri, storage_options=self._storage_options):
            return None
        return DeltaTable(self._uri, storage_options=self._storage_options)

    @property
    def claim_name(self) -> str:
        """The name of the claim, which sorts in the order of claims."""
        return f"{self._claim:010d}-{self._writer}"

    def claim(self, ids: TopicIds = NO_IDS) -> None:
        """Become the writer and remove the uncommitted files of the previous one, which fails from now on.

        `ids` are the ids of archived topics, for lakes of older versions, which have none.
        """
        from deltalake.exceptions import CommitFailedError

        self._table = self._open()
        while self._table is not None:
            self._claim = _claim_number(self._table) + 1
            version = self._table.version()
            try:
                self._commit([], self._new_ids(ids))
                break
            except CommitFailedError:
                self._table.update_incremental()
                if self._table.version() == version:
                    raise
        self._complete_schema()
        for name in self.files.names(STAGING):
            number = name.partition("-")[0]
            if not number.isdecimal() or int(number) < self._claim:
                self.files.remove(f"{STAGING}/{name}")

    def check(self) -> None:
        """Raise LakeError if another writer has claimed the table."""
        table = self._open()
        if table is not None and (self._table is None or _claim_number(table) != self._claim):
            raise LakeError(f"{self.files.root} has another writer")

    def end_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The end offsets of the archived ones of these partitions."""
        if self._table is None:
            return {}
        found = {index: self._table.transaction_version(_application(topic, index)) for index in partitions}
        return {index: end for index, end in found.items() if end is not None}

    def has_other_topic(self, topic: str, topic_id: UUID) -> bool:
        """Whether the lake holds the records of another topic of this name."""
        if self._table is None:
            return False
        return self._table.transaction_version(_id_application(topic)) not in (None, _version(topic_id))

    def _new_ids(self, ids: TopicIds) -> "list[Transaction]":
        from deltalake import Transaction

        assert self._table is not None
        known = self._table.transaction_version
        return [
            Transaction(_id_application(topic), _version(topic_id))
            for topic, topic_id in ids.items()
            if known(_id_application(topic)) is None
        ]

    def schema(self, _topic: str | None) -> "StructType | None":
        """The schema of the table; None if there is no table."""
        from levada.pipelines.lake.schemas import READING, merge_files_schemas, merge_records_schema

        if self._table is None:
            return None
        known = self._table_schema()
        if self._table.transaction_version(SCHEMA) is None:  # older versions did not add columns to the table
            found = merge_files_schemas(self.files, [file.path for file in self._files()])
            return known if found is None else merge_records_schema(self.files.root, known, found, READING)
        return known

    def _table_schema(self) -> "StructType":
        from pyspark.sql.types import StructType

        assert self._table is not None
        return StructType.fromJson(json.loads(self._table.schema().to_json()))

    def check_schema(self, _topics: Sequence[str], records: "StructType", *, as_table: bool) -> None:
        """Raise LakeError if records of this schema cannot be added; a Delta lake is always one table."""
        self._merge_schema(records)

    def _merge_schema(self, records: "StructType") -> "StructType":
        from levada.pipelines.lake.schemas import SAME_TYPES, lake_schema, merge_records_schema

        old, new = self.schema(""), lake_schema(records)
        return new if old is None else merge_records_schema(self.files.root, old, new, SAME_TYPES)

    def _complete_schema(self) -> None:
        """Add the columns of files that a table of an older version does not have."""
        from deltalake import Transaction

        if self._table is not None and self._table.transaction_version(SCHEMA) is None:
            schema = self.schema("")
            assert schema is not None
            self._add_columns(schema)
            self._commit([], [Transaction(SCHEMA, 1)])

    def _add_columns(self, schema: "StructType") -> None:
        """Add the columns and nested fields of a merged schema that the table does not have."""
        from deltalake import Schema

        assert self._table is not None
        known = self._table_schema()
        added = [
            field
            for field in Schema.from_json(schema.json()).fields
            if field.name not in known.names or known[field.name].dataType != schema[field.name].dataType
        ]
        if added:
            self._table.alter.add_columns(added, commit_properties=self._properties([]))
            self._table.update_incremental()

    def add(self, rows: "DataFrame", ends: EndOffsets, read_ids: Callable[[], TopicIds] = dict) -> None:
        """Commit these records, up to the offsets `ends`; `read_ids` gives the topics' ids after they were read."""
        from deltalake import DeltaTable, Schema, Transaction

        schema = self._merge_schema(rows.schema)
        area = self._staging()
        count = self.files.write_records(rows, area)
        ids = read_ids()
        files = self._staged(area)
        counts = self._check_staged(area, files, [], count)
        offsets = [
            Transaction(_application(topic, index), end)
            for topic, partitions in ends.items()
            for index, end in partitions.items()
        ]
        if self._table is None:
            columns = Schema.from_json(schema.json())
            self._table = DeltaTable.create(
                self._uri, columns, partition_by=[*PARTITION_COLUMNS], storage_options=self._storage_options
            )
            offsets.append(Transaction(SCHEMA, 1))
        self._add_columns(schema)
        offsets += self._new_ids({topic: ids[topic] for topic in ends if topic in ids})
        self._commit([self._publish(area, file, counts) for file in files], offsets, count)

    def _staging(self) -> str:
        area = f"{STAGING}/{self.claim_name}"
        self.files.remove(area)
        return area

    def _staged(self, area: str) -> list[FoundFile]:
        return [file for file in self.files.walk(area) if file.path.endswith(".parquet")]

    def _check_staged(self, area: str, files: Iterable[FoundFile], removed: Iterable[str], rows: int) -> dict[str, int]:
        """The rows of the staged files by name.

        Raises LakeError unless they have the columns of the removed ones, and `rows` more rows.
        """
        try:
            return check_merged(self.files, [f"{area}/{file.path}" for file in files], removed, rows)
        except LakeError:
            self.check()
            raise

    def _commit(self, actions: Sequence[Any], offsets: "Sequence[Transaction]", rows: int = 0) -> None:
        assert self._table is not None
        self._table.create_write_transaction(
            [*actions],
            "append",
            self._table.schema(),
            [*PARTITION_COLUMNS],
            commit_properties=self._properties(offsets, rows),
        )
        self._table.update_incremental()

    def _properties(self, offsets: "Sequence[Transaction]", rows: int = 0) -> "CommitProperties":
        from deltalake import CommitProperties, Transaction

        transactions = [Transaction(WRITER, self._claim), *offsets]
        return CommitProperties({"levada.rows": str(rows)}, app_transactions=transactions)

    def _publish(self, area: str, file: FoundFile, counts: Mapping[str, int], *, data_change: bool = True) -> Any:
        """Move a staged file to its directory; return the action that adds it to the table."""
        from deltalake.transaction import AddAction

        directory = file.path.rpartition("/")[0]
        target = f"{directory}/{uuid.uuid4().hex}.parquet"
        self.files.rename(f"{area}/{file.path}", target)
        stats = f'{{"numRecords": {counts[f"{area}/{file.path}"]}}}'
        return AddAction(target, file.size, _partition_values(directory), _now_ms(), data_change, stats)

    def _files(self) -> list[LakeFile]:
        if self._table is None:
            return []
        added = self._table.get_add_actions(flatten=True)
        paths, sizes = (added.column(name).to_pylist() for name in ("path", "size_bytes"))
        return [LakeFile(path, size, 0) for path, size in zip(paths, sizes, strict=True)]

    def paths(self, topic: str | None = None) -> list[str]:
        """The full paths of the committed files of one topic, or of all."""
        return list(self.sizes(topic))

    def sizes(self, topic: str | None = None) -> dict[str, int]:
        """The bytes of the committed files by full path."""
        return {self.files.path(file.path): file.size for file in self._files() if topic in (None, file.topic)}

    def compact(self, spark: "SparkSession", policy: CompactionPolicy) -> int:
        """Merge small files, with one commit per directory; return the number of files replaced."""
        from deltalake.transaction import RemoveAction

        replaced = 0
        for directory, files in small_files(self._files(), policy).items():
            area, paths = self._staging(), [self.files.path(file.path) for file in files]
            count = sum(file.size for file in files) // policy.small_bytes
            merge_files(spark, paths, self._table_schema(), self.files.path(f"{area}/{directory}"), count)
            merged = self._staged(area)
            counts = self._check_staged(area, merged, [file.path for file in files], 0)
            added = [self._publish(area, file, counts, data_change=False) for file in merged]
            values, now_ms = _partition_values(directory), _now_ms()
            removed = [RemoveAction(file.path, False, now_ms, file.size, values) for file in files]
            self._commit([*added, *removed], [])
            replaced += len(files)
        return replaced

    def vacuum(self, retention_ms: int | None = None) -> None:
        """Remove the files that were merged longer ago than the retention, in hours; by default Delta's, a week."""
        if self._table is None:
            return
        hours = None if retention_ms is None else -(-retention_ms // HOUR_MS)
        vacuum = partial(self._table.vacuum, hours, enforce_retention_duration=hours is None)
        if vacuum(dry_run=True):
            vacuum(dry_run=False)
            self._table.update_incremental()


def _claim_number(table: "DeltaTable") -> int:
    return table.transaction_version(WRITER) or 0


def _application(topic: str, partition: int) -> str:
    return f"levada/{topic}/{partition}"


def _id_application(topic: str) -> str:
    return f"levada/{topic}/id"


def _partition_values(directory: str) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for part in directory.split("/"):
        name, _, value = part.partition("=")
        values[name] = None if value == NULL_PARTITION else value
    return values


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _version(topic_id: UUID) -> int:
    """The first 63 bits of the id: a version is a signed 64-bit number."""
    return topic_id.int >> 65


def _uri(root: str) -> str:
    """The lake's root as a URI of `deltalake`."""
    if root.startswith("file:"):
        return "/" + root.removeprefix("file:").lstrip("/")
    return root.replace("s3a://", "s3://", 1)
