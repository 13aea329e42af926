"""The broker that coordinates a group or a transactional id: found when first needed, and again when it has moved."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from levada.client.bootstrap import error_code
from levada.client.connection import Connection, ConnectionFailed, RequestTimedOut
from levada.client.producer.fencing import ENDING_S
from levada.errors import ErrorCode, KafkaError
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.find_coordinator.v6 as find_coordinator

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.client.pool import Pool

T = TypeVar("T")

# The coordinator is being made, has moved, or reads its journal: look for it and ask again.
NOT_YET = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
# A transaction is being ended, which takes milliseconds, or is open and holds back the offsets that are asked for.
PASSING = NOT_YET | {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNSTABLE_OFFSET_COMMIT}


class KeyType(IntEnum):
    """What is coordinated."""

    GROUP = 0
    TRANSACTION = 1


class Coordinator:
    """Asks whoever coordinates a key; on connections of `pool`, if its requests shall wait behind no others."""

    def __init__(
        self,
        client: "Client",
        kind: KeyType,
        key: str,
        *,
        pool: "Pool | None" = None,
        patience_ms: int | None = None,
    ) -> None:
        self._client = client
        self._patience_ms = patience_ms or 2 * client.request_timeout_ms
        self._kind = kind
        self._key = key
        self._pool = pool
        self._node: int | None = None

    async def connection(self) -> Connection:
        """The connection to the coordinator; KafkaError while there is none."""
        return await self._client.connection(await self.node(), self._pool)

    async def ask(
        self, api: str, request: object, check: Callable[[Any], None], *, version_min: int = 0
    ) -> Any:
        """Ask once. `check` raises the error that stands in the answer."""
        try:
            response = await self._client.request(
                api, request, node=await self.node(), pool=self._pool, version_min=version_min
            )
            check(response)
        except (KafkaError, ConnectionFailed, RequestTimedOut) as failure:
            if not isinstance(failure, KafkaError) or failure.code in NOT_YET:
                self._node = None
            raise
        return response

    async def request(
        self, api: str, request: object, check: Callable[[Any], None], *, version_min: int = 0
    ) -> Any:
        """Ask, and again what passes by itself, while patience lasts: so only what may be done twice."""
        return await patiently(
            self._client,
            lambda: self.ask(api, request, check, version_min=version_min),
            self._patience_ms,
        )

    async def node(self) -> int:
        """The broker that coordinates; KafkaError while there is none."""
        if self._node is None:
            request = find_coordinator.request.FindCoordinatorRequest(
                key_type=self._kind, coordinator_keys=(self._key,)
            )
            response = await self._client.request("find_coordinator", request)
            (found,) = response.coordinators
            check(found.error_code, found.error_message or f"coordinator of {self._key}")
            self._node = int(found.node_id)
        return self._node


async def patiently(client: "Client", ask: Callable[[], Awaitable[T]], patience_ms: int) -> T:
    """Ask, and again while a coordinator is on its way or cannot be reached."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_ms / 1000
    while True:
        pause_s = client.retry_backoff_s
        try:
            return await ask()
        except KafkaError as error:
            if error.code not in PASSING or loop.time() > deadline:
                raise
            if error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
                pause_s = ENDING_S
        except (ConnectionFailed, RequestTimedOut):
            if client.closed or loop.time() > deadline:
                raise
        await asyncio.sleep(pause_s)


def check(code: int, what: str) -> None:
    """KafkaError unless all is well."""
    found = error_code(int(code))
    if found:
        raise KafkaError(found, what)
