"""A lake of topics as a Delta table, without jars: Spark writes Parquet files, the `deltalake` package commits them.

Where the lake ends stands in the table itself: for each partition of a topic an application transaction of Delta, whose
version is the offset after the last record. It changes in the same commit as the files, and outlives Delta's own
clean-up. Files that a killed writer left are in no commit, so nobody reads them; Delta's vacuum removes them.
"""

import time
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from levada.pipelines.compacting import Sizes
from levada.pipelines.files import BY_TOPIC_AND_DATE, Files, Found
from levada.pipelines.lake import Positions

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

STAGING = "_levada/staging"
LOG = "_delta_log"


class DeltaLake:
    """One table. Any number of readers, one writer at a time."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._uri = _uri(files.root)
        self._table = self._open()

    def _open(self) -> "DeltaTable | None":
        from deltalake import DeltaTable

        return DeltaTable(self._uri) if self.files.exists(LOG) else None

    def recover(self) -> None:
        """Throw away what the last writer had not committed; for the writer, first."""
        self.files.remove(STAGING)

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Where the lake ends in those partitions that it knows."""
        if self._table is None:
            return {}
        found = {index: self._table.transaction_version(_application(topic, index)) for index in partitions}
        return {index: end for index, end in found.items() if end is not None}

    def add(self, rows: "DataFrame", ends: Positions) -> None:
        """These records, up to the offsets `ends`, in one commit."""
        from deltalake import CommitProperties, DeltaTable, Schema, Transaction
        from pyspark.sql.types import DateType, StructType

        self.recover()
        count = self.files.write_records(rows, STAGING)
        form = Schema.from_json(StructType([*rows.schema.fields]).add("date", DateType()).json())
        if self._table is None:
            self._table = DeltaTable.create(self._uri, form, partition_by=[*BY_TOPIC_AND_DATE])
        files = [file for file in self.files.walk(STAGING) if file.path.endswith(".parquet")]
        offsets = [
            Transaction(_application(topic, index), end)
            for topic, told in ends.items()
            for index, end in told.items()
        ]
        self._table.create_write_transaction(
            [self._placed(file) for file in files],
            "append",
            form,
            [*BY_TOPIC_AND_DATE],
            commit_properties=CommitProperties({"levada.rows": str(count)}, app_transactions=offsets),
        )
        self._table.update_incremental()

    def _placed(self, file: Found) -> Any:
        """A staged file, moved to its place: it counts once it is committed."""
        from deltalake.transaction import AddAction

        directory = file.path.rpartition("/")[0]
        target = f"{directory}/{uuid.uuid4().hex}.parquet"
        self.files.rename(f"{STAGING}/{file.path}", target)
        values = dict(part.split("=", 1) for part in directory.split("/"))
        stats = f'{{"numRecords": {self.files.parquet_rows(target)}}}'
        return AddAction(target, file.size, values, time.time_ns() // 1_000_000, True, stats)

    def paths(self, topic: str | None = None) -> list[str]:
        """The files that count, as Spark takes them; of one topic, or all."""
        if self._table is None:
            return []
        wanted = None if topic is None else [("topic", "=", topic)]
        uris = self._table.file_uris(file_pruning_predicate=wanted)
        return [self.files.path(uri[uri.rindex("/topic=") + 1 :]) for uri in uris]

    def compact(self, sizes: Sizes) -> int:
        """Join small files if there are many; how many went."""
        if self._table is None or len(self._table.file_uris()) <= sizes.files_max:
            return 0
        done = self._table.optimize.compact(target_size=sizes.small_bytes)
        self._table.update_incremental()
        return int(done["numFilesRemoved"])


def _application(topic: str, partition: int) -> str:
    return f"levada/{topic}/{partition}"


def _uri(root: str) -> str:
    """The lake's root as `deltalake` names it."""
    if root.startswith("file:"):
        return "/" + root.removeprefix("file:").lstrip("/")
    return root.replace("s3a://", "s3://", 1)
