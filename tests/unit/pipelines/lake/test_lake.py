"""Commits to a lake are atomic, with writers that die or meet at every step."""

import json
from collections.abc import Iterator
from threading import Semaphore, Thread
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.cli.errors import EXIT_USAGE
from levada.cli.main import run
from levada.pipelines.errors import LakeError
from levada.pipelines.lake.files import Files, FoundFile
from levada.pipelines.lake.parquet import (
    COMMITS,
    SNAPSHOT_EVERY,
    STAGING,
    CompactionPolicy,
    EndOffsets,
    ParquetLake,
    merge_offsets,
)


class Died(BaseException):
    """The process is gone."""


class FilesInMemory(Files):
    """The same verbs on a dictionary; dies before the verb number `dies_at` that changes something."""

    def __init__(self, content: dict[str, str] | None = None) -> None:
        self.root = "memory:/lake"
        self.content: dict[str, str] = {} if content is None else content
        self.dies_at = -1
        self.changes = 0

    def _change(self) -> None:
        if self.changes == self.dies_at:
            raise Died
        self.changes += 1

    def _look(self) -> None:
        pass

    def exists(self, name: str) -> bool:
        self._look()
        return any(path == name or path.startswith(name + "/") for path in self.content)

    def names(self, directory: str) -> list[str]:
        self._look()
        start = directory + "/"
        return sorted({path[len(start) :].split("/")[0] for path in self.content if path.startswith(start)})

    def walk(self, directory: str) -> Iterator[FoundFile]:
        self._look()
        for path, content in list(self.content.items()):
            if path.startswith(directory + "/"):
                yield FoundFile(path[len(directory) + 1 :], len(content))

    def read(self, name: str) -> str:
        self._look()
        return self.content[name]

    def parquet_rows(self, name: str) -> int:
        return len(self.read(name))  # a letter is a row

    def write(self, name: str, text: str) -> None:
        self._change()
        self.content[name] = text

    def create(self, name: str, text: str) -> bool:
        self._change()
        return self.content.setdefault(name, text) is text

    def rename(self, source: str, target: str) -> None:
        self._change()
        if source in self.content:
            self.content[target] = self.content.pop(source)

    def remove(self, name: str) -> None:
        """File by file, as no file system removes a directory at once."""
        for path in [path for path in self.content if path == name or path.startswith(name + "/")]:
            self._change()
            self.content.pop(path, None)


def stage(lake: ParquetLake, *rows: str, directory: str = "topic=t/date=2026-11-15") -> None:
    area = lake.staging()
    for number, row in enumerate(rows):
        lake.files.write(f"{area}/{directory}/part-{number}-x.snappy.parquet", row)
    lake.files.write(f"{area}/_SUCCESS", "")


def add(
    lake: ParquetLake, *rows: str, ends: EndOffsets | None = None, directory: str = "topic=t/date=2026-11-15"
) -> None:
    stage(lake, *rows, directory=directory)
    lake.commit(ends=ends, rows=len("".join(rows)))


def join(lake: ParquetLake) -> None:
    """All files become one."""
    files = sorted(lake.state.files.values(), key=lambda file: (file.commit, file.path))
    area = lake.staging()
    text = "".join(lake.files.read(file.path) for file in files)
    lake.files.write(f"{area}/topic=t/date=2026-11-15/part-0.parquet", text)
    lake.files.write(f"{area}/topic=t/date=2026-11-15/_SUCCESS", "")
    lake.commit(removed=[file.path for file in files])


def rows(files: FilesInMemory, lake: ParquetLake) -> list[str]:
    """What a reader of the lake finds."""
    return [files.content[path.removeprefix("memory:/lake/")] for path in lake.paths()]


def plain_rows(files: FilesInMemory) -> list[str]:
    """What somebody finds who knows nothing but the directory."""
    return sorted(content for path, content in files.content.items() if not path.startswith("_levada/"))


