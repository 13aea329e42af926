"""A lake of topics: Parquet files by topic and date, and a log of commits that says which of them count.

    lake/topic=orders/date=2026-11-15/0000000012-00.parquet     anybody reads these: spark.read.parquet("lake")
    lake/_levada/commits/0000000012.json                        what commit 12 added and removed, up to which offsets
    lake/_levada/staging/0000000013/...                         what is being written

A commit is one small file that appears in one step. Its files lie in the staging area then, and are moved to their
places afterwards; whoever opens the lake next to write does that for a writer that was killed in between. So a batch
is in the lake wholly or not at all, and since the offsets stand in the same commit, the log goes on exactly where the
lake ends: what a writer offers again is below that end and left out.
"""

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from levada.pipelines.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COMMITS = "_levada/commits"
STAGING = "_levada/staging"
SNAPSHOT_EVERY = 50  # commits; a snapshot spares readers those before it

Positions = dict[str, dict[int, int]]  # by topic and partition: the offset after the last


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


class Commit(NamedTuple):
    """A change of the lake."""

    number: int
    added: tuple[LakeFile, ...]
    removed: tuple[str, ...] = ()
    ends: Positions = {}
    rows: int = 0

    def apply(self, state: State) -> State:
        """The lake after this."""
        removed = set(self.removed)
        files = {path: file for path, file in state.files.items() if path not in removed}
        files |= {file.path: file for file in self.added}
        return State(self.number, files, merged(state.ends, self.ends), state.rows + self.rows)


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


class Lake:
    """One directory. Any number of readers, one writer at a time."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.state = self._load()

    def _load(self) -> State:
        state = State()
        names = self.files.names(COMMITS)
        snapshots = [name for name in names if name.endswith(".snapshot.json")]
        if snapshots:
            state = _state(self._json(f"{COMMITS}/{snapshots[-1]}"))
        for name in names:
            stem = name.removesuffix(".json")
            if stem.isdigit() and name.endswith(".json") and int(stem) > state.number:
                commit = _commit(self._json(f"{COMMITS}/{name}"))
                if commit.number != state.number + 1:
                    raise LakeError(f"{self.files.root} has lost its commit {state.number + 1}")
                state = commit.apply(state)
        return state

    def _json(self, name: str) -> Any:
        try:
            return json.loads(self.files.read(name))
        except ValueError:
            raise LakeError(f"{self.files.path(name)} is damaged") from None

    def refresh(self) -> State:
        """As of now, for readers."""
        self.state = self._load()
        return self.state

    def recover(self) -> None:
        """Finish what the last writer had committed, and throw away what it had not; for the writer, first."""
        for name in self.files.names(STAGING):
            if name.isdigit() and int(name) <= self.state.number:
                self._publish(_commit(self._json(f"{COMMITS}/{int(name):010d}.json")))
            else:
                self.files.remove(f"{STAGING}/{name}")

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Where the lake ends in those partitions that it knows."""
        known = self.state.ends.get(topic, {})
        return {index: known[index] for index in partitions if index in known}

    def add(self, rows: "DataFrame", ends: Positions) -> None:
        """These records, up to the offsets `ends`, in one commit."""
        count = self.files.write_records(rows, self.staging())
        self.commit(ends=ends, rows=count)

    def staging(self) -> str:
        """Where the files of the next commit are to be written, in the directories they will have in the lake."""
        name = f"{STAGING}/{self.state.number + 1:010d}"
        self.files.remove(name)
        return name

    def commit(self, *, ends: Positions | None = None, removed: Iterable[str] = (), rows: int = 0) -> Commit:
        """Make the staged files count, instead of the `removed` ones, up to the offsets `ends`."""
        number = self.state.number + 1
        if self.files.exists(f"{COMMITS}/{number:010d}.json"):
            raise LakeError(f"{self.files.root} has another writer, which made commit {number}")
        found = [
            file for file in self.files.walk(f"{STAGING}/{number:010d}") if file.path.endswith(".parquet")
        ]
        counts: dict[str, int] = {}
        added = []
        for file in sorted(found):
            directory = file.path.rpartition("/")[0]
            index = counts[directory] = counts.get(directory, -1) + 1
            added.append((file, LakeFile(f"{directory}/{_file_name(number, index)}", file.size, number)))
        commit = Commit(number, tuple(file for _, file in added), tuple(removed), ends or {}, rows)
        staged = {target.path: source.path for source, target in added}
        self.files.write(f"{COMMITS}/{number:010d}.json", _commit_text(commit, staged))
        self._publish(commit, staged)
        self.state = commit.apply(self.state)
        if number % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1:
            self.files.write(f"{COMMITS}/{number:010d}.snapshot.json", _state_text(self.state))
        return commit

    def _publish(self, commit: Commit, staged: Mapping[str, str] | None = None) -> None:
        """Move its files to their places and drop those it removed; any part of that may be done already."""
        if staged is None:
            staged = self._json(f"{COMMITS}/{commit.number:010d}.json")["staged"]
        area = f"{STAGING}/{commit.number:010d}"
        for target, source in staged.items():
            if self.files.exists(f"{area}/{source}"):
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
        newest = [file for file in wanted if file.commit == self.state.number]
        staged: Mapping[str, str] = {}
        if any(not self.files.exists(file.path) for file in newest):
            staged = self._json(f"{COMMITS}/{self.state.number:010d}.json")["staged"]
        found = []
        for file in sorted(wanted, key=lambda file: (file.commit, file.path)):
            path = file.path
            if file.path in staged and not self.files.exists(path):
                path = f"{STAGING}/{file.commit:010d}/{staged[file.path]}"
            found.append(self.files.path(path))
        return found


def _commit_text(commit: Commit, staged: Mapping[str, str]) -> str:
    content = {
        "number": commit.number,
        "added": [list(file[:2]) for file in commit.added],
        "removed": list(commit.removed),
        "ends": commit.ends,
        "rows": commit.rows,
        "staged": dict(staged),
    }
    return json.dumps(content)


def _commit(content: Any) -> Commit:
    number = content["number"]
    added = tuple(LakeFile(path, size, number) for path, size in content["added"])
    return Commit(number, added, tuple(content["removed"]), _positions(content["ends"]), content["rows"])


def _state_text(state: State) -> str:
    files = [list(file) for file in state.files.values()]
    return json.dumps({"number": state.number, "files": files, "ends": state.ends, "rows": state.rows})


def _state(content: Any) -> State:
    files = {path: LakeFile(path, size, number) for path, size, number in content["files"]}
    return State(content["number"], files, _positions(content["ends"]), content["rows"])


def _positions(content: Any) -> Positions:
    return {topic: {int(index): end for index, end in ends.items()} for topic, ends in content.items()}
