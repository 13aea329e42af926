"""A Parquet lake: files by topic and date, and a commit log that lists the files and end offsets of the lake.

    lake/topic=orders/date=2026-11-15/0000000012-000.parquet    data files: spark.read.parquet("lake")
    lake/_levada/commits/0000000012.json                        commit 12: files added and removed, end offsets
    lake/_levada/staging/0000000013-5ad0c1e2f3b4/...            files of the commit that a writer prepares

A commit is one small file that is created atomically. Its data files are in the staging area then and are moved to
their directories afterwards; if the writer is killed in between, the next writer finishes the move. So a batch is in
the lake wholly or not at all. The end offsets are in the same commit, so the topic continues exactly where the lake
ends, and records that a writer offers again are below that end and left out.

The last writer to claim the lake owns it. A claim is a commit that changes nothing. Only one writer can create the
commit of a number, so an earlier writer, dead or alive, fails at its next commit; no clock is involved. Files staged
for a number that is taken can never be committed by another writer.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

from levada.pipelines.errors import LakeError
from levada.pipelines.lake.files import PARQUET_OPTIONS, Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMITS = "_levada/commits"
STAGING = "_levada/staging"
SNAPSHOT_EVERY = 50  # commits; readers skip the commits before a snapshot

EndOffsets = dict[str, dict[int, int]]  # by topic and partition: the offset after the last record
TopicIds = Mapping[str, UUID]  # by topic; a topic that is deleted and created again has another id
NO_IDS: TopicIds = {}

T = TypeVar("T")


class CompactionPolicy(NamedTuple):
    """When the files of a directory are compacted."""

    small_bytes: int = 64 << 20  # smaller files are merged
    files_max: int = 16  # so many small files may be in a directory


COMPACTION = CompactionPolicy()


class LakeFile(NamedTuple):
    """One committed Parquet file."""

    path: str  # from the lake's root
    size: int
    commit: int  # the commit that added it

    @property
    def directory(self) -> str:
        return self.path.rpartition("/")[0]


class LakeState(NamedTuple):
    """The lake as of one commit."""

    number: int = -1  # of the newest commit
    files: Mapping[str, LakeFile] = {}
    ends: EndOffsets = {}
    rows: int = 0  # archived since the lake was created
    ids: TopicIds = {}  # of the archived topics; incomplete in lakes of older versions

    def small_files(self, policy: CompactionPolicy) -> dict[str, list[LakeFile]]:
        """The directories with too many small files, and those files."""
        small: dict[str, list[LakeFile]] = {}
        for file in self.files.values():
            if file.size < policy.small_bytes:
                small.setdefault(file.directory, []).append(file)
        return {directory: files for directory, files in small.items() if len(files) > policy.files_max}


class Commit(NamedTuple):
    """A change of the lake."""

    number: int
    added: tuple[LakeFile, ...] = ()
    removed: tuple[str, ...] = ()
    ends: EndOffsets = {}
    rows: int = 0
    area: str = ""  # the directory below STAGING with the added files, until they are moved
    staged: Mapping[str, str] = {}  # by path: its name in that directory
    ids: TopicIds = {}  # new to the lake

    def apply(self, state: LakeState) -> LakeState:
        """The state of the lake after this commit."""
        removed = set(self.removed)
        files = {path: file for path, file in state.files.items() if path not in removed}
        files |= {file.path: file for file in self.added}
        ends, rows = merge_offsets(state.ends, self.ends), state.rows + self.rows
        return LakeState(self.number, files, ends, rows, {**state.ids, **self.ids})


def merge_offsets(ends: EndOffsets, more: EndOffsets) -> EndOffsets:
    """The higher offset of each partition."""
    result = {topic: dict(partitions) for topic, partitions in ends.items()}
    for topic, partitions in more.items():
        known = result.setdefault(topic, {})
        for partition, end in partitions.items():
            known[partition] = max(end, known.get(partition, 0))
    return result


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
            state = self._parse(f"{COMMITS}/{snapshots[-1]}", _state)
        for name in names:
            stem = name.removesuffix(".json")
            if stem.isdigit() and name.endswith(".json") and int(stem) > state.number:
                commit = self._parse(f"{COMMITS}/{name}", _commit)
                if commit.number != state.number + 1:
                    raise LakeError(f"{self.files.root}: commit {state.number + 1} is missing")
                state = commit.apply(state)
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

        `ids` are the ids of archived topics, for lakes of older versions, which have none.
        """
        while not self._append(Commit(self.state.number + 1, ids=self._new_ids(ids))):
            self.refresh()
        self.claim_name = f"{self.state.number:010d}-{self._writer}"
        for area, commit in self._areas():
            if area == commit.area:
                self._publish(commit)
            else:
                self.files.remove(f"{STAGING}/{area}")

    def check(self) -> None:
        """Raise LakeError if another writer has claimed the lake."""
        if self.files.exists(_commit_name(self.state.number + 1)):
            raise self._fenced()

    def _fenced(self) -> LakeError:
        return LakeError(f"{self.files.root} has another writer, which made commit {self.state.number + 1}")

    def _append(self, commit: Commit) -> bool:
        """Add a commit to the log; return whether it is the first of its number."""
        number = commit.number
        if not self.files.create(_commit_name(number), _commit_text(commit)):
            return False
        self.state = commit.apply(self.state)
        if number % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1:
            self.files.write(f"{COMMITS}/{number:010d}.snapshot.json", _state_text(self.state))
        return True

    def _areas(self) -> Iterator[tuple[str, Commit]]:
        """The staging areas of committed numbers, each with the commit of its number."""
        for area in self.files.names(STAGING):
            number = area.partition("-")[0]
            if number.isdecimal() and int(number) <= self.state.number:
                yield area, self._parse(_commit_name(int(number)), _commit)

    def end_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The end offsets of the archived ones of these partitions."""
        known = self.state.ends.get(topic, {})
        return {index: known[index] for index in partitions if index in known}

    def has_other_topic(self, topic: str, topic_id: UUID) -> bool:
        """Whether the lake holds the records of another topic of this name."""
        return self.state.ids.get(topic, topic_id) != topic_id

    def _new_ids(self, ids: TopicIds) -> TopicIds:
        return {topic: topic_id for topic, topic_id in ids.items() if topic not in self.state.ids}

    def add(self, rows: "DataFrame", ends: EndOffsets, read_ids: Callable[[], TopicIds] = dict) -> None:
        """Commit these records, up to the offsets `ends`; `read_ids` gives the topics' ids after they were read."""
        count = self.files.write_records(rows, self.staging())
        ids = read_ids()
        self.commit(ends=ends, rows=count, ids={topic: ids[topic] for topic in ends if topic in ids})

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
    ) -> Commit:
        """Commit the staged files, which replace the `removed` ones and have `rows` more, up to the offsets `ends`."""
        number, area, gone = self.state.number + 1, self._next_area(), tuple(removed)
        found = [file for file in self.files.walk(f"{STAGING}/{area}") if file.path.endswith(".parquet")]
        self._check_rows([f"{STAGING}/{area}/{file.path}" for file in found], gone, rows)
        counts: dict[str, int] = {}
        added, staged = [], {}
        for file in sorted(found):
            directory = file.path.rpartition("/")[0]
            index = counts[directory] = counts.get(directory, -1) + 1
            added.append(LakeFile(f"{directory}/{_file_name(number, index)}", file.size, number))
            staged[added[-1].path] = file.path
        commit = Commit(number, tuple(added), gone, ends or {}, rows, area, staged, self._new_ids(ids))
        if not self._append(commit):
            raise self._fenced()
        self._publish(commit)
        return commit

    def _check_rows(self, staged: Iterable[str], removed: Iterable[str], rows: int) -> None:
        """Raise LakeError unless the staged files have `rows` more than the removed ones."""
        expected = rows + sum(map(self.files.parquet_rows, removed))
        found = sum(map(self.files.parquet_rows, staged))
        if found != expected:
            self.check()
            raise LakeError(f"{self.files.root}: {expected} records were written, {found} are in the files")

    def _publish(self, commit: Commit) -> None:
        """Move the files of a commit to their directories and remove those it removed.

        Another process may have done any part of that, or do it now.
        """
        area = f"{STAGING}/{commit.area}"
        for target, source in commit.staged.items():
            if self.files.exists(f"{area}/{source}") and not self.files.exists(target):
                self.files.rename(f"{area}/{source}", target)
        for path in commit.removed:
            self.files.remove(path)
        self.files.remove(area)

    def paths(self, topic: str | None = None) -> list[str]:
        """The full paths of the committed files of one topic, or of all, in the order of their commits.

        A file that is committed and not moved yet has its path in the staging area.
        """
        prefix = "" if topic is None else f"topic={topic}/"
        wanted = [file for file in self.state.files.values() if file.path.startswith(prefix)]
        staged = {
            target: f"{STAGING}/{area}/{source}"
            for area, commit in self._areas()
            if area == commit.area
            for target, source in commit.staged.items()
        }
        found = []
        for file in sorted(wanted, key=lambda file: (file.commit, file.path)):
            moved = file.path not in staged or self.files.exists(file.path)
            found.append(self.files.path(file.path if moved else staged[file.path]))
        return found

    def compact(self, spark: "SparkSession", policy: CompactionPolicy) -> int:
        """Merge small files, with one commit per directory; return the number of files replaced."""
        replaced = 0
        for directory, files in self.state.small_files(policy).items():
            area = self.staging()
            rows = spark.read.parquet(*(self.files.path(file.path) for file in files))  # without topic and date
            count = sum(file.size for file in files) // policy.small_bytes
            merged = rows.repartitionByRange(count, "partition", "offset") if count > 1 else rows.coalesce(1)
            rows = merged.sortWithinPartitions("partition", "offset")
            rows.write.options(**PARQUET_OPTIONS).mode("overwrite").parquet(self.files.path(f"{area}/{directory}"))
            self.commit(removed=[file.path for file in files])
            replaced += len(files)
        return replaced


