"""A lake of topics as a Delta table, without jars: Spark writes Parquet files, the `deltalake` package commits them.

Where the lake ends stands in the table itself: for each partition of a topic an application transaction of Delta, whose
version is the offset after the last record. It changes in the same commit as the files, and outlives Delta's own
clean-up; the id of the topic is another one. Files that a killed writer left are in no commit, so nobody reads them;
Delta's vacuum removes them.

The last writer to come has the table: it claims it with another such transaction, which all its commits carry. Delta
refuses a commit if one of its applications has been in the log since, so that whoever wrote before fails.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from levada.pipelines.lake.compaction import Sizes
from levada.pipelines.lake.files import BY_TOPIC_AND_DATE, Files, Found
from levada.pipelines.lake.lake import NO_IDS, Ids, LakeError, Positions

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema, Transaction
    from pyspark.sql import DataFrame

STAGING = "_levada/staging"
LOG = "_delta_log"
WRITER = "levada/writer"  # the application whose version is the number of the claim


class DeltaLake:
    """One table. Any number of readers, and one writer: the last that claimed it."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._uri = _uri(files.root)
        self._table = self._open()
        self._claim = 0  # as long as there is no table: then who makes it is its writer
        self._writer = uuid.uuid4().hex[:12]

    def _open(self) -> "DeltaTable | None":
        from deltalake import DeltaTable

        return DeltaTable(self._uri) if DeltaTable.is_deltatable(self._uri) else None

    @property
    def claimed(self) -> str:
        """The name of the claim; by these names claims are in their order."""
        return f"{self._claim:010d}-{self._writer}"

    def claim(self, ids: Ids = NO_IDS) -> None:
        """Become the writer: whoever was it fails from now on, and what it had not committed is thrown away.

        `ids` are of topics that the lake has; an older lake learns them.
        """
        from deltalake.exceptions import CommitFailedError

        self._table = self._open()
        while self._table is not None:
            self._claim = _claim_of(self._table) + 1
            seen = self._table.version()
            try:
                self._commit(self._table.schema(), [], self._unknown(ids), 0)
                break
            except CommitFailedError:
                self._table.update_incremental()
                if self._table.version() == seen:
                    raise
        for name in self.files.names(STAGING):
            number = name.partition("-")[0]
            if not number.isdecimal() or int(number) < self._claim:
                self.files.remove(f"{STAGING}/{name}")

    def check(self) -> None:
        """LakeError if another writer has come."""
        table = self._open()
        if table is not None and (self._table is None or _claim_of(table) != self._claim):
            raise LakeError(f"{self.files.root} has another writer")

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Where the lake ends in those partitions that it knows."""
        if self._table is None:
            return {}
        found = {index: self._table.transaction_version(_application(topic, index)) for index in partitions}
        return {index: end for index, end in found.items() if end is not None}

    def is_other(self, topic: str, topic_id: UUID) -> bool:
        """Whether its records are those of another topic of that name."""
        if self._table is None:
            return False
        return self._table.transaction_version(_id_application(topic)) not in (None, _version(topic_id))

    def _unknown(self, ids: Ids) -> "list[Transaction]":
        from deltalake import Transaction

        assert self._table is not None
        known = self._table.transaction_version
        return [
            Transaction(_id_application(topic), _version(topic_id))
            for topic, topic_id in ids.items()
            if known(_id_application(topic)) is None
        ]

    def add(self, rows: "DataFrame", ends: Positions, ask: Callable[[], Ids] = dict) -> None:
        """These records, up to the offsets `ends`, in one commit; `ask`, when they are read, for their topics' ids."""
        from deltalake import DeltaTable, Schema, Transaction
        from pyspark.sql.types import DateType, StructType

        area = f"{STAGING}/{self.claimed}"
        self.files.remove(area)
        count = self.files.write_records(rows, area)
        ids = ask()
        form = Schema.from_json(StructType([*rows.schema.fields]).add("date", DateType()).json())
        if self._table is None:
            self._table = DeltaTable.create(self._uri, form, partition_by=[*BY_TOPIC_AND_DATE])
        found = [file for file in self.files.walk(area) if file.path.endswith(".parquet")]
        has = sum(self.files.parquet_rows(f"{area}/{file.path}") for file in found)
        if has != count:
            self.check()
            raise LakeError(f"{self.files.root}: {count} records were written and {has} are there")
        offsets = [
            Transaction(_application(topic, index), end)
            for topic, told in ends.items()
            for index, end in told.items()
        ]
        offsets += self._unknown({topic: ids[topic] for topic in ends if topic in ids})
        self._commit(form, [self._placed(area, file) for file in found], offsets, count)

    def _commit(
        self, form: "Schema", added: Sequence[Any], offsets: "Sequence[Transaction]", rows: int
    ) -> None:
        from deltalake import CommitProperties, Transaction

        assert self._table is not None
        transactions = [Transaction(WRITER, self._claim), *offsets]
        self._table.create_write_transaction(
            [*added],
            "append",
            form,
            [*BY_TOPIC_AND_DATE],
            commit_properties=CommitProperties({"levada.rows": str(rows)}, app_transactions=transactions),
        )
        self._table.update_incremental()

    def _placed(self, area: str, file: Found) -> Any:
        """A staged file, moved to its place: it counts once it is committed."""
        from deltalake.transaction import AddAction

        directory = file.path.rpartition("/")[0]
        target = f"{directory}/{uuid.uuid4().hex}.parquet"
        self.files.rename(f"{area}/{file.path}", target)
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


def _claim_of(table: "DeltaTable") -> int:
    return table.transaction_version(WRITER) or 0


def _application(topic: str, partition: int) -> str:
    return f"levada/{topic}/{partition}"


def _id_application(topic: str) -> str:
    return f"levada/{topic}/id"


def _version(topic_id: UUID) -> int:
    """Of its application: so much of the id as is one."""
    return topic_id.int >> 65


def _uri(root: str) -> str:
    """The lake's root as `deltalake` names it."""
    if root.startswith("file:"):
        return "/" + root.removeprefix("file:").lstrip("/")
    return root.replace("s3a://", "s3://", 1)
