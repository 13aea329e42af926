"""The program of `StoreProcess`: reads commands as lines of JSON and prints their results."""

import asyncio
import json
import sys
from typing import Any

from tests.support.stores import Subscriber, open_place

from levada.metadata.store import CompareAndSet, Lease


class Commands:
    """The commands."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber

    async def acquire(self, name: str, value: str) -> Lease | None:
        return await self._subscriber.acquire(name, value.encode())

    async def commit(self, key: str, value: str, version: int, lease: list[Any] | None) -> int:
        write = CompareAndSet(key, value.encode(), version)
        return await self._subscriber.store.commit([write], Lease(*lease) if lease else None)

    async def lost(self, name: str) -> bool:
        """Wait until a lease is lost."""
        await self._subscriber.until(lambda: name in self._subscriber.lost)
        return True

    async def write_pairs(self, prefix: str) -> None:
        """Write pairs of records until the process is killed, and print the number of each."""
        for number in range(1_000_000):
            names = (f"{prefix}/{number}/a", f"{prefix}/{number}/b")
            await self._subscriber.store.commit([CompareAndSet(name, b"x", 0) for name in names])
            print(number, flush=True)


async def main(address: str, session_timeout_s: float) -> None:
    commands = Commands(await Subscriber(open_place(address, session_timeout_s)).open())
    while line := await asyncio.to_thread(sys.stdin.readline):
        command, *arguments = json.loads(line)
        try:
            result = await getattr(commands, command)(*arguments)
        except Exception as error:
            result = type(error).__name__
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
