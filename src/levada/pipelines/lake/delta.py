"""A lake as a Delta table, without jars: Spark writes the Parquet files, the `deltalake` package commits them.

The end offsets are in the table: each partition of a topic is an application transaction of Delta whose version is the
offset after the last record. It changes in the same commit as the files and survives Delta's log cleanup. The id of a
topic is another application transaction. Files of a killed writer are in no commit, so no reader sees them; Delta's
vacuum removes them.

The last writer to claim the table owns it. A claim is an application transaction, too, and every commit of the writer
carries it. Delta rejects a commit if one of its applications is in the log since, so an earlier writer fails.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from levada.pipelines.errors import LakeError
from levada.pipelines.lake.files import PARTITION_COLUMNS, Files, FoundFile
from levada.pipelines.lake.parquet import NO_IDS, CompactionPolicy, EndOffsets, TopicIds

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema, Transaction
    from pyspark.sql import DataFrame, SparkSession

STAGING = "_levada/staging"
DELTA_LOG = "_delta_log"
WRITER = "levada/writer"  # the application whose version is the claim number


class DeltaLake:
    """A lake in one Delta table, with any number of readers and one writer: the last that claimed it."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._uri = _uri(files.root)
        self._table = self._open()
        self._claim = 0  # until there is a table: the process that creates it is its writer
        self._writer = uuid.uuid4().hex[:12]

    def _open(self) -> "DeltaTable | None":
        from deltalake import DeltaTable

        return DeltaTable(self._uri) if DeltaTable.is_deltatable(self._uri) else None

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
                self._commit(self._table.schema(), [], self._new_ids(ids), 0)
                break
            except CommitFailedError:
                self._table.update_incremental()
                if self._table.version() == version:
                    raise
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

    def add(self, rows: "DataFrame", ends: EndOffsets, read_ids: Callable[[], TopicIds] = dict) -> None:
        """Commit these records, up to the offsets `ends`; `read_ids` gives the topics' ids after they were read."""
        from deltalake import DeltaTable, Schema, Transaction
        from pyspark.sql.types import DateType, StructType

        area = f"{STAGING}/{self.claim_name}"
        self.files.remove(area)
        count = self.files.write_records(rows, area)
        ids = read_ids()
        schema = Schema.from_json(StructType([*rows.schema.fields]).add("date", DateType()).json())
        if self._table is None:
            self._table = DeltaTable.create(self._uri, schema, partition_by=[*PARTITION_COLUMNS])
        files = [file for file in self.files.walk(area) if file.path.endswith(".parquet")]
        found = sum(self.files.parquet_rows(f"{area}/{file.path}") for file in files)
        if found != count:
            self.check()
            raise LakeError(f"{self.files.root}: {count} records were written, {found} are in the files")
        offsets = [
            Transaction(_application(topic, index), end)
            for topic, partitions in ends.items()
            for index, end in partitions.items()
        ]
        offsets += self._new_ids({topic: ids[topic] for topic in ends if topic in ids})
        self._commit(schema, [self._publish(area, file) for file in files], offsets, count)

    def _commit(self, schema: "Schema", added: Sequence[Any], offsets: "Sequence[Transaction]", rows: int) -> None:
        from deltalake import CommitProperties, Transaction

        assert self._table is not None
        transactions = [Transaction(WRITER, self._claim), *offsets]
        self._table.create_write_transaction(
            [*added],
            "append",
            schema,
            [*PARTITION_COLUMNS],
            commit_properties=CommitProperties({"levada.rows": str(rows)}, app_transactions=transactions),
        )
        self._table.update_incremental()

    def _publish(self, area: str, file: FoundFile) -> Any:
        """Move a staged file to its directory; return the action that adds it to the table."""
        from deltalake.transaction import AddAction

        directory = file.path.rpartition("/")[0]
        target = f"{directory}/{uuid.uuid4().hex}.parquet"
        self.files.rename(f"{area}/{file.path}", target)
        values = dict(part.split("=", 1) for part in directory.split("/"))
        stats = f'{{"numRecords": {self.files.parquet_rows(target)}}}'
        return AddAction(target, file.size, values, time.time_ns() // 1_000_000, True, stats)

    def paths(self, topic: str | None = None) -> list[str]:
        """The full paths of the committed files of one topic, or of all."""
        if self._table is None:
            return []
        wanted = None if topic is None else [("topic", "=", topic)]
        uris = self._table.file_uris(file_pruning_predicate=wanted)
        return [self.files.path(uri[uri.rindex("/topic=") + 1 :]) for uri in uris]

    def compact(self, _spark: "SparkSession", policy: CompactionPolicy) -> int:
        """Merge small files if there are many; return the number of files replaced."""
        if self._table is None or len(self._table.file_uris()) <= policy.files_max:
            return 0
        done = self._table.optimize.compact(target_size=policy.small_bytes)
        self._table.update_incremental()
        return int(done["numFilesRemoved"])


def _claim_number(table: "DeltaTable") -> int:
    return table.transaction_version(WRITER) or 0


def _application(topic: str, partition: int) -> str:
    return f"levada/{topic}/{partition}"


def _id_application(topic: str) -> str:
    return f"levada/{topic}/id"


def _version(topic_id: UUID) -> int:
    """The first 63 bits of the id: a version is a signed 64-bit number."""
    return topic_id.int >> 65


def _uri(root: str) -> str:
    """The lake's root as a URI of `deltalake`."""
    if root.startswith("file:"):
        return "/" + root.removeprefix("file:").lstrip("/")
    return root.replace("s3a://", "s3://", 1)
