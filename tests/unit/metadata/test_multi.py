"""The multi of a commit, applied to a tree with ZooKeeper's rules: also to one that is newer than the copy."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kazoo.protocol.serialization import CheckVersion as CheckDataVersion
from kazoo.protocol.serialization import Create, Delete, SetData
from kazoo.security import OPEN_ACL_UNSAFE

from levada.metadata.multi import GUARD, KEPT_LEVELS, Multi, plan
from levada.metadata.store import ABSENT, CheckVersion, CompareAndSet, ConflictError, Write
from levada.metadata.znodes import Znode, Znodes, ancestors, parent

FORMAT = b"1"


class Refused(Exception):
    """An operation cannot be applied."""


class Tree:
    """Nodes as in ZooKeeper: data, data version, transaction of the last change."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int, int]] = dict.fromkeys(ancestors(GUARD), (b"", 0, 1))
        self.nodes[GUARD] = FORMAT, 0, 1
        self.zxid = 1

    def apply(self, operations: list[Any]) -> None:
        """Apply all operations, or raise Refused and change nothing."""
        nodes = dict(self.nodes)
        for operation in operations:
            self._apply(nodes, operation)
        self.zxid += 1
        self.nodes = nodes

    def _apply(self, nodes: dict[str, tuple[bytes, int, int]], operation: Any) -> None:
        path = operation.path
        if isinstance(operation, Create):
            if path in nodes or (parent(path) and parent(path) not in nodes):
                raise Refused(operation)
            nodes[path] = operation.data, 0, self.zxid + 1
            return
        if path not in nodes or nodes[path][1] != operation.version:
            raise Refused(operation)
        if isinstance(operation, SetData):
            nodes[path] = operation.data, operation.version + 1, self.zxid + 1
        elif isinstance(operation, Delete):
            if any(parent(other) == path for other in nodes):
                raise Refused(operation)
            del nodes[path]
        else:
            assert isinstance(operation, CheckDataVersion)

    def znodes(self) -> Znodes:
        """A complete copy."""
        copied = Znodes()
        for key, (data, data_version, zxid) in self.nodes.items():
            copied.set(key, Znode(data_version, zxid, 0, bool(data)), data)
        return copied

    def records(self) -> dict[str, bytes]:
        return {key: data for key, (data, _, _) in self.nodes.items() if data and key != GUARD}


keys = st.sampled_from(["/a", "/a/b", "/a/b/c", "/a/b/c/d", "/a/b/e", "/a/x/y/0/state", "/a/x/y/1/state", "/f"])
# What a commit writes, and the keys that it checks.
commits = st.tuples(
    st.dictionaries(keys, st.none() | st.binary(min_size=1, max_size=1), max_size=5), st.sets(keys, max_size=3)
)


def _writes(copied: Znodes, values: dict[str, bytes | None], checked: set[str]) -> list[Write]:
    checks = [CheckVersion(key, copied.version(key)) for key in checked - values.keys()]
    return [*checks, *(CompareAndSet(key, value, copied.version(key)) for key, value in values.items())]


def _planned(copied: Znodes, writes: list[Write]) -> list[Any]:
    operations: list[Any] = plan(Multi(copied, "", OPEN_ACL_UNSAFE, FORMAT), writes).operations
    return operations


@given(st.lists(commits, max_size=12))
def test_a_plan_on_the_newest_copy_is_applied(history: list[tuple[dict[str, bytes | None], set[str]]]) -> None:
    tree = Tree()
    model: dict[str, bytes] = {}
    for values, checked in history:
        copied = tree.znodes()
        guard = tree.nodes[GUARD][1]
        before = set(tree.nodes)
        tree.apply(_planned(copied, _writes(copied, values, checked)))
        model = {key: value for key, value in {**model, **values}.items() if value is not None}
        assert tree.records() == model
        assert tree.nodes[GUARD][1] > guard or not before - tree.nodes.keys()
        for key, (data, _, _) in tree.nodes.items():
            has_children = any(parent(other) == key for other in tree.nodes)
            assert data or has_children or key.count("/") <= KEPT_LEVELS, f"{key} is left over"


few_keys = st.sampled_from(["/a", "/a/b/c/d"])
changes = st.tuples(few_keys, st.none() | st.just(b"x"))


@given(st.lists(changes, min_size=2, max_size=12), st.integers(0, 10), few_keys, few_keys)
def test_a_plan_on_an_older_copy_is_applied_only_if_nothing_it_names_has_changed(
    history: list[tuple[str, bytes | None]], age: int, written: str, checked: str
) -> None:
    """Data versions return when nodes are deleted and created again; the guard does not."""
    tree = Tree()
    copies = [tree.znodes()]
    for key, value in history:
        tree.apply(_planned(copies[-1], _writes(copies[-1], {key: value}, set())))
        copies.append(tree.znodes())
    older, newest = copies[-1 - min(age, len(history))], copies[-1]
    for writes in (_writes(older, {written: b"y"}, {checked}), _writes(older, {written: None}, {checked})):
        after = copy.copy(tree)
        try:
            after.apply(_planned(older, writes))
        except Refused:
            continue
        assert all(newest.version(write.key) == write.version for write in writes)


def test_versions_that_are_not_those_of_the_copy_conflict() -> None:
    copied = Tree().znodes()
    for write in (CheckVersion("/a", 7), CompareAndSet("/a", b"1", 7), CheckVersion(GUARD, ABSENT)):
        try:
            _planned(copied, [write])
        except ConflictError:
            continue
        raise AssertionError(write)
