"""A Parquet lake: files by topic and date, and a commit log that lists the files and end offsets of the lake.

    lake/topic=orders/date=2026-11-15/0000000012-000.parquet    data files: spark.read.parquet("lake")
    lake/_levada/commits/0000000012.json                        commit 12: files added and removed, end offsets
    lake/_levada/staging/0000000013-5ad0c1e2f3b4/...            files of the commit that a writer prepares

A commit is one small file that is created atomically. Its data files are in the staging area then and are moved to
their directories afterwards; if the writer is killed in between, the next writer finishes the move. So a batch is in
the lake wholly or not at all. The end offsets are in the same commit, so the topic continues exactly where the lake
ends, and records that a writer offers again are below that end and left out. Schemas of topics are in commits as well.

The last writer to claim the lake owns it. A claim is a commit that changes nothing. Only one writer can create the
commit of a number, so an earlier writer, dead or alive, fails at its next commit; no clock is involved. Files staged
for a number that is taken can never be committed by another writer.

A path that a reader of the commits was given stays valid for the retention. Merged files therefore wait in the staging
area, where readers of the commits find them, while readers of the directory see the original files. After the retention
the merged files get a second name in their directory, and the originals are removed; after another one the first name
goes. A reader of the directory that listed it before that moment fails then: originals that stayed there would count
twice for the next one.
The files of other commits get their second name at once where a rename is a copy, so that a reader that finds one
before it is there may read the first name.
"""

import json
import math
import time
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from levada.pipelines.errors import LakeError
from levada.pipelines.lake.commits import (
    NO_IDS,
    NO_SCHEMAS,
    Commit,
    CompactionPolicy,
    EndOffsets,
    LakeFile,
    LakeState,
    Schemas,
    TopicIds,
    commit_text,
    parse_commit,
    parse_state,
    state_text,
)
from levada.pipelines.lake.compaction import check_merged, merge_files, small_files
from levada.pipelines.lake.files import Files
from levada.pipelines.lake.integrity import find_damage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

COMMITS = "_levada/commits"
STAGING = "_levada/staging"
PUBLISHED = "published"  # in a staging area: when its files got their names in the lake
SNAPSHOT_EVERY = 50  # commits; readers skip the commits before a snapshot
RETENTION_MS = 3_600_000  # of merged files
MOVE_TIMEOUT_S = 10.0  # a reader waits that long for a writer that moves the files of a commit,
MOVE_SLOW_S = 5.0  # and a writer that is slower than that keeps the staged names of the rest
ALWAYS, NEVER = 0.0, math.inf  # since when staged names are kept

T = TypeVar("T")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _file_name(number: int, index: int) -> str:
    return f"{number:010d}-{index:03d}.parquet"


def _commit_name(number: int) -> str:
    return f"{COMMITS}/{number:010d}.json"