def test_commits_add_up() -> None:
    files = FilesInMemory()
    lake = ParquetLake(files)
    add(lake, "a", "b", ends={"t": {0: 2}})
    add(lake, "c", ends={"u": {3: 1}}, directory="topic=u/date=2026-11-16")
    again = ParquetLake(files)
    assert again.state == lake.state
    assert again.state.ends == {"t": {0: 2}, "u": {3: 1}} and again.state.rows == 3
    assert rows(files, again) == ["a", "b", "c"] and plain_rows(files) == ["a", "b", "c"]
    assert [path.rpartition("/")[2] for path in again.paths("u")] == ["0000000001-000.parquet"]
    assert not again.files.names(STAGING)


def steps_of_a_commit() -> int:
    files = FilesInMemory()
    lake = ParquetLake(files)
    stage(lake, "a", "b")
    before = files.changes
    lake.commit(ends={"t": {0: 2}}, rows=2)
    return files.changes - before


@pytest.mark.parametrize("step", range(steps_of_a_commit() + 1))
def test_a_batch_is_in_the_lake_wholly_or_not_at_all(step: int) -> None:
    files = FilesInMemory()
    lake = ParquetLake(files)
    add(lake, "o", ends={"t": {0: 1}})
    stage(lake, "a", "b")
    files.dies_at = files.changes + step
    try:
        lake.commit(ends={"t": {0: 3}}, rows=2)
    except Died:
        pass
    files.dies_at = -1
    reader = ParquetLake(files)
    assert (rows(files, reader), reader.state.ends) in [
        (["o"], {"t": {0: 1}}),
        (["o", "a", "b"], {"t": {0: 3}}),
    ]
    assert set(plain_rows(files)) <= set(rows(files, reader))  # nobody sees what is not committed
    writer = ParquetLake(files)
    writer.claim()
    assert plain_rows(files) == sorted(rows(files, writer)) == sorted(rows(files, reader))
    assert not files.names(STAGING)
    if writer.state.ends == {"t": {0: 1}}:
        add(writer, "a", "b", ends={"t": {0: 3}})
    assert plain_rows(files) == ["a", "b", "o"]


@pytest.mark.parametrize("step", range(16))
def test_compaction_keeps_every_row_at_every_step(step: int) -> None:
    files = FilesInMemory()
    lake = ParquetLake(files)
    for row in "abc":
        add(lake, row, ends={"t": {0: 1}})
    files.dies_at = files.changes + step
    try:
        join(lake)
    except Died:
        pass
    files.dies_at = -1
    writer = ParquetLake(files)
    writer.claim()
    assert "".join(rows(files, writer)) == "abc" == "".join(plain_rows(files))
    assert writer.state.rows == 3


def test_snapshots_spare_old_commits() -> None:
    files = FilesInMemory()
    lake = ParquetLake(files)
    for number in range(SNAPSHOT_EVERY + 3):
        add(lake, "a", ends={"t": {0: number + 1}})
    for number in range(SNAPSHOT_EVERY):
        files.remove(f"{COMMITS}/{number:010d}.json")
    assert ParquetLake(files).state == lake.state


def test_a_lake_knows_its_topics_by_their_ids() -> None:
    files = FilesInMemory()
    lake = ParquetLake(files)
    known, other = uuid4(), uuid4()
    assert not lake.has_other_topic("t", known)
    lake.claim({"t": known})
    for number in range(SNAPSHOT_EVERY):
        add(lake, "a", ends={"t": {0: number + 1}})
    for number in range(SNAPSHOT_EVERY):
        files.remove(f"{COMMITS}/{number:010d}.json")
    again = ParquetLake(files)
    assert again.state == lake.state
    again.claim({"t": other, "u": other})  # an id is settled once
    assert (
        not again.has_other_topic("t", known)
        and again.has_other_topic("t", other)
        and again.has_other_topic("u", known)
    )