def _commit_text(commit: Commit) -> str:
    content = {
        "number": commit.number,
        "added": [list(file[:2]) for file in commit.added],
        "removed": list(commit.removed),
        "ends": commit.ends,
        "rows": commit.rows,
        "area": commit.area,
        "staged": dict(commit.staged),
        "ids": _ids_text(commit.ids),
    }
    return json.dumps(content)


def _commit(content: Any) -> Commit:
    number = content["number"]
    added = tuple(LakeFile(path, size, number) for path, size in content["added"])
    area = content.get("area", f"{number:010d}")  # older versions had one area per number
    return Commit(
        number,
        added,
        tuple(content["removed"]),
        _offsets(content["ends"]),
        content["rows"],
        area,
        content["staged"],
        _ids(content),
    )


def _state_text(state: LakeState) -> str:
    files = [list(file) for file in state.files.values()]
    content = {"number": state.number, "files": files, "ends": state.ends, "rows": state.rows}
    return json.dumps(content | {"ids": _ids_text(state.ids)})


def _state(content: Any) -> LakeState:
    files = {path: LakeFile(path, size, number) for path, size, number in content["files"]}
    return LakeState(content["number"], files, _offsets(content["ends"]), content["rows"], _ids(content))


def _ids_text(ids: TopicIds) -> dict[str, str]:
    return {topic: str(topic_id) for topic, topic_id in ids.items()}


def _ids(content: Any) -> TopicIds:
    return {topic: UUID(topic_id) for topic, topic_id in content.get("ids", {}).items()}


def _offsets(content: Any) -> EndOffsets:
    return {topic: {int(index): end for index, end in ends.items()} for topic, ends in content.items()}
