"""Metadata stores of tests: where they meet, what they receive, and processes with one of them."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from levada.clock import Clock, SystemClock
from levada.metadata.sqlite import SqliteStore
from levada.metadata.store import ABSENT, CheckVersion, CompareAndSet, Lease, MetadataStore, MetadataUpdate
from levada.metadata.zookeeper import ZooKeeperSettings, ZooKeeperStore

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60.0  # a busy machine is slow; passing it is a failure
SESSION_TIMEOUT_S = 10.0


def open_place(address: str, session_timeout_s: float = SESSION_TIMEOUT_S, clock: Clock | None = None) -> MetadataStore:
    """A store at `sqlite:PATH` or `zookeeper:CONNECT`."""
    kind, _, place = address.partition(":")
    if kind == "sqlite":
        return SqliteStore(place, clock or SystemClock(), session_timeout_s)
    hosts, slash, path = place.partition("/")
    settings = ZooKeeperSettings(hosts, slash + path, session_timeout_s, TIMEOUT_S)
    return ZooKeeperStore(settings, clock or SystemClock())


class Subscriber:
    """A store and the records of its change stream."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.records: dict[str, tuple[bytes, int]] = {}
        self.revisions: list[int] = []
        self.snapshots = 0
        self.lost: list[str] = []  # names of leases
        self.on_update: Callable[[], None] = lambda: None
        self._changed = asyncio.Event()

    async def open(self) -> "Subscriber":
        self.on_change(await self.store.open(self.on_change))
        return self

    def on_change(self, update: MetadataUpdate) -> None:
        if update.snapshot:
            self.records.clear()
            self.snapshots += 1
        for key, value, version in update.records:
            if value is None:
                self.records.pop(key, None)
            else:
                self.records[key] = value, version
        self.revisions.append(update.revision)
        self.on_update()
        self._changed.set()

    @property
    def values(self) -> dict[str, bytes]:
        return {key: value for key, (value, _) in self.records.items()}

    def write(self, key: str, value: bytes | None) -> CompareAndSet:
        """A write of the version that was received last."""
        return CompareAndSet(key, value, self.version(key))

    def version(self, key: str) -> int:
        return self.records.get(key, (b"", ABSENT))[1]

    def check(self, key: str) -> CheckVersion:
        return CheckVersion(key, self.version(key))

    async def set(self, key: str, value: bytes | None) -> int:
        return await self.store.commit([self.write(key, value)])

    async def acquire(self, name: str, value: bytes = b"value") -> Lease | None:
        def lost() -> None:
            self.lost.append(name)
            self._changed.set()

        return await self.store.acquire(name, value, lost)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something is received or lost that makes a condition true."""
        async with asyncio.timeout(TIMEOUT_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def subscribers(address: str, count: int = 1, **options: Any) -> AsyncIterator[list[Subscriber]]:
    """Open stores, and close them."""
    opened: list[Subscriber] = []
    try:
        for _ in range(count):
            opened.append(Subscriber(open_place(address, **options)))
            await opened[-1].open()
        yield opened
    finally:
        for one in opened:
            await one.store.close()


class StoreProcess:
    """A process with a store; each command is the name of a method below and its arguments."""

    def __init__(self, address: str, session_timeout_s: float) -> None:
        self._arguments = [address, str(session_timeout_s)]
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> "StoreProcess":
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.store_process", *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def run(self, command: str, *arguments: object) -> Any:
        """Execute a command and return its result, or the name of its error."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, *arguments]).encode() + b"\n")
        return await self.result()

    async def result(self) -> Any:
        assert self._process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            return json.loads(await self._process.stdout.readline())

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


def on_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a coroutine with the argument `place`."""

    def run(place: str) -> None:
        asyncio.run(_awaited(test(place)))

    run.__doc__ = test.__doc__
    return run


async def _awaited(test: Awaitable[None]) -> None:
    await test


def writes(subscriber: Subscriber, values: dict[str, bytes | None]) -> Sequence[CompareAndSet]:
    return [subscriber.write(key, value) for key, value in values.items()]
