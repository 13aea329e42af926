"""A copy of the znodes of a store: what is known, what has to be read again, what has changed.

A recursive watch names the path of each change, not its content, and everything it names is read again. The watch
events of changes that a response includes arrive before that response. So the copy is complete as of the transaction
that a response names if, when that response arrives, no path is left to read.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from levada.metadata.store import ABSENT, MetadataRecord

INTERNAL: Final = "/levada/store"  # below it are znodes of the store itself, which are no records
LEASES: Final = INTERNAL + "/leases"


class Znode(NamedTuple):
    """A znode. Without data it is a directory; its record is absent."""

    data_version: int  # counts the changes of the data since the node was created
    version: int  # of its record: the transaction of the last change, which never returns
    owner: int  # the session of an ephemeral node, otherwise 0
    has_data: bool


class Znodes:
    """The znodes at and below the root, by key: the path below the root."""

    def __init__(self) -> None:
        self.nodes: dict[str, Znode] = {}
        self.children: Counter[str] = Counter()  # of each node, by key
        self.ephemeral: set[str] = set()
        self.to_read: dict[str, None] = {}  # in order
        self._changed: dict[str, MetadataRecord] = {}

    def version(self, key: str) -> int:
        """The version of a record."""
        node = self.nodes.get(key)
        return ABSENT if node is None or not node.has_data else node.version

    def changed(self, key: str) -> None:
        """Note that a node may have changed."""
        self.to_read[key] = None

    def begin_read(self, keys: Iterable[str]) -> None:
        """Note that nodes are being read; those that change from now on have to be read again."""
        for key in keys:
            self.to_read.pop(key, None)

    def set(self, key: str, node: Znode, value: bytes) -> None:
        """Set a node as it was read."""
        former = self.nodes.get(key)
        if former == node:
            return
        self.nodes[key] = node
        if former is None:
            self.children[parent(key)] += 1
        self._change(key, former, value if node.has_data else None, node.version)
        if node.owner:
            self.ephemeral.add(key)
        else:
            self.ephemeral.discard(key)

    def remove(self, key: str, zxid: int) -> None:
        """Remove a node that does not exist as of a transaction."""
        former = self.nodes.pop(key, None)
        if former is not None:
            self.children[parent(key)] -= 1
            self.ephemeral.discard(key)
            self._change(key, former, None, zxid)

    def take_changes(self) -> list[MetadataRecord]:
        """Return the records that have changed since the last call."""
        changed = list(self._changed.values())
        self._changed.clear()
        return changed

    def _change(self, key: str, former: Znode | None, value: bytes | None, version: int) -> None:
        had_data = former is not None and former.has_data
        is_record = not (key == INTERNAL or key.startswith(INTERNAL + "/"))
        if is_record and (had_data or value is not None or key in self._changed):
            self._changed[key] = MetadataRecord(key, value, version)


def parent(key: str) -> str:
    """Return the key of a node's parent; the root is the empty key."""
    return key.rpartition("/")[0]


def ancestors(key: str) -> list[str]:
    """Return the keys above a key, the highest first, without the root."""
    parts = key.split("/")
    return ["/".join(parts[:end]) for end in range(2, len(parts))]
