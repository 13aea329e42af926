"""The output of archive under kills: lake and log together have every message once, for every kind of reader."""

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka.admin import NewTopic
from deltalake import DeltaTable
from tests.spark.chaos.chaos import HOUR, Chaos
from tests.spark.chaos.program import DELTA, PARQUET, SOURCE
from tests.support.broker import BrokerProcess
from tests.support.reading import read_committed

from levada.pipelines.lake.history import history
from levada.pipelines.lake.lake import open_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Messages = dict[int, list[tuple[int, str]]]  # by partition: offset and value
COLUMNS = ["partition", "offset", "value"]


class KeptLake(ABC):
    """A lake on the local disk, and how somebody without Spark reads it."""

    form: str
    topics: list[NewTopic] = []

    def __init__(self, server: BrokerProcess, folder: Path, spark: "SparkSession") -> None:
        self._server = server
        self._spark = spark
        self.lake = folder / "lake"
        self.options = {
            "to": self.form,
            "batch": "40",
        }  # several commits for a feed, so that files are joined

    @abstractmethod
    def count(self) -> int: ...

    @abstractmethod
    def table(self) -> pa.Table:
        """The lake as other readers see it, while no process writes."""

    def look(self, *, still: bool) -> None:
        """Files that can be seen are whole; while no process writes, lake and log have each message once."""
        for path in self.lake.glob("topic=*/date=*/*.parquet"):
            try:
                self.check_file(pq.ParquetFile(path).read(columns=COLUMNS))
            except FileNotFoundError:
                continue  # it was joined with others
        if still:
            self.check_history()

    def check_file(self, file: pa.Table) -> None:
        """No message is twice in one file, and those of a partition lie in their order."""
        places = [(row["partition"], row["offset"]) for row in file.to_pylist()]
        assert places == sorted(set(places))

    def check(self, pipeline: Chaos) -> str:
        """All is there, each message once and in order; what was done, as a line for people."""
        pipeline.feed(HOUR)
        pipeline.finish()
        lake = open_lake(self._spark, str(self.lake))
        lake.claim()  # as the next writer would: the last one was killed as well
        kept = _messages(self.table())
        ends = {index: len(found) for index, found in kept.items()}
        assert lake.end_offsets(SOURCE, ends) == ends
        assert kept == self._log(), "lost, doubled or changed"
        pipeline.feed(HOUR, revive=False)  # in the log only
        self.check_history()
        return f"{sum(ends.values())} messages in the lake"

    def check_history(self) -> None:
        """Lake and log as one: neither gap nor overlap."""
        found = history(SOURCE, str(self.lake), bootstrap=self._server.bootstrap, spark=self._spark)
        assert _messages(found.select(*COLUMNS).toArrow()) == self._log(), "gap or overlap"

    def _log(self) -> Messages:
        found = read_committed(self._server.bootstrap, SOURCE)
        return {index: [record[::2] for record in records] for (_, index), records in found.items()}


class ParquetLake(KeptLake):
    """Parquet files, and commits that name them."""

    form = PARQUET

    def count(self) -> int:
        commits = self.lake.glob("_levada/commits/[0-9]*[0-9].json")
        return sum(json.loads(path.read_text())["rows"] for path in commits)

    def table(self) -> pa.Table:
        paths = self.lake.glob("topic=*/date=*/*.parquet")
        return pa.concat_tables(pq.ParquetFile(path).read(columns=COLUMNS) for path in paths)


class DeltaTableLake(KeptLake):
    """A Delta table."""

    form = DELTA

    def check_file(self, file: pa.Table) -> None:
        """A table of Delta has no order: what its compaction joins lies as it comes."""
        super().check_file(file.sort_by([("partition", "ascending"), ("offset", "ascending")]))

    def count(self) -> int:
        is_there = (self.lake / "_delta_log").exists() and DeltaTable.is_deltatable(str(self.lake))
        return self.table().num_rows if is_there else 0

    def table(self) -> pa.Table:
        return DeltaTable(self.lake).to_pyarrow_table(columns=COLUMNS)


def _messages(table: pa.Table) -> Messages:
    found: Messages = {}
    for row in table.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist():
        found.setdefault(row["partition"], []).append((row["offset"], bytes(row["value"]).decode()))
    return found