def test_the_last_writer_has_the_lake() -> None:
    files = FilesInMemory()
    first = ParquetLake(files)
    first.claim()
    add(first, "a", ends={"t": {0: 1}})
    stage(first, "b")
    second = ParquetLake(files)
    second.claim()
    with pytest.raises(LakeError, match="another writer"):
        first.commit(ends={"t": {0: 2}}, rows=1)
    with pytest.raises(LakeError, match="another writer"):
        first.check()
    second.check()
    add(second, "b", ends={"t": {0: 2}})
    assert plain_rows(files) == ["a", "b"] and ParquetLake(files).state == second.state
    assert first.claim_name < second.claim_name


def test_records_that_are_not_staged_are_not_committed() -> None:
    files = FilesInMemory()
    lake = ParquetLake(files)
    stage(lake, "a", "b")
    with pytest.raises(LakeError, match="3 records were written, 2 are in the files"):
        lake.commit(ends={"t": {0: 3}}, rows=3)
    add(lake, "ab")
    lake.staging()
    with pytest.raises(LakeError, match="2 records were written, 0 are in the files"):
        lake.commit(removed=list(lake.state.files))
    assert plain_rows(files) == ["ab"] and ParquetLake(files).state.ends == {}


def test_what_older_versions_had_committed_is_finished() -> None:
    """They had one staging area for a number, and no claims."""
    files = FilesInMemory()
    path = "topic=t/date=2026-11-15/0000000000-000.parquet"
    commit = {"number": 0, "added": [[path, 1]], "removed": [], "ends": {"t": {"0": 1}}, "rows": 1}
    commit |= {"staged": {path: "topic=t/date=2026-11-15/part-0.parquet"}}
    files.content[f"{COMMITS}/0000000000.json"] = json.dumps(commit)
    files.content[f"{STAGING}/0000000000/topic=t/date=2026-11-15/part-0.parquet"] = "a"
    files.content[f"{STAGING}/0000000001/topic=t/date=2026-11-15/part-0.parquet"] = "b"
    lake = ParquetLake(files)
    assert rows(files, lake) == ["a"]
    lake.claim()
    assert plain_rows(files) == ["a"] and lake.end_offsets("t", [0]) == {0: 1}
    assert not files.names(STAGING)


class Writer(FilesInMemory):
    """A process that archives: it does one thing to the files they share when it is told to, and waits then."""

    def __init__(self, content: dict[str, str]) -> None:
        super().__init__(content)
        self.is_over = self.is_killed = False
        self.failure: Exception | None = None
        self._reached, self._waits = Semaphore(0), Semaphore(0)
        Thread(target=self._live, daemon=True).start()
        self._waits.acquire()

    def _look(self) -> None:
        self._waits.release()
        self._reached.acquire()
        if self.is_killed:
            raise Died

    _change = _look

    def step(self) -> None:
        """Its next verb, if it is alive."""
        if not self.is_over:
            self._reached.release()
            self._waits.acquire()

    def kill(self) -> None:
        self.is_killed = True
        self.step()

    def _live(self) -> None:
        try:
            self._archive()
        except Died:
            pass
        except Exception as error:  # for the test to judge
            self.failure = error
        self.is_over = True
        self._waits.release()

    def _archive(self) -> None:
        """Two batches of two records from where the lake ends, and all files joined."""
        lake = ParquetLake(self)
        lake.claim()
        try:
            for _ in range(2):
                end = lake.end_offsets("t", [0]).get(0, 0)
                add(lake, LOG[end], LOG[end + 1], ends={"t": {0: end + 2}})
            join(lake)
        except Exception:
            lake.check()
            raise


LOG = "abcdefghijklmnopqrstuvwxyz"


def check_lake(content: dict[str, str]) -> None:
    """For readers it has what is below its end, each record once and in order."""
    files = FilesInMemory(content)
    lake = ParquetLake(files)
    end = lake.end_offsets("t", [0]).get(0, 0)
    assert "".join(rows(files, lake)) == LOG[:end]
    assert lake.state.rows == end
    assert not end % 2


