"""Keeps a copy of znodes complete: reads everything after a connection, then what watch events name."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, Final

from kazoo.exceptions import ConnectionLoss, NoAuthError, NoNodeError, SessionExpiredError, ZookeeperError
from kazoo.protocol.serialization import GetChildren, GetData, Sync

from levada.logs import EventLog
from levada.metadata.kazoo_connection import AddWatch, MultiRead, Reply
from levada.metadata.store import StoreError
from levada.metadata.znodes import Znode, Znodes

log = EventLog(__name__)

LOST: Final = (ConnectionLoss, SessionExpiredError)  # also when the client is closed
READS_PER_REQUEST: Final = 500
RETRY_S: Final = 1.0
QUOTA: Final = "/zookeeper"  # ZooKeeper's own nodes, if the root is that of the server


class ZnodeReader:
    """Reads the nodes below a root into a copy. One task follows the changes while there is a connection."""

    def __init__(
        self,
        znodes: Znodes,
        root: str,
        request: Callable[[Any], "asyncio.Future[Reply]"],
        prepare: Callable[[], Coroutine[Any, Any, None]],  # called after each connection; raises StoreError
        completed: Callable[[int], None],  # called with the transaction as of which the copy is complete
    ) -> None:
        self.znodes = znodes
        self._root = root
        self._request = request
        self._prepare = prepare
        self._completed = completed
        self._is_complete = False
        self._waiting: list[asyncio.Future[None]] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None  # because of which the copy cannot be read

    def connected(self) -> None:
        """Begin to read everything: changes may have been missed."""
        self.disconnected()
        self._error = None
        self._task = asyncio.get_running_loop().create_task(self._run(), name="zookeeper-reader")

    def disconnected(self) -> None:
        """Stop reading."""
        self._is_complete = False
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def changed(self, path: str) -> None:
        """Read a node again."""
        key = path[len(self._root) :]
        if key.strip("/") and not self._is_of_zookeeper(key):
            self._is_complete = False
            self.znodes.changed(key)
            self._changed.set()

    async def complete(self) -> None:
        """Return when the copy includes all changes that have been heard of; raise StoreError if it cannot be read."""
        while not self._is_complete:
            if self._error is not None:
                raise self._error
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except LOST:
                return  # the next connection begins again
            except (ZookeeperError, StoreError) as error:
                self._error = error if isinstance(error, StoreError) else unreadable(error, self._root)
                log.error("metadata store cannot be read", error=str(self._error))
                self._notify()
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        """Read everything, then follow the changes; does not return."""
        await self._prepare()
        await self._request(AddWatch(self._root or "/"))
        await self._request(Sync(self._root or "/"))
        zxid = await self._read_all()
        self._error = None
        while True:
            while self.znodes.to_read:
                zxid = await self._read(list(islice(self.znodes.to_read, READS_PER_REQUEST)))
            self._is_complete = True
            self._completed(zxid)
            self._notify()
            self._changed.clear()
            await self._changed.wait()

    def _notify(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def _read_all(self) -> int:
        """Read all nodes, level by level; those of the copy that are not found are read once more."""
        unseen = set(self.znodes.nodes)
        level = [""]
        zxid = 0
        while level:
            below: list[str] = []
            for keys in _chunks(level):
                reply = await self._request(MultiRead([GetChildren(self._path(key), None) for key in keys]))
                for key, names in zip(keys, reply.value, strict=True):
                    if not _is_missing(names):
                        below += [child for name in names if not self._is_of_zookeeper(child := f"{key}/{name}")]
            level = []
            for keys in _chunks(below):
                zxid = await self._read(keys, parents=level)
            unseen.difference_update(below)
        for key in unseen:
            self.znodes.changed(key)
        return zxid

    async def _read(self, keys: Sequence[str], parents: list[str] | None = None) -> int:
        """Read nodes; add those with children to `parents`."""
        self.znodes.begin_read(keys)
        try:
            reply = await self._request(MultiRead([GetData(self._path(key), None) for key in keys]))
        except BaseException:
            for key in keys:
                self.znodes.changed(key)
            raise
        for key, result in zip(keys, reply.value, strict=True):
            if _is_missing(result):
                self.znodes.remove(key, reply.zxid)
                continue
            value, stat = result
            node = Znode(stat.version, stat.mzxid, stat.ephemeralOwner, bool(value))
            self.znodes.set(key, node, value)
            if parents is not None and stat.numChildren:
                parents.append(key)
        return reply.zxid

    def _path(self, key: str) -> str:
        return self._root + key or "/"

    def _is_of_zookeeper(self, key: str) -> bool:
        return not self._root and (key == QUOTA or key.startswith(QUOTA + "/"))


def unreadable(error: ZookeeperError, path: str) -> StoreError:
    """Return the StoreError of an error of ZooKeeper."""
    if isinstance(error, NoAuthError):
        return StoreError(f"ZooKeeper denies access below {path or '/'}: check levada.zookeeper.credentials")
    return StoreError(f"ZooKeeper cannot read or write below {path or '/'}: {error!r}")


def _is_missing(result: Any) -> bool:
    """Whether a read found no node; other errors are raised."""
    if isinstance(result, NoNodeError):
        return True
    if isinstance(result, ZookeeperError):
        raise result
    return False


def _chunks(keys: Sequence[str]) -> Iterable[Sequence[str]]:
    return (keys[start : start + READS_PER_REQUEST] for start in range(0, len(keys), READS_PER_REQUEST))
