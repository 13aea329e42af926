"""The lake's commits, with a writer that dies at every step (R61): a batch is in it wholly or not at all."""

from collections.abc import Iterator

import pytest

from levada.pipelines.compacting import Sizes, too_small
from levada.pipelines.files import Files, Found
from levada.pipelines.lake import COMMITS, SNAPSHOT_EVERY, STAGING, Lake, LakeError, merged


class Died(BaseException):
    """The process is gone."""


class FilesInMemory(Files):
    """The same verbs on a dictionary; dies before the verb number `dies_at` that changes something."""

    def __init__(self) -> None:
        self.root = "memory:/lake"
        self.content: dict[str, str] = {}
        self.dies_at = -1
        self.changes = 0

    def _change(self) -> None:
        if self.changes == self.dies_at:
            raise Died
        self.changes += 1

    def exists(self, name: str) -> bool:
        return any(path == name or path.startswith(name + "/") for path in self.content)

    def names(self, directory: str) -> list[str]:
        start = directory + "/"
        return sorted({path[len(start) :].split("/")[0] for path in self.content if path.startswith(start)})

    def walk(self, directory: str) -> Iterator[Found]:
        for path, content in list(self.content.items()):
            if path.startswith(directory + "/"):
                yield Found(path[len(directory) + 1 :], len(content))

    def read(self, name: str) -> str:
        return self.content[name]

    def write(self, name: str, text: str) -> None:
        self._change()
        self.content[name] = text

    def rename(self, source: str, target: str) -> None:
        self._change()
        self.content[target] = self.content.pop(source)

    def remove(self, name: str) -> None:
        if self.exists(name):
            self._change()
            for path in [path for path in self.content if path == name or path.startswith(name + "/")]:
                del self.content[path]


def stage(lake: Lake, *rows: str, directory: str = "topic=t/date=2026-11-15") -> None:
    area = lake.staging()
    for number, row in enumerate(rows):
        lake.files.write(f"{area}/{directory}/part-{number}-x.snappy.parquet", row)
    lake.files.write(f"{area}/_SUCCESS", "")


def rows(files: FilesInMemory, lake: Lake) -> list[str]:
    """What a reader of the lake finds."""
    return [files.content[path.removeprefix("memory:/lake/")] for path in lake.paths()]


def plain_rows(files: FilesInMemory) -> list[str]:
    """What somebody finds who knows nothing but the directory."""
    return sorted(content for path, content in files.content.items() if not path.startswith("_levada/"))


def test_commits_add_up() -> None:
    files = FilesInMemory()
    lake = Lake(files)
    stage(lake, "a", "b")
    lake.commit(ends={"t": {0: 2}}, rows=2)
    stage(lake, "c", directory="topic=u/date=2026-11-16")
    lake.commit(ends={"u": {3: 1}}, rows=1)
    again = Lake(files)
    assert again.state == lake.state
    assert again.state.ends == {"t": {0: 2}, "u": {3: 1}} and again.state.rows == 3
    assert rows(files, again) == ["a", "b", "c"] and plain_rows(files) == ["a", "b", "c"]
    assert [path.rpartition("/")[2] for path in again.paths("u")] == ["0000000001-000.parquet"]
    assert not again.files.names(STAGING)


def steps_of_a_commit() -> int:
    files = FilesInMemory()
    lake = Lake(files)
    stage(lake, "a", "b")
    before = files.changes
    lake.commit(ends={"t": {0: 2}})
    return files.changes - before


@pytest.mark.parametrize("step", range(steps_of_a_commit() + 1))
def test_a_batch_is_in_the_lake_wholly_or_not_at_all(step: int) -> None:
    files = FilesInMemory()
    lake = Lake(files)
    stage(lake, "old")
    lake.commit(ends={"t": {0: 1}})
    stage(lake, "a", "b")
    files.dies_at = files.changes + step
    try:
        lake.commit(ends={"t": {0: 3}})
    except Died:
        pass
    files.dies_at = -1
    reader = Lake(files)
    assert (rows(files, reader), reader.state.ends) in [
        (["old"], {"t": {0: 1}}),
        (["old", "a", "b"], {"t": {0: 3}}),
    ]
    assert set(plain_rows(files)) <= set(rows(files, reader))  # nobody sees what is not committed
    writer = Lake(files)
    writer.recover()
    assert plain_rows(files) == sorted(rows(files, writer)) == sorted(rows(files, reader))
    assert not files.names(STAGING)
    if writer.state.ends == {"t": {0: 1}}:
        stage(writer, "a", "b")
        writer.commit(ends={"t": {0: 3}})
    assert plain_rows(files) == ["a", "b", "old"]


@pytest.mark.parametrize("step", range(12))
def test_compaction_keeps_every_row_at_every_step(step: int) -> None:
    files = FilesInMemory()
    lake = Lake(files)
    for row in "abc":
        stage(lake, row)
        lake.commit(ends={"t": {0: 1}}, rows=1)
    stage(lake, "abc")
    files.dies_at = files.changes + step
    try:
        lake.commit(removed=[file.path for file in lake.state.files.values()])
    except Died:
        pass
    files.dies_at = -1
    writer = Lake(files)
    writer.recover()
    assert "".join(rows(files, writer)) == "abc" == "".join(plain_rows(files))
    assert writer.state.rows == 3


def test_snapshots_spare_old_commits() -> None:
    files = FilesInMemory()
    lake = Lake(files)
    for number in range(SNAPSHOT_EVERY + 3):
        stage(lake, str(number))
        lake.commit(ends={"t": {0: number + 1}}, rows=1)
    for number in range(SNAPSHOT_EVERY):
        files.remove(f"{COMMITS}/{number:010d}.json")
    assert Lake(files).state == lake.state


def test_two_writers_do_not_overwrite_each_other() -> None:
    files = FilesInMemory()
    first, second = Lake(files), Lake(files)
    stage(first, "a")
    first.commit()
    stage(second, "b")
    with pytest.raises(LakeError, match="another writer"):
        second.commit()


def test_damage_is_named() -> None:
    files = FilesInMemory()
    lake = Lake(files)
    for row in "ab":
        stage(lake, row)
        lake.commit()
    damaged = f"{COMMITS}/{0:010d}.json"
    content = files.content[damaged]
    files.content[damaged] = content[:-1]
    with pytest.raises(LakeError, match=r"0000000000\.json is damaged"):
        Lake(files)
    del files.content[damaged]
    with pytest.raises(LakeError, match="lost its commit 0"):
        Lake(files)


def test_only_directories_with_many_small_files_are_joined() -> None:
    files = FilesInMemory()
    lake = Lake(files)
    for _ in range(3):
        stage(lake, "small", directory="topic=t/date=1")
        lake.commit()
    stage(lake, "small", "x" * 1000, directory="topic=t/date=2")
    lake.commit()
    found = too_small(lake.state, Sizes(small_bytes=100, files_max=2))
    assert {directory: len(small) for directory, small in found.items()} == {"topic=t/date=1": 3}


def test_ends_never_go_back() -> None:
    assert merged({"t": {0: 5, 1: 2}}, {"t": {0: 3, 2: 1}, "u": {0: 9}}) == {
        "t": {0: 5, 1: 2, 2: 1},
        "u": {0: 9},
    }