class ParquetLake:
    """A lake in one directory, with any number of readers and one writer: the last that claimed it."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.state = self._load()
        self.claim_name = ""  # sorts in the order of claims
        self._writer = uuid.uuid4().hex[:12]

    def _load(self) -> LakeState:
        state = LakeState()
        names = self.files.names(COMMITS)
        snapshots = [name for name in names if name.endswith(".snapshot.json")]
        if snapshots:
            state = self._parse(f"{COMMITS}/{snapshots[-1]}", parse_state)
        numbers = {int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()}
        for number in range(state.number + 1, max(numbers, default=-1) + 1):
            if number not in numbers and not self.files.exists(_commit_name(number)):  # a listing is not atomic
                raise LakeError(f"{self.files.root}: commit {number} is missing")
            state = self._parse(_commit_name(number), parse_commit).apply(state)
        return state

    def _parse(self, name: str, parse: Callable[[Any], T]) -> T:
        try:
            return parse(json.loads(self.files.read(name)))
        except (ValueError, LookupError, TypeError, AttributeError):  # not JSON, or other fields
            raise LakeError(f"{self.files.path(name)} is damaged") from None

    def refresh(self) -> LakeState:
        """Read the commits again."""
        self.state = self._load()
        return self.state

    def claim(self, ids: TopicIds = NO_IDS) -> None:
        """Become the writer and finish the commits of the previous one, which fails from now on.

        `ids` are the ids of archived topics, for lakes of older versions, which have none. Raises LakeError if commits
        or files are missing or damaged.
        """
        self._check_files()
        while not self._append(Commit(self.state.number + 1, ids=self._new_ids(ids), time_ms=_now_ms())):
            self.refresh()
        self.claim_name = f"{self.state.number:010d}-{self._writer}"
        for area, commit in self._areas():
            if area != commit.area:
                self.files.remove(f"{STAGING}/{area}")
            elif self._is_interrupted(commit):
                self._publish(commit, keep_since=ALWAYS)

    def _check_files(self) -> None:
        """Raise LakeError if commits or committed files are missing or damaged."""
        while found := find_damage(self.files, self.state, lambda paths: self._located(paths, wait_s=-1.0)):
            known = self.state.number
            if self.refresh().number == known:  # otherwise another writer may have committed or merged these files
                raise LakeError(found)

    def _is_interrupted(self, commit: Commit) -> bool:
        """Whether the writer of a commit was killed before or while it moved its files."""
        if self.files.exists(f"{STAGING}/{commit.area}/{PUBLISHED}"):
            return False
        return not commit.removed or not commit.time_ms or any(map(self.files.exists, commit.staged))

    def check(self) -> None:
        """Raise LakeError if another writer has claimed the lake."""
        if self.files.exists(_commit_name(self.state.number + 1)):
            raise self._fenced()

    def _fenced(self) -> LakeError:
        return LakeError(f"{self.files.root} has another writer, which made commit {self.state.number + 1}")

    def _append(self, commit: Commit) -> bool:
        """Add a commit to the log; return whether it is the first of its number."""
        number = commit.number
        if not self.files.create(_commit_name(number), commit_text(commit)):
            return False
        self.state = commit.apply(self.state)
        if number % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1:
            self.files.write(f"{COMMITS}/{number:010d}.snapshot.json", state_text(self.state))
        return True

    def _areas(self, wanted: Container[int] | None = None) -> Iterator[tuple[str, Commit]]:
        """The staging areas of committed numbers, or of the wanted ones, each with the commit of its number."""
        for area in self.files.names(STAGING):
            number = area.partition("-")[0]
            is_committed = number.isdecimal() and int(number) <= self.state.number
            if is_committed and (wanted is None or int(number) in wanted):
                yield area, self._parse(_commit_name(int(number)), parse_commit)

    def end_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The end offsets of the archived ones of these partitions."""
        known = self.state.ends.get(topic, {})
        return {index: known[index] for index in partitions if index in known}

    def has_other_topic(self, topic: str, topic_id: UUID) -> bool:
        """Whether the lake holds the records of another topic of this name."""
        return self.state.ids.get(topic, topic_id) != topic_id

    def _new_ids(self, ids: TopicIds) -> TopicIds:
        return {topic: topic_id for topic, topic_id in ids.items() if topic not in self.state.ids}

    def schema(self, topic: str | None) -> "StructType | None":
        """The schema of a topic in the lake, or of all; None if it has none of its records."""
        from pyspark.sql.types import StructType

        from levada.pipelines.lake.schemas import merge_files_schemas

        if topic is None:
            return self._common_schema()
        if topic in self.state.schemas:
            return StructType.fromJson(self.state.schemas[topic])
        # A lake of an older version. The files of a commit have the same schema.
        found = {file.commit: file.path for file in self.state.files.values() if file.topic == topic}
        return merge_files_schemas(self.files, self._located(found.values()))

    def _common_schema(self, topics: Iterable[str] = (), new: Schemas = NO_SCHEMAS) -> "StructType | None":
        """The schema of all topics in the lake and of these, where `new` has the schemas that will change."""
        from pyspark.sql.types import StructType

        from levada.pipelines.lake.schemas import merge_topics_schemas

        every = sorted({*topics, *(file.topic for file in self.state.files.values())})
        schemas = (StructType.fromJson(new[topic]) if topic in new else self.schema(topic) for topic in every)
        return merge_topics_schemas(self.files.root, [found for found in schemas if found is not None])

    def check_schema(self, topics: Sequence[str], records: "StructType", *, as_table: bool) -> None:
        """Raise LakeError if records of this schema cannot be added, or the lake could not be one table then."""
        schemas = self._new_schemas(topics, records)
        if as_table:
            self._common_schema(topics, schemas)

    def _new_schemas(self, topics: Iterable[str], records: "StructType") -> Schemas:
        """The schemas of topics after records of this schema are added, as far as they change."""
        from levada.pipelines.lake.schemas import lake_schema, merge_records_schema

        schemas = {}
        for topic in topics:
            old, new = self.schema(topic), lake_schema(records)
            merged = new if old is None else merge_records_schema(self.files.root, old, new)
            if merged.jsonValue() != self.state.schemas.get(topic):
                schemas[topic] = merged.jsonValue()
        return schemas

    def add(self, rows: "DataFrame", ends: EndOffsets, read_ids: Callable[[], TopicIds] = dict) -> None:
        """Commit these records, up to the offsets `ends`; `read_ids` gives the topics' ids after they were read."""
        schemas = self._new_schemas(ends, rows.schema)
        count = self.files.write_records(rows, self.staging())
        ids = read_ids()
        found = {topic: ids[topic] for topic in ends if topic in ids}
        self.commit(ends=ends, rows=count, ids=found, schemas=schemas)

    def staging(self) -> str:
        """An empty directory for the files of the next commit, which have the same subdirectories as in the lake."""
        name = f"{STAGING}/{self._next_area()}"
        self.files.remove(name)
        return name

    def _next_area(self) -> str:
        return f"{self.state.number + 1:010d}-{self._writer}"

    def commit(
        self,
        *,
        ends: EndOffsets | None = None,
        removed: Iterable[str] = (),
        rows: int = 0,
        ids: TopicIds = NO_IDS,
        schemas: Schemas = NO_SCHEMAS,
    ) -> Commit:
        """Commit the staged files with `rows` more records, up to the offsets `ends`.

        If they replace the `removed` files, those stay until `vacuum`.
        """
        number, area, gone = self.state.number + 1, self._next_area(), tuple(removed)
        found = [file for file in self.files.walk(f"{STAGING}/{area}") if file.path.endswith(".parquet")]
        self._check_staged([f"{STAGING}/{area}/{file.path}" for file in found], gone, rows)
        counts: dict[str, int] = {}
        added, staged = [], {}
        for file in sorted(found):
            directory = file.path.rpartition("/")[0]
            index = counts[directory] = counts.get(directory, -1) + 1
            added.append(LakeFile(f"{directory}/{_file_name(number, index)}", file.size, number))
            staged[added[-1].path] = file.path
        self._check_free(staged)
        ids = self._new_ids(ids)
        commit = Commit(number, tuple(added), gone, ends or {}, rows, area, staged, ids, schemas, _now_ms())
        started = time.monotonic()
        if not self._append(commit):
            raise self._fenced()
        if not gone:
            keep_since = ALWAYS if self.files.renames_by_copying else started + MOVE_SLOW_S
            self._publish(commit, keep_since=keep_since)
        return commit

    def _check_staged(self, staged: Sequence[str], removed: Sequence[str], rows: int) -> None:
        """Raise LakeError unless the staged files have the columns of the removed ones, and `rows` more rows."""
        try:
            check_merged(self.files, staged, self._located(removed), rows)
        except LakeError:
            self.check()
            raise

    def _check_free(self, targets: Iterable[str]) -> None:
        """Raise LakeError if a file has the name of one of the next commit, which would be taken for that."""
        for target in filter(self.files.exists, targets):
            self.check()
            raise LakeError(f"{self.files.path(target)} exists, and no commit has it: commits were removed")

    def _publish(self, commit: Commit, *, keep_since: float) -> None:
        """Move the files of a commit to their directories and remove those it removed.

        From the time `keep_since` on readers may have the paths of staged files: files that are not moved until then
        get a second name, and the staged ones stay until `vacuum`. Another process may have done any part of that, or
        do it now.
        """
        area = f"{STAGING}/{commit.area}"
        for target, source in commit.staged.items():
            if self.files.exists(f"{area}/{source}") and not self.files.exists(target):
                move = self.files.link if time.monotonic() > keep_since else self.files.rename
                move(f"{area}/{source}", target)
        for path in commit.removed:
            self.files.remove(path)
        if time.monotonic() > keep_since:
            self.files.write(f"{area}/{PUBLISHED}", str(_now_ms()))
        else:
            self.files.remove(area)

    def vacuum(self, retention_ms: int | None = None) -> None:
        """Remove the files that were merged longer ago than the retention, by default an hour."""
        retention = RETENTION_MS if retention_ms is None else retention_ms
        self.check()
        for area, commit in self._areas():
            if area != commit.area:
                continue
            if _now_ms() - commit.time_ms < retention:
                break  # later ones may remove files of this one, and do so in the order of commits
            is_published = self.files.exists(f"{STAGING}/{area}/{PUBLISHED}")
            if not is_published:
                self._publish(commit, keep_since=ALWAYS if retention > 0 else NEVER)
            elif _now_ms() - int(self.files.read(f"{STAGING}/{area}/{PUBLISHED}")) >= retention:
                self.files.remove(f"{STAGING}/{area}")

    def paths(self, topic: str | None = None) -> list[str]:
        """The full paths of the committed files of one topic, or of all, in the order of their commits."""
        return list(self.sizes(topic))

    def sizes(self, topic: str | None = None) -> dict[str, int]:
        """The bytes of the committed files by full path, in the order of their commits.

        A file that is committed and not moved yet has its path in the staging area.
        """
        wanted = [file for file in self.state.files.values() if topic in (None, file.topic)]
        ordered = sorted(wanted, key=lambda file: (file.commit, file.path))
        names = self._located([file.path for file in ordered])
        return {self.files.path(name): file.size for name, file in zip(names, ordered, strict=True)}

    def _located(self, paths: Iterable[str], wait_s: float | None = None) -> list[str]:
        """Where committed files are now: in their directories, or in the staging area.

        It waits for a writer that moves files, by default MOVE_TIMEOUT_S.
        """
        paths = list(paths)
        commits = {self.state.files[path].commit for path in paths}
        staged = {
            target: (f"{STAGING}/{area}/{source}", bool(commit.removed))
            for area, commit in self._areas(commits)
            if area == commit.area
            for target, source in commit.staged.items()
        }
        deadline = time.monotonic() + (MOVE_TIMEOUT_S if wait_s is None else wait_s)
        return [self._locate(path, *staged[path], deadline) if path in staged else path for path in paths]

    def _locate(self, path: str, staged: str, is_merged: bool, deadline: float) -> str:
        """The path of a file, or its staged name if it stays there for the retention.

        Merged files stay, those of a killed writer, and all where a rename is a copy. Other writers move files at once.
        """
        while not self.files.exists(path):
            if is_merged or time.monotonic() > deadline:
                return staged
            time.sleep(0.05)
        return path

    def compact(self, spark: "SparkSession", policy: CompactionPolicy) -> int:
        """Merge small files, with one commit per directory; return the number of files replaced."""
        replaced = 0
        for directory, files in small_files(self.state.files.values(), policy).items():
            area, schema = self.staging(), self.schema(files[0].topic)
            assert schema is not None
            paths = [self.files.path(name) for name in self._located([file.path for file in files])]
            count = sum(file.size for file in files) // policy.small_bytes
            merge_files(spark, paths, schema, self.files.path(f"{area}/{directory}"), count)
            self.commit(removed=[file.path for file in files])
            replaced += len(files)
        return replaced
