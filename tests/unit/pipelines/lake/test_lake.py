"""Commits to a lake are atomic, with writers that die or meet at every step."""

import json
import time
from collections.abc import Iterator
from threading import Semaphore, Thread
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from levada.cli.errors import EXIT_USAGE
from levada.cli.main import run
from levada.pipelines.errors import LakeError
from levada.pipelines.lake import parquet
from levada.pipelines.lake.commits import CompactionPolicy, EndOffsets, merge_offsets
from levada.pipelines.lake.compaction import small_files
from levada.pipelines.lake.files import Files, Footer, FoundFile
from levada.pipelines.lake.parquet import COMMITS, SNAPSHOT_EVERY, STAGING, ParquetLake

DAY = "topic=t/date=2026-11-15"


@pytest.fixture(autouse=True)
def readers_do_not_wait_for_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that moves files here is dead, or waits for the test."""
    monkeypatch.setattr(parquet, "MOVE_TIMEOUT_S", -1.0)


HOUR_MS = 3_600_000


class Died(BaseException):
    """The process is gone."""


class FilesInMemory(Files):
    """The same verbs on a dictionary; dies before the verb number `dies_at` that changes something."""

    renames_by_copying = False

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
        start = directory + "/" if directory else ""
        return sorted({path[len(start) :].split("/")[0] for path in self.content if path.startswith(start)})

    def walk(self, directory: str) -> Iterator[FoundFile]:
        self._look()
        for path, content in list(self.content.items()):
            if path.startswith(directory + "/"):
                yield FoundFile(path[len(directory) + 1 :], len(content))

    def size(self, name: str) -> int | None:
        self._look()
        return len(self.content[name]) if name in self.content else None

    def read(self, name: str) -> str:
        self._look()
        return self.content[name]

    def parquet_footer(self, name: str) -> Footer:
        """A letter is a row, and a capital letter a column too."""
        text = self.read(name)
        columns = StructType([StructField(letter, StringType()) for letter in sorted({*text}) if letter.isupper()])
        return Footer(len(text), columns.json())

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

    def link(self, source: str, target: str) -> None:
        self._change()
        if source in self.content:
            self.content.setdefault(target, self.content[source])

    def age(self, ms: int) -> None:
        """All that was written becomes older."""
        for path, text in self.content.items():
            if path.startswith(COMMITS):
                commit = json.loads(text)
                self.content[path] = json.dumps(commit | {"time_ms": commit["time_ms"] - ms})
            elif path.endswith("/published"):
                self.content[path] = str(int(text) - ms)

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
    paths = [path.removeprefix("memory:/lake/") for path in lake.paths()]
    area = lake.staging()
    text = "".join(lake.files.read(path) for path in paths)
    lake.files.write(f"{area}/topic=t/date=2026-11-15/part-0.parquet", text)
    lake.files.write(f"{area}/topic=t/date=2026-11-15/_SUCCESS", "")
    lake.commit(removed=list(lake.state.files))


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


@pytest.mark.parametrize("lost", [slice(None), slice(1, None), slice(-1, None)])
def test_files_of_lost_commits_are_neither_used_nor_doubled(lost: slice) -> None:
    """The log has their records still or again; a file in the place of a staged one would hide its rows."""
    files = FilesInMemory()
    lake = ParquetLake(files)
    for number in range(3):
        add(lake, "a", ends={"t": {0: number + 1}})
    for name in files.names(COMMITS)[lost]:
        del files.content[f"{COMMITS}/{name}"]
    kept = dict(files.content)
    with pytest.raises(LakeError, match=r"none of its commits has, such as topic=t/.*; restore _levada/commits"):
        ParquetLake(files).claim()
    assert files.content == kept


def test_a_file_in_the_place_of_a_staged_one_is_not_taken_for_it() -> None:
    files = FilesInMemory()
    lake = ParquetLake(files)
    stage(lake, "abc")
    files.content[f"{DAY}/0000000000-000.parquet"] = "x"
    kept = dict(files.content)
    with pytest.raises(LakeError, match=r"0000000000-000.parquet exists, and no commit has it"):
        lake.commit(ends={"t": {0: 3}}, rows=3)
    assert files.content == kept


@pytest.mark.parametrize(("content", "message"), [(None, "is missing"), ("", "it has 0 bytes instead of 1")])
def test_a_writer_does_not_go_on_with_a_damaged_file(content: str | None, message: str) -> None:
    files = FilesInMemory()
    lake = ParquetLake(files)
    add(lake, "a", ends={"t": {0: 1}})
    path = f"{DAY}/0000000000-000.parquet"
    del files.content[path]
    if content is not None:
        files.content[path] = content
    kept = dict(files.content)
    with pytest.raises(LakeError, match=rf"{path} .*{message}.*Restore it"):
        ParquetLake(files).claim()
    assert files.content == kept


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
    assert set(plain_rows(files)) <= set(rows(files, reader))  # uncommitted files are not seen
    writer = ParquetLake(files)
    writer.claim()
    assert plain_rows(files) == sorted(rows(files, writer)) == sorted(rows(files, reader))
    writer.vacuum(0)
    assert not files.names(STAGING) and plain_rows(files) == sorted(rows(files, writer))
    if writer.state.ends == {"t": {0: 1}}:
        add(writer, "a", "b", ends={"t": {0: 3}})
    assert plain_rows(files) == ["a", "b", "o"]


@pytest.mark.parametrize("retention_ms", [0, HOUR_MS])
@pytest.mark.parametrize("step", range(16))
def test_compaction_keeps_every_row_at_every_step(step: int, retention_ms: int) -> None:
    files = FilesInMemory()
    lake = ParquetLake(files)
    for row in "abc":
        add(lake, row, ends={"t": {0: 1}})
    files.dies_at = files.changes + step
    try:
        join(lake)
        files.age(retention_ms)
        lake.vacuum(retention_ms)
    except Died:
        pass
    files.dies_at = -1
    writer = ParquetLake(files)
    writer.claim()
    for _ in range(3):
        assert "".join(rows(files, writer)) == "abc" == "".join(plain_rows(files))
        writer.vacuum(0)
    assert not files.names(STAGING)
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


def test_columns_that_are_not_staged_are_not_committed() -> None:
    files = FilesInMemory()
    lake = ParquetLake(files)
    for row in ("A", "AB"):
        add(lake, row)
    stage(lake, "AAA")
    with pytest.raises(LakeError, match="columns were lost when files were merged: B"):
        lake.commit(removed=list(lake.state.files))
    assert rows(files, ParquetLake(files)) == ["A", "AB"] == plain_rows(files)
    stage(lake, "AAB")
    lake.commit(removed=list(lake.state.files))
    assert rows(files, ParquetLake(files)) == ["AAB"]


def test_a_path_stays_valid_for_the_retention() -> None:
    """Of files that were merged, and of merged files that are moved; a reader of the directory sees either."""
    files = FilesInMemory()
    lake = ParquetLake(files)
    for row in "abc":
        add(lake, row)
    held = lake.paths()
    join(lake)
    lake.vacuum()
    assert rows(files, lake) == ["abc"] and plain_rows(files) == ["a", "b", "c"]
    held += lake.paths()
    files.age(2 * HOUR_MS)
    assert all(path.removeprefix("memory:/lake/") in files.content for path in held)
    lake.vacuum()
    assert plain_rows(files) == ["abc"] == rows(files, ParquetLake(files))
    assert [path.removeprefix("memory:/lake/") in files.content for path in held] == [False] * 3 + [True]
    files.age(2 * HOUR_MS)
    lake.vacuum()
    assert plain_rows(files) == ["abc"] == rows(files, ParquetLake(files)) and not files.names(STAGING)


def test_merged_files_are_merged_again() -> None:
    files = FilesInMemory()
    lake = ParquetLake(files)
    for rows_before in ("ab", "cd", "ef"):
        for row in rows_before:
            add(lake, row)
        join(lake)
        lake.vacuum()
    assert plain_rows(files) == ["a", "b", "c", "d", "e", "f"] and rows(files, lake) == ["abcdef"]
    for _ in range(2):
        files.age(2 * HOUR_MS)
        lake.vacuum()
        assert plain_rows(files) == ["abcdef"] == rows(files, lake)
    assert not files.names(STAGING)


def test_a_reader_of_staged_files_goes_on_when_the_next_writer_moves_them() -> None:
    files = FilesInMemory()
    lake = ParquetLake(files)
    stage(lake, "a", "b")
    files.dies_at = files.changes + 1  # between the commit and the first move
    with pytest.raises(Died):
        lake.commit(ends={"t": {0: 2}}, rows=2)
    files.dies_at = -1
    held = ParquetLake(files).paths()
    assert all(f"/{STAGING}/" in path for path in held)
    writer = ParquetLake(files)
    writer.claim()
    writer.vacuum()
    assert all(path.removeprefix("memory:/lake/") in files.content for path in held)
    assert plain_rows(files) == rows(files, ParquetLake(files)) == ["a", "b"]
    files.age(2 * HOUR_MS)
    writer.vacuum()
    assert not files.names(STAGING) and plain_rows(files) == ["a", "b"]


class MovedUnderReaders(FilesInMemory):
    """Each move takes a while, and a reader asks for the paths of the lake before it."""

    def __init__(self, *, renames_by_copying: bool) -> None:
        super().__init__()
        self.renames_by_copying = renames_by_copying
        self.held: list[str] = []

    def rename(self, source: str, target: str) -> None:
        self._read()
        super().rename(source, target)

    def link(self, source: str, target: str) -> None:
        self._read()
        super().link(source, target)

    def _read(self) -> None:
        self.held += ParquetLake(FilesInMemory(self.content)).paths()
        time.sleep(0.02)


@pytest.mark.parametrize("renames_by_copying", [False, True])
def test_a_reader_goes_on_when_the_move_of_a_commit_is_slow(
    monkeypatch: pytest.MonkeyPatch, renames_by_copying: bool
) -> None:
    """Files that are moved before MOVE_SLOW_S are awaited by readers, unless a move is a copy: that takes any time."""
    files = MovedUnderReaders(renames_by_copying=renames_by_copying)
    lake = ParquetLake(files)
    if not renames_by_copying:
        monkeypatch.setattr(parquet, "MOVE_SLOW_S", 0.01)
    add(lake, "a", "b", "c", ends={"t": {0: 3}})
    held = [path.removeprefix("memory:/lake/") for path in files.held]
    awaited = set() if renames_by_copying else set(held[:1])  # moved in time; the reader of this test does not wait
    assert len(held) == 9 and set(held) - files.content.keys() <= awaited
    assert plain_rows(files) == ["a", "b", "c"] == rows(files, ParquetLake(files))
    lake.vacuum()
    assert set(held) - files.content.keys() <= awaited
    files.age(2 * HOUR_MS)
    lake.vacuum()
    assert not files.names(STAGING) and plain_rows(files) == ["a", "b", "c"] == rows(files, ParquetLake(files))


def test_kept_names_are_not_read_again_with_each_commit() -> None:
    """On a store with slow requests every commit of the retention has some."""

    class Counting(FilesInMemory):
        renames_by_copying = True

        def read(self, name: str) -> str:
            reads.append(name)
            return super().read(name)

    reads: list[str] = []
    files = Counting()
    lake = ParquetLake(files)
    for number in range(20):
        add(lake, "a", ends={"t": {0: number + 1}})
    reads.clear()
    add(lake, "b", ends={"t": {0: 21}})
    lake.vacuum()
    assert len(files.names(STAGING)) == 21 and len([name for name in reads if name.startswith("_levada/c")]) <= 1


def test_a_listing_may_miss_a_commit() -> None:
    """One that was made while the directory was read."""

    class Listing(FilesInMemory):
        def names(self, directory: str) -> list[str]:
            return [name for name in super().names(directory) if name != "0000000001.json"]

    lake = ParquetLake(FilesInMemory())
    for row in "abc":
        add(lake, row)
    assert isinstance(lake.files, FilesInMemory)
    assert ParquetLake(Listing(lake.files.content)).state == lake.state


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
    lake.vacuum(0)
    assert plain_rows(files) == ["a"] and not files.names(STAGING)


class Writer(FilesInMemory):
    """A process that archives: it makes one change to the shared files at each call of the test, and waits."""

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
            lake.vacuum(0)
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
    """After all is over: nothing is lost or doubled, and a writer that failed names the other writer."""
    for writer in writers:
        assert writer.failure is None or (
            isinstance(writer.failure, LakeError) and "another writer" in str(writer.failure)
        )
    check_lake(content)
    last = ParquetLake(FilesInMemory(content))
    last.claim()
    last.vacuum(0)
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
    found = small_files(lake.state.files.values(), CompactionPolicy(small_bytes=100, files_max=2))
    assert {directory: len(small) for directory, small in found.items()} == {"topic=t/date=1": 3}


def test_ends_never_go_back() -> None:
    assert merge_offsets({"t": {0: 5, 1: 2}}, {"t": {0: 3, 2: 1}, "u": {0: 9}}) == {
        "t": {0: 5, 1: 2, 2: 1},
        "u": {0: 9},
    }
