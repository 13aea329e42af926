"""A lake of topics: Parquet files by topic and date, and a log of commits that says which of them count.

    lake/topic=orders/date=2026-11-15/0000000012-00.parquet     anybody reads these: spark.read.parquet("lake")
    lake/_levada/commits/0000000012.json                        what commit 12 added and removed, up to which offsets
    lake/_levada/staging/0000000013-5ad0c1e2f3b4/...            what a writer is writing

A commit is one small file that appears in one step. Its files lie in the staging area then, and are moved to their
places afterwards; whoever opens the lake next to write does that for a writer that was killed in between. So a batch
is in the lake wholly or not at all, and since the offsets stand in the same commit, the log goes on exactly where the
lake ends: what a writer offers again is below that end and left out.

The last writer to come has the lake. It claims it with a commit that changes nothing: of those who try to make a
commit of one number one succeeds, so whoever wrote before fails with its next commit, dead or alive, and nobody's
clock is asked. What is staged for a number that is taken can never be committed by another.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

from levada.pipelines.lake.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COMMITS = "_levada/commits"
STAGING = "_levada/staging"
SNAPSHOT_EVERY = 50  # commits; a snapshot spares readers those before it

Positions = dict[str, dict[int, int]]  # by topic and partition: the offset after the last
Ids = Mapping[str, UUID]  # by topic: one that was deleted and made again has another
NO_IDS: Ids = {}

T = TypeVar("T")


class LakeError(Exception):
    """The lake is not what it should be; says where."""


class LakeFile(NamedTuple):
    """One Parquet file that counts."""

    path: str  # from the lake's root
    size: int
    commit: int  # that added it

    @property
    def directory(self) -> str:
        return self.path.rpartition("/")[0]


class State(NamedTuple):
    """The lake as of one commit."""

    number: int = -1  # of the newest commit
    files: Mapping[str, LakeFile] = {}
    ends: Positions = {}
    rows: int = 0  # ever added by archiving
    ids: Ids = {}  # of the topics whose offsets these are; older lakes do not know them all


class Commit(NamedTuple):
    """A change of the lake."""

    number: int
    added: tuple[LakeFile, ...] = ()
    removed: tuple[str, ...] = ()
    ends: Positions = {}
    rows: int = 0
    area: str = ""  # below STAGING: where the added files lie until they are moved
    staged: Mapping[str, str] = {}  # by path: its name in that area
    ids: Ids = {}  # that the lake did not know

    def apply(self, state: State) -> State:
        """The lake after this."""
        removed = set(self.removed)
        files = {path: file for path, file in state.files.items() if path not in removed}
        files |= {file.path: file for file in self.added}
        ends, rows = merged(state.ends, self.ends), state.rows + self.rows
        return State(self.number, files, ends, rows, {**state.ids, **self.ids})


def merged(ends: Positions, more: Positions) -> Positions:
    """The further of both for each partition."""
    result = {topic: dict(partitions) for topic, partitions in ends.items()}
    for topic, partitions in more.items():
        mine = result.setdefault(topic, {})
        for partition, end in partitions.items():
            mine[partition] = max(end, mine.get(partition, 0))
    return result


def _file_name(number: int, index: int) -> str:
    return f"{number:010d}-{index:03d}.parquet"


def _commit_name(number: int) -> str:
    return f"{COMMITS}/{number:010d}.json"


class Lake:
    """One directory. Any number of readers, and one writer: the last that claimed it."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.state = self._load()
        self.claimed = ""  # the name of the claim; by these names claims are in their order
        self._writer = uuid.uuid4().hex[:12]

    def _load(self) -> State:
        state = State()
        names = self.files.names(COMMITS)
        snapshots = [name for name in names if name.endswith(".snapshot.json")]
        if snapshots:
            state = self._parsed(f"{COMMITS}/{snapshots[-1]}", _state)
        for name in names:
            stem = name.removesuffix(".json")
            if stem.isdigit() and name.endswith(".json") and int(stem) > state.number:
                commit = self._parsed(f"{COMMITS}/{name}", _commit)
                if commit.number != state.number + 1:
                    raise LakeError(f"{self.files.root} has lost its commit {state.number + 1}")
                state = commit.apply(state)
        return state

    def _parsed(self, name: str, parse: Callable[[Any], T]) -> T:
        try:
            return parse(json.loads(self.files.read(name)))
        except (ValueError, LookupError, TypeError, AttributeError):  # no JSON, or not what it should say
            raise LakeError(f"{self.files.path(name)} is damaged") from None

    def refresh(self) -> State:
        """As of now, for readers."""
        self.state = self._load()
        return self.state

    def claim(self, ids: Ids = NO_IDS) -> None:
        """Become the writer: whoever was it fails from now on, and what it had committed is finished here.

        `ids` are of topics that the lake has; an older lake learns them.
        """
        while not self._append(Commit(self.state.number + 1, ids=self._unknown(ids))):
            self.refresh()
        self.claimed = f"{self.state.number:010d}-{self._writer}"
        for area, commit in self._areas():
            if area == commit.area:
                self._publish(commit)
            else:
                self.files.remove(f"{STAGING}/{area}")

    def check(self) -> None:
        """LakeError if another writer has come."""
        if self.files.exists(_commit_name(self.state.number + 1)):
            raise self._taken()

    def _taken(self) -> LakeError:
        return LakeError(f"{self.files.root} has another writer, which made commit {self.state.number + 1}")

    def _append(self, commit: Commit) -> bool:
        """Add it to the log; whether it was the first of that number."""
        number = commit.number
        if not self.files.create(_commit_name(number), _commit_text(commit)):
            return False
        self.state = commit.apply(self.state)
        if number % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1:
            self.files.write(f"{COMMITS}/{number:010d}.snapshot.json", _state_text(self.state))
        return True

    def _areas(self) -> Iterator[tuple[str, Commit]]:
        """What is staged for numbers that are taken, each area with the commit of its number."""
        for area in self.files.names(STAGING):
            number = area.partition("-")[0]
            if number.isdecimal() and int(number) <= self.state.number:
                yield area, self._parsed(_commit_name(int(number)), _commit)

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Where the lake ends in those partitions that it knows."""
        known = self.state.ends.get(topic, {})
        return {index: known[index] for index in partitions if index in known}

    def is_other(self, topic: str, topic_id: UUID) -> bool:
        """Whether its records are those of another topic of that name."""
        return self.state.ids.get(topic, topic_id) != topic_id

    def _unknown(self, ids: Ids) -> Ids:
        return {topic: topic_id for topic, topic_id in ids.items() if topic not in self.state.ids}

    def add(self, rows: "DataFrame", ends: Positions, ask: Callable[[], Ids] = dict) -> None:
        """These records, up to the offsets `ends`, in one commit; `ask`, when they are read, for their topics' ids."""
        count = self.files.write_records(rows, self.staging())
        ids = ask()
        self.commit(ends=ends, rows=count, ids={topic: ids[topic] for topic in ends if topic in ids})

    def staging(self) -> str:
        """Where the files of the next commit are to be written, in the directories they will have in the lake."""
        name = f"{STAGING}/{self._area()}"
        self.files.remove(name)
        return name

    def _area(self) -> str:
        return f"{self.state.number + 1:010d}-{self._writer}"

    def commit(
        self, *, ends: Positions | None = None, removed: Iterable[str] = (), rows: int = 0, ids: Ids = NO_IDS
    ) -> Commit:
        """Make the staged files count, instead of the `removed` ones, with `rows` more, up to the offsets `ends`."""
        number, area, gone = self.state.number + 1, self._area(), tuple(removed)
        found = [file for file in self.files.walk(f"{STAGING}/{area}") if file.path.endswith(".parquet")]
        self._check_rows([f"{STAGING}/{area}/{file.path}" for file in found], gone, rows)
        counts: dict[str, int] = {}
        added, staged = [], {}
        for file in sorted(found):
            directory = file.path.rpartition("/")[0]
            index = counts[directory] = counts.get(directory, -1) + 1
            added.append(LakeFile(f"{directory}/{_file_name(number, index)}", file.size, number))
            staged[added[-1].path] = file.path
        commit = Commit(number, tuple(added), gone, ends or {}, rows, area, staged, self._unknown(ids))
        if not self._append(commit):
            raise self._taken()
        self._publish(commit)
        return commit

    def _check_rows(self, staged: Iterable[str], removed: Iterable[str], rows: int) -> None:
        """LakeError unless these files have what the removed ones had, and so many rows more."""
        wanted = rows + sum(map(self.files.parquet_rows, removed))
        has = sum(map(self.files.parquet_rows, staged))
        if has != wanted:
            self.check()
            raise LakeError(f"{self.files.root}: {wanted} records were written and {has} are there")

    def _publish(self, commit: Commit) -> None:
        """Move its files to their places and drop those it removed; others may have done, or do, any part of that."""
        area = f"{STAGING}/{commit.area}"
        for target, source in commit.staged.items():
            if self.files.exists(f"{area}/{source}") and not self.files.exists(target):
                self.files.rename(f"{area}/{source}", target)
        for path in commit.removed:
            self.files.remove(path)
        self.files.remove(area)

    def paths(self, topic: str | None = None) -> list[str]:
        """Where the files that count are now, whole paths in the order of their commits; of one topic, or all.

        One that is committed and not yet in its place is read where it is staged.
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
    area = content.get("area", f"{number:010d}")  # older lakes had one area for a number
    return Commit(
        number,
        added,
        tuple(content["removed"]),
        _positions(content["ends"]),
        content["rows"],
        area,
        content["staged"],
        _ids(content),
    )


def _state_text(state: State) -> str:
    files = [list(file) for file in state.files.values()]
    content = {"number": state.number, "files": files, "ends": state.ends, "rows": state.rows}
    return json.dumps(content | {"ids": _ids_text(state.ids)})


def _state(content: Any) -> State:
    files = {path: LakeFile(path, size, number) for path, size, number in content["files"]}
    return State(content["number"], files, _positions(content["ends"]), content["rows"], _ids(content))


def _ids_text(ids: Ids) -> dict[str, str]:
    return {topic: str(topic_id) for topic, topic_id in ids.items()}


def _ids(content: Any) -> Ids:
    return {topic: UUID(topic_id) for topic, topic_id in content.get("ids", {}).items()}


def _positions(content: Any) -> Positions:
    return {topic: {int(index): end for index, end in ends.items()} for topic, ends in content.items()}