def check_writers(writers: list[Writer], content: dict[str, str]) -> None:
    """After all is over: nothing is lost or doubled, and whoever failed was told why."""
    for writer in writers:
        assert writer.failure is None or (
            isinstance(writer.failure, LakeError) and "another writer" in str(writer.failure)
        )
    check_lake(content)
    last = ParquetLake(FilesInMemory(content))
    last.claim()
    check_lake(content)
    assert "".join(sorted("".join(plain_rows(FilesInMemory(content))))) == LOG[: last.state.rows]
    assert not FilesInMemory(content).names(STAGING)


def finish(writers: list[Writer]) -> None:
    for writer in writers:
        while not writer.is_over:
            writer.step()


def steps_of_a_writer() -> int:
    writer, steps = Writer({}), 0
    while not writer.is_over:
        writer.step()
        steps += 1
    return steps


@pytest.mark.parametrize("is_killed", [False, True])
def test_another_writer_may_come_at_every_step(is_killed: bool) -> None:
    for pause in range(steps_of_a_writer()):
        content: dict[str, str] = {}
        first = Writer(content)
        for _ in range(pause):
            first.step()
        second = Writer(content)
        finish([second])
        assert second.failure is None
        if is_killed:
            first.kill()
        finish([first])
        check_writers([first, second], content)


@pytest.mark.slow
@given(iterations=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.booleans()), max_size=20))
def test_writers_may_meet_and_die_in_any_order(iterations: list[tuple[int, int, bool]]) -> None:
    """Each turn is of one of three writers, for some steps; after it the writer may be killed, and comes again."""
    content: dict[str, str] = {}
    writers = [Writer(content) for _ in range(3)]
    began = list(writers)
    for index, steps, is_killed in iterations:
        writer = writers[index]
        for _ in range(steps):
            writer.step()
            check_lake(content)
        if is_killed and len(began) < 6:
            writer.kill()
            writers[index] = Writer(content)
            began.append(writers[index])
    finish(writers)
    check_writers(began, content)


def test_damage_is_named() -> None:
    files = FilesInMemory()
    lake = ParquetLake(files)
    for row in "ab":
        add(lake, row)
    damaged = f"{COMMITS}/{0:010d}.json"
    content = files.content[damaged]
    for text in (content[:-1], "", "{}", "[]", "7", content.replace('"ends": {}', '"ends": [1]')):
        files.content[damaged] = text
        with pytest.raises(LakeError, match=r"0000000000\.json is damaged"):
            ParquetLake(files)
    del files.content[damaged]
    with pytest.raises(LakeError, match="commit 0 is missing"):
        ParquetLake(files)


@pytest.mark.parametrize("path", ["", " ", "lake[1]", "{a,b}", "*", "a?", "a\\b"])
def test_a_path_that_cannot_be_is_refused_before_spark_starts(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    commands = [
        "archive --topic t --to",
        "history --topic t --lake",
        "replay --topic t --to u --lake",
        "logs --lake",
    ]
    for command in [*commands, "history --topic t --lake lake --to"]:
        assert run(["pipeline", "run", *command.split(), path]) == EXIT_USAGE
        printed = capsys.readouterr().err
        assert ("the path is empty" in printed or "a glob pattern" in printed) and "Spark for" not in printed


def test_only_directories_with_many_small_files_are_joined() -> None:
    files = FilesInMemory()
    lake = ParquetLake(files)
    for _ in range(3):
        add(lake, "small", directory="topic=t/date=1")
    add(lake, "small", "x" * 1000, directory="topic=t/date=2")
    found = lake.state.small_files(CompactionPolicy(small_bytes=100, files_max=2))
    assert {directory: len(small) for directory, small in found.items()} == {"topic=t/date=1": 3}


def test_ends_never_go_back() -> None:
    assert merge_offsets({"t": {0: 5, 1: 2}}, {"t": {0: 3, 2: 1}, "u": {0: 9}}) == {
        "t": {0: 5, 1: 2, 2: 1},
        "u": {0: 9},
    }
