"""Sends requests to the coordinator of a group or a transactional id, and looks it up again when it has moved."""

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from levada.client.connection import Connection
from levada.client.errors import FAILURES, raise_for_code
from levada.client.retry import COORDINATOR_RETRIABLE, STALE_COORDINATOR, RetryPolicy, is_retriable, retry
from levada.errors import ErrorCode, KafkaError
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.find_coordinator.v6 as find_coordinator

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.client.connection import ConnectionPool


class KeyType(IntEnum):
    """What is coordinated, by its number in FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class Coordinator:
    """The coordinator of one key; with `pool`, on connections of its own, so that no other request delays it."""

    def __init__(
        self,
        client: "Client",
        kind: KeyType,
        key: str,
        *,
        pool: "ConnectionPool | None" = None,
        timeout_ms: int | None = None,
    ) -> None:
        self._client = client
        self._policy = RetryPolicy(COORDINATOR_RETRIABLE, timeout_ms or 2 * client.request_timeout_ms)
        self._kind = kind
        self._key = key
        self._pool = pool
        self._node: int | None = None

    async def connection(self) -> Connection:
        """The connection to the coordinator; KafkaError while there is none."""
        return await self._client.connection(await self.node(), self._pool)

    async def request_once(
        self, api: str, request: object, check: Callable[[Any], None], *, version_min: int = 0
    ) -> Any:
        """Send a request without retries. `check` raises the errors in the response."""
        try:
            response = await self._client.request(
                api, request, node=await self.node(), pool=self._pool, version_min=version_min
            )
            check(response)
        except FAILURES as failure:
            if is_retriable(failure, STALE_COORDINATOR):
                self._node = None
            raise
        return response

    async def request(self, api: str, request: object, check: Callable[[Any], None], *, version_min: int = 0) -> Any:
        """Send a request, retried by the retry policy: so it must be safe to repeat."""
        return await retry(
            self._client,
            lambda: self.request_once(api, request, check, version_min=version_min),
            self._policy,
        )

    async def node(self) -> int:
        """The node id of the coordinator; KafkaError while there is none."""
        if self._node is None:
            request = find_coordinator.request.FindCoordinatorRequest(
                key_type=self._kind, coordinator_keys=(self._key,)
            )
            response = await self._client.request("find_coordinator", request)
            (found,) = response.coordinators
            detail = found.error_message or ""
            if ErrorCode.INVALID_REPLICATION_FACTOR.name in detail:  # no attempt succeeds before a setting is changed
                raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, detail)
            raise_for_code(found.error_code, detail or f"coordinator of {self._key}")
            self._node = int(found.node_id)
        return self._node
