"""Plans the operations of a commit: one multi of ZooKeeper, which is applied as a whole or not at all.

A record is a znode with data. Directories are created with the first record below them and deleted with the last, down
to the second level. ZooKeeper compares data versions, which begin again when a node is deleted and created. So every
multi that deletes changes the guard, a node of the store, and every multi that relies on a data version checks it:
nothing was deleted since the copy was read on which the multi was planned.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from kazoo.protocol.serialization import CheckVersion as CheckDataVersion
from kazoo.protocol.serialization import Create, Delete, SetData, Transaction
from kazoo.security import ACL

from levada.metadata.store import CheckVersion, ConflictError, StoreError, Write
from levada.metadata.znodes import INTERNAL, Znodes, ancestors, parent

EPHEMERAL: Final = 1
DIRECTORY: Final = b""
GUARD: Final = INTERNAL
KEPT_LEVELS: Final = 2  # of directories
MULTI_BYTES_MAX: Final = 1_000_000  # ZooKeeper closes a connection with a request above 1,048,575 (jute.maxbuffer)

Operation: TypeAlias = Any  # one of kazoo's requests


class Multi:
    """The operations of one multi, planned on a copy of the znodes."""

    def __init__(self, znodes: Znodes, root: str, acl: list[ACL], format_data: bytes) -> None:
        self._znodes = znodes
        self._root = root
        self._acl = acl
        self._format_data = format_data
        self._checks: list[Operation] = []
        self._changes: list[Operation] = []
        self._created: dict[str, tuple[bytes, int]] = {}  # value and flags by key, with missing directories
        self._deleted: set[str] = set()
        self._set: set[str] = set()
        self._children: Counter[str] = Counter()  # how many more each node has
        self._relies_on_versions = False

    def add(self, write: Write) -> None:
        """Add a write of a commit; raise ConflictError if its version is not that of the copy."""
        key = write.key
        node = self._znodes.nodes.get(key)
        if node is not None and node.owner:
            raise ValueError(f"{key} is a lease")
        if self._znodes.version(key) != write.version:
            raise ConflictError(key)
        if not isinstance(write, CheckVersion) and write.value is not None:
            self.set(key, write.value)
        elif node is None:
            self._check_absent(key)
        elif not isinstance(write, CheckVersion) and node.has_data:
            self._deleted.add(key)
        else:
            self.check(key)

    def check(self, key: str) -> None:
        """Require that an existing node does not change."""
        self._relies_on_versions = True
        self._checks.append(CheckDataVersion(self._path(key), self._znodes.nodes[key].data_version))

    def check_data_version(self, key: str, version: int) -> None:
        """Require a data version; only for nodes that are not deleted, and for those of leases."""
        self._checks.append(CheckDataVersion(self._path(key), version))

    def set(self, key: str, value: bytes) -> None:
        """Create or change a node."""
        node = self._znodes.nodes.get(key)
        if node is None:
            self.create(key, value)
        else:
            self._relies_on_versions = True
            self._set.add(key)
            self._changes.append(SetData(self._path(key), value, node.data_version))

    def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> None:
        """Create a node that does not exist, with the directories above it."""
        for directory in ancestors(key):
            if directory not in self._znodes.nodes:
                self._created.setdefault(directory, (DIRECTORY, 0))
        self._created[key] = value, EPHEMERAL if ephemeral else 0

    def delete_lease(self, key: str) -> None:
        """Delete an ephemeral node, which has no directories of its own and whose data never changes."""
        self._changes.append(Delete(self._path(key), 0))

    def request(self) -> Transaction:
        """Return the request; raise StoreError if it is too large for ZooKeeper."""
        creations = list(self._creations())
        deletions = list(self._deletions())
        guard: list[Operation] = []
        if deletions:
            guard = [SetData(self._path(GUARD), self._format_data, self._znodes.nodes[GUARD].data_version)]
        elif self._relies_on_versions:
            guard = [CheckDataVersion(self._path(GUARD), self._znodes.nodes[GUARD].data_version)]
        request = Transaction([*guard, *self._checks, *self._changes, *creations, *deletions])
        size = len(request.serialize())
        if size > MULTI_BYTES_MAX:
            raise StoreError(f"a commit of {size} bytes is larger than ZooKeeper's limit of {MULTI_BYTES_MAX}")
        return request

    def _creations(self) -> Iterator[Operation]:
        """Yield the creations, parents first."""
        for key in sorted(self._created):
            self._children[parent(key)] += 1
            value, flags = self._created[key]
            yield Create(self._path(key), value, self._acl, flags)

    def _check_absent(self, key: str) -> None:
        """Require that a node does not exist: create it and delete it again."""
        missing = [one for one in (*ancestors(key), key) if one not in self._znodes.nodes]
        self._checks += [Create(self._path(one), DIRECTORY, self._acl, 0) for one in missing]
        self._checks += [Delete(self._path(one), 0) for one in reversed(missing)]

    def _deletions(self) -> Iterator[Operation]:
        """Yield the deletions of nodes and of directories that become empty, children first."""
        nodes, levels = self._znodes.nodes, defaultdict(list)
        for key in self._deleted:
            levels[key.count("/")].append(key)
        for level in range(max(levels, default=0), 0, -1):
            for key in levels[level]:
                if self._children_left(key):
                    yield SetData(self._path(key), DIRECTORY, nodes[key].data_version)
                    continue
                yield Delete(self._path(key), nodes[key].data_version)
                above = parent(key)
                self._children[above] -= 1
                if level - 1 > KEPT_LEVELS and self._is_unused(above):
                    levels[level - 1].append(above)

    def _is_unused(self, key: str) -> bool:
        is_directory = not self._znodes.nodes[key].has_data
        return is_directory and key not in self._set and not self._children_left(key)

    def _children_left(self, key: str) -> int:
        return self._znodes.children[key] + self._children[key]

    def _path(self, key: str) -> str:
        return self._root + key


def plan(multi: Multi, writes: Iterable[Write]) -> Transaction:
    """Return the multi of a commit; raise ConflictError if a version is not that of the copy."""
    for write in writes:
        multi.add(write)
    return multi.request()
