"""A metadata store in ZooKeeper: records are znodes, leases ephemeral ones, the change stream is a recursive watch.

The store keeps a copy of all znodes below its root, without their data. Whenever the copy is complete as of a
transaction, the changes are published. Commits are planned on the copy and return when it includes them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    ZookeeperError,
)
from kazoo.protocol.serialization import Create, Exists, GetChildren, GetData, Transaction
from kazoo.protocol.states import ZnodeStat
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from levada.clock import Clock
from levada.logs import EventLog
from levada.metadata.kazoo_connection import KazooConnection, Listener, Reply, end_session
from levada.metadata.multi import GUARD, Multi, plan
from levada.metadata.session_file import SessionFile
from levada.metadata.store import (
    ConflictError,
    Lease,
    LeaseLostError,
    MetadataUpdate,
    StoreError,
    Write,
    check_writes,
)
from levada.metadata.znode_reader import LOST, ZnodeReader, unreadable
from levada.metadata.znodes import LEASES, Znodes, ancestors

log = EventLog(__name__)

COMMIT_BYTES_MAX: Final = 768 << 10  # ZooKeeper's limit is 1 MiB with all that a request adds
ATTEMPTS_MAX: Final = 20
CHECKS_PER_TIMEOUT: Final = 12  # of the session; each renews it
FORMAT: Final = b'{"format":1}'
_STALE: Final = (BadVersionError, NoNodeError, NodeExistsError, NotEmptyError)  # the copy was not the newest
_ROLLED_BACK: Final = (RolledBackError, RuntimeInconsistency)  # operations of a multi in which another one failed


class ZooKeeperSettings(NamedTuple):
    """Where the store is, and how it is accessed."""

    hosts: str  # host:port,host:port
    root: str  # the path above all nodes; empty for that of the server
    session_timeout_s: float
    connection_timeout_s: float
    credentials: str = ""  # user:password, for digest authentication
    set_acl: bool = False  # whether only this user may change nodes that are created
    session_file: str = ""  # in a directory that only one process uses

    @property
    def connect(self) -> str:
        """The servers and the path, as in zookeeper.connect."""
        return self.hosts + self.root


class _Held(NamedTuple):
    lease: Lease
    on_lost: Callable[[], None]


class ZooKeeperStore:
    """A MetadataStore in ZooKeeper."""

    commit_bytes_max = COMMIT_BYTES_MAX

    def __init__(self, settings: ZooKeeperSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._root = settings.root
        self._acl = CREATOR_ALL_ACL + READ_ACL_UNSAFE if settings.set_acl else OPEN_ACL_UNSAFE
        self._znodes = Znodes()
        self._reader = ZnodeReader(self._znodes, self._root, self._request, self._prepare, self._completed)
        self._connection: KazooConnection | None = None
        self._on_change: Callable[[MetadataUpdate], None] | None = None  # once the snapshot is read
        self._revision = 0
        self._guard_created = 0  # by this transaction; another one would be another store in its place
        self._session = 0
        self._timeout_s = settings.session_timeout_s  # as the server has set it
        self._renewed = 0.0  # when the last request was sent that the server has answered in this session
        self._leases: dict[str, _Held] = {}
        self._acquiring: set[str] = set()
        self._checks: asyncio.Task[None] | None = None
        self._check: asyncio.Future[Reply] | None = None
        self._deletions: set[asyncio.Task[None]] = set()
        self._is_connected = False
        self._session_file = SessionFile(settings.session_file) if settings.session_file else None

    @property
    def dead_session_timeout_s(self) -> float:
        """Return the session timeout, and some time in which ZooKeeper notices that it has passed."""
        return self._timeout_s * 1.5

    async def open(self, on_change: Callable[[MetadataUpdate], None]) -> MetadataUpdate:
        settings = self._settings
        listener = Listener(self._connected, self._disconnected, self._session_ended, self._reader.changed)
        auth = [("digest", settings.credentials)] if settings.credentials else []
        await self._end_former_session()
        self._connection = KazooConnection(settings.hosts, settings.session_timeout_s, auth, listener)
        self._connection.start()
        self._checks = asyncio.get_running_loop().create_task(self._check_session(), name="zookeeper-session")
        async with self._bounded(settings.connection_timeout_s):
            await self._reader.complete()
        records = [record for record in self._znodes.take_changes() if record.value is not None]
        self._on_change = on_change
        return MetadataUpdate(self._revision, sorted(records), snapshot=True)

    async def commit(self, writes: Sequence[Write], lease: Lease | None = None) -> int:
        check_writes(writes, COMMIT_BYTES_MAX)
        async with self._bounded(self._timeout_s):
            return await self._commit(writes, lease)

    async def acquire(self, name: str, value: bytes, on_lost: Callable[[], None]) -> Lease | None:
        self._acquiring.add(name)
        try:
            async with self._bounded(self._timeout_s):
                return await self._acquire(name, value, on_lost)
        except BaseException:
            self._leases.pop(name, None)
            raise
        finally:
            self._acquiring.discard(name)
            self._delete_orphans()

    async def release(self, lease: Lease) -> None:
        held = self._leases.get(lease.name)
        if held is not None and held.lease == lease:
            del self._leases[lease.name]
            async with self._bounded(self._timeout_s):
                await self._delete_lease(lease.name)

    async def close(self) -> None:
        self._leases.clear()
        self._reader.disconnected()
        if self._checks is not None:
            self._checks.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            is_closed = self._is_connected
            await connection.stop()
            if is_closed and self._session_file is not None:
                await asyncio.to_thread(self._session_file.remove)

    # Commits.

    async def _commit(self, writes: Sequence[Write], lease: Lease | None) -> int:
        may_be_applied = False
        for _ in range(ATTEMPTS_MAX):
            await self._reader.complete()
            multi = self._multi()
            if lease is not None:
                self._check_lease(multi, lease)
            try:
                request = plan(multi, writes)
            except ConflictError as error:
                if may_be_applied:
                    raise StoreError("the connection to ZooKeeper was lost during a commit") from error
                raise
            try:
                if await self._apply(request):
                    return self._revision
            except LOST:
                may_be_applied = True  # unless the versions of all its keys are as before
        raise StoreError(f"other clients keep changing the same nodes of ZooKeeper at {self._settings.connect}")

    def _multi(self) -> Multi:
        return Multi(self._znodes, self._root, self._acl, FORMAT)

    def _check_lease(self, multi: Multi, lease: Lease) -> None:
        """Require that a lease is held: its node exists, and nobody has acquired it since."""
        held = self._leases.get(lease.name)
        if held is None or held.lease != lease:
            raise LeaseLostError(f"the lease {lease.name} is over")
        multi.check_data_version(lease.name, 0)
        multi.check_data_version(_epoch_key(lease.name), lease.epoch - 1)

    async def _apply(self, request: Transaction) -> bool:
        """Apply a multi; return when the copy includes it. False if it was planned on an older copy."""
        if not request.operations:
            return True
        reply = await self._request(request)
        errors = [result for result in reply.value if isinstance(result, ZookeeperError)]
        cause = next((error for error in errors if not isinstance(error, _ROLLED_BACK)), None)
        if cause is not None and not isinstance(cause, _STALE):
            raise unreadable(cause, self._root)
        await self._reader.complete()
        return cause is None

    # Leases.

    async def _acquire(self, name: str, value: bytes, on_lost: Callable[[], None]) -> Lease | None:
        for _ in range(ATTEMPTS_MAX):
            await self._reader.complete()
            session = self._session
            if name in self._znodes.nodes:
                return None
            multi, epoch_key = self._multi(), _epoch_key(name)
            former = self._znodes.nodes.get(epoch_key)
            lease = Lease(name, 1 if former is None else former.data_version + 2)
            multi.set(epoch_key, b"")
            multi.create(name, value, ephemeral=True)
            try:
                is_applied = await self._apply(multi.request())
            except LOST:
                continue  # after the next connection the node is an orphan, or its session has ended
            if is_applied and session == self._session and name in self._znodes.nodes:
                self._leases[name] = _Held(lease, on_lost)
                return lease
        raise StoreError(f"other clients keep changing {name} in ZooKeeper at {self._settings.connect}")

    async def _delete_lease(self, name: str) -> None:
        """Delete the node of a lease of this session, unless the session has ended and the lease is another one."""
        epoch = self._znodes.nodes.get(_epoch_key(name))
        if epoch is not None:
            multi = self._multi()
            multi.check_data_version(_epoch_key(name), epoch.data_version)
            multi.delete_lease(name)
            with suppress(*LOST):  # after the next connection it is an orphan
                await self._apply(multi.request())

    def _delete_orphans(self) -> None:
        """Delete lease nodes of this session that nobody holds: their creation or deletion was not answered."""
        for name in self._znodes.ephemeral:
            is_known = name in self._leases or name in self._acquiring
            if self._znodes.nodes[name].owner == self._session and not is_known:
                self._deletions.add(task := asyncio.get_running_loop().create_task(self._delete_lease(name)))
                task.add_done_callback(self._deletions.discard)

    def _lose(self, names: Sequence[str], reason: str) -> None:
        for name in names:
            held = self._leases.pop(name)
            log.warning("lease lost", name=name, epoch=held.lease.epoch, reason=reason)
            held.on_lost()

    # The session.

    async def _end_former_session(self) -> None:
        """End the session of a former process in the same directory, which is dead."""
        former = None if self._session_file is None else await asyncio.to_thread(self._session_file.read)
        if former is not None:
            settings = self._settings
            is_ended = await end_session(settings.hosts, settings.session_timeout_s, former)
            log.info("session of the former process ended", session=f"{former[0]:#x}", by_this_process=is_ended)

    def _connected(self, session: int, password: bytes, timeout_s: float) -> None:
        if session != self._session:
            self._session, self._timeout_s, self._renewed = session, timeout_s, self._clock.monotonic()
            if self._session_file is not None:
                asyncio.get_running_loop().run_in_executor(None, self._session_file.write, session, password)
        log.info("connected to ZooKeeper", servers=self._settings.connect, session=f"{session:#x}")
        self._is_connected = True
        self._reader.connected()

    def _disconnected(self) -> None:
        if self._is_connected:
            log.warning("connection to ZooKeeper lost", servers=self._settings.connect)
            self._is_connected = False
            self._reader.disconnected()

    def _session_ended(self, reason: str) -> None:
        log.warning("session of ZooKeeper ended", servers=self._settings.connect, reason=reason)
        self._is_connected, self._session = False, 0
        self._reader.disconnected()
        self._lose(list(self._leases), reason)

    async def _check_session(self) -> None:
        """Renew the session, and end its leases before ZooKeeper could."""
        while True:
            interval_s = self._timeout_s / CHECKS_PER_TIMEOUT
            await asyncio.sleep(interval_s)
            if self._clock.monotonic() - self._renewed > self._timeout_s - interval_s:
                self._lose(list(self._leases), "no answer within the session timeout")
            if self._is_connected and (self._check is None or self._check.done()):
                self._check = self._request(Exists(self._path(GUARD), None))

    def _request(self, request: Any) -> "asyncio.Future[Reply]":
        """Send a request; its answer renews the session, or is the first sign of a lost connection."""
        if self._connection is None:
            raise ConnectionLoss
        sent, session = self._clock.monotonic(), self._session

        def answered(done: "asyncio.Future[Reply]") -> None:
            error = None if done.cancelled() else done.exception()
            if isinstance(error, LOST):
                self._disconnected()
            elif not done.cancelled() and session == self._session:
                self._renewed = max(self._renewed, sent)

        future = self._connection.request(request)
        future.add_done_callback(answered)
        return future

    # The copy.

    async def _prepare(self) -> None:
        """Check that the root is that of a store, of this one if it was read before; create a new one."""
        found = await self._read_guard()
        if found is None and not self._guard_created:
            await self._create_store()
            found = await self._read_guard()
        if found is None or self._guard_created not in (0, found.czxid):
            raise StoreError(f"the metadata of this cluster is no longer in ZooKeeper at {self._settings.connect}")
        self._guard_created = found.czxid

    async def _read_guard(self) -> ZnodeStat | None:
        """Check the format of the store; return the guard's stat."""
        try:
            content, stat = (await self._request(GetData(self._path(GUARD), None))).value
        except NoNodeError:
            return None
        if content != FORMAT:
            raise StoreError(f"{self._path(GUARD)} in ZooKeeper is {content!r}; this Levada reads {FORMAT!r}")
        return stat

    async def _create_store(self) -> None:
        with suppress(NoNodeError):
            names = set((await self._request(GetChildren(self._root or "/", None))).value)
            foreign = sorted(names - {"zookeeper", "levada"})
            if foreign:
                raise StoreError(
                    f"ZooKeeper at {self._settings.connect} contains what is not Levada's: {', '.join(foreign[:5])}; "
                    "choose another path in zookeeper.connect, such as host:2181/levada"
                )
        guard = self._path(GUARD)
        for path in (*ancestors(guard), guard):
            with suppress(NodeExistsError):
                await self._request(Create(path, FORMAT if path == guard else b"", self._acl, 0))

    def _completed(self, zxid: int) -> None:
        """Publish the changes of the copy."""
        self._revision = zxid
        nodes, session = self._znodes.nodes, self._session
        lost = [name for name in self._leases if name not in nodes or nodes[name].owner != session]
        self._lose(lost, "its node was deleted")
        self._delete_orphans()
        if self._on_change is not None:
            changes = self._znodes.take_changes()
            if changes:
                self._publish(MetadataUpdate(zxid, changes))

    def _publish(self, update: MetadataUpdate) -> None:
        assert self._on_change is not None
        try:
            self._on_change(update)
        except Exception as error:  # noqa: BLE001 (as the loop handles errors of callbacks)
            asyncio.get_running_loop().call_exception_handler({"message": "on_change failed", "exception": error})

    def _path(self, key: str) -> str:
        return self._root + key

    @asynccontextmanager
    async def _bounded(self, seconds: float) -> AsyncIterator[None]:
        """Raise StoreError if ZooKeeper does not answer in time, and for its errors."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            what = "has not answered" if self._is_connected else "cannot be reached"
            raise StoreError(f"ZooKeeper at {self._settings.connect} {what} within {seconds:g} s") from error
        except ZookeeperError as error:
            raise unreadable(error, self._root) from error


def _epoch_key(lease: str) -> str:
    """Return the key of the node whose data version is the epoch of a lease; it is never deleted."""
    return f"{LEASES}/{quote(lease, safe='')}"
