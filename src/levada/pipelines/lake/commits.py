"""Commits of a Parquet lake, the state that they add up to, and both as JSON."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

EndOffsets = dict[str, dict[int, int]]  # by topic and partition: the offset after the last record
TopicIds = Mapping[str, UUID]  # by topic; a topic that is deleted and created again has another id
Schemas = Mapping[str, Any]  # by topic: the schema of its records as Spark writes it in JSON
NO_IDS: TopicIds = {}
NO_SCHEMAS: Schemas = {}


class CompactionPolicy(NamedTuple):
    """When the files of a directory are compacted, and when they are removed."""

    small_bytes: int = 64 << 20  # smaller files are merged
    files_max: int = 16  # so many small files may be in a directory
    retention_ms: int | None = None  # merged files stay that long for readers; None for the default of the format


COMPACTION = CompactionPolicy()


class LakeFile(NamedTuple):
    """One committed Parquet file."""

    path: str  # from the lake's root
    size: int
    commit: int  # the commit that added it

    @property
    def directory(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def topic(self) -> str:
        return self.path.partition("/")[0].removeprefix("topic=")


class LakeState(NamedTuple):
    """The lake as of one commit."""

    number: int = -1  # of the newest commit
    files: Mapping[str, LakeFile] = {}
    ends: EndOffsets = {}
    rows: int = 0  # archived since the lake was created
    ids: TopicIds = {}  # of the archived topics; incomplete in lakes of older versions
    schemas: Schemas = {}  # of the archived topics; incomplete in lakes of older versions


class Commit(NamedTuple):
    """A change of the lake."""

    number: int
    added: tuple[LakeFile, ...] = ()
    removed: tuple[str, ...] = ()  # files whose records are in the added ones
    ends: EndOffsets = {}
    rows: int = 0
    area: str = ""  # the directory below STAGING with the added files, until they are moved
    staged: Mapping[str, str] = {}  # by path: its name in that directory
    ids: TopicIds = {}  # new to the lake
    schemas: Schemas = {}  # new to the lake, or changed
    time_ms: int = 0  # when it was made; 0 in lakes of older versions

    def apply(self, state: LakeState) -> LakeState:
        """The state of the lake after this commit."""
        removed = set(self.removed)
        files = {path: file for path, file in state.files.items() if path not in removed}
        files |= {file.path: file for file in self.added}
        ends, rows = merge_offsets(state.ends, self.ends), state.rows + self.rows
        ids, schemas = {**state.ids, **self.ids}, {**state.schemas, **self.schemas}
        return LakeState(self.number, files, ends, rows, ids, schemas)


def merge_offsets(ends: EndOffsets, more: EndOffsets) -> EndOffsets:
    """The higher offset of each partition."""
    result = {topic: dict(partitions) for topic, partitions in ends.items()}
    for topic, partitions in more.items():
        known = result.setdefault(topic, {})
        for partition, end in partitions.items():
            known[partition] = max(end, known.get(partition, 0))
    return result


def commit_text(commit: Commit) -> str:
    """A commit as the content of its file."""
    content = {
        "number": commit.number,
        "added": [list(file[:2]) for file in commit.added],
        "removed": list(commit.removed),
        "ends": commit.ends,
        "rows": commit.rows,
        "area": commit.area,
        "staged": dict(commit.staged),
        "ids": _ids_text(commit.ids),
        "schemas": dict(commit.schemas),
        "time_ms": commit.time_ms,
    }
    return json.dumps(content)


def parse_commit(content: Any) -> Commit:
    """The commit of a file."""
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
        content.get("schemas", {}),
        content.get("time_ms", 0),
    )


def state_text(state: LakeState) -> str:
    """A state as the content of a snapshot."""
    files = [list(file) for file in state.files.values()]
    content = {"number": state.number, "files": files, "ends": state.ends, "rows": state.rows}
    return json.dumps(content | {"ids": _ids_text(state.ids), "schemas": dict(state.schemas)})


def parse_state(content: Any) -> LakeState:
    """The state of a snapshot."""
    files = {path: LakeFile(path, size, number) for path, size, number in content["files"]}
    ends, schemas = _offsets(content["ends"]), content.get("schemas", {})
    return LakeState(content["number"], files, ends, content["rows"], _ids(content), schemas)


def _ids_text(ids: TopicIds) -> dict[str, str]:
    return {topic: str(topic_id) for topic, topic_id in ids.items()}


def _ids(content: Any) -> TopicIds:
    return {topic: UUID(topic_id) for topic, topic_id in content.get("ids", {}).items()}


def _offsets(content: Any) -> EndOffsets:
    return {topic: {int(index): end for index, end in ends.items()} for topic, ends in content.items()}
