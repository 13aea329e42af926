"""A Kafka client on asyncio, used by the command line, Spark and pipelines, and open to users.

It keeps one connection to each broker, sends each request to the leader or coordinator in charge, and refreshes its
metadata when a response shows that it is stale. It needs no C library, runs on the caller's event loop and can send
every API; confluent-kafka is faster.
"""

import asyncio
import random
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack, overload

from levada.client.connection import RESPONSE_BYTES_MAX, Address, Connection, ConnectionPool
from levada.client.errors import (
    BrokerNotResponding,
    ConnectionFailed,
    raise_for_code,
)
from levada.client.metadata import Api, BrokerInfo, ClusterMetadata, TopicInfo
from levada.client.retry import STALE_METADATA, RetryPolicy, retry
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition

if TYPE_CHECKING:
    from levada.client.admin.admin import Admin
    from levada.client.consumer.consumer import Consumer, ConsumerOptions
    from levada.client.consumer.group_consumer import GroupConsumer, GroupOptions
    from levada.client.data import OffsetAndTimestamp
    from levada.client.producer.producer import BatchingOptions, Producer, ProducerOptions
    from levada.client.producer.transactions import PreparedTransaction, TransactionalProducer

DEFAULT_PORT = 9092


def parse_bootstrap(bootstrap: str | Iterable[str]) -> list[Address]:
    """Addresses as `host:port`, separated by commas or in a list; IPv6 in brackets, port 9092 by default."""
    entries = bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap
    addresses: list[Address] = []
    for entry in (text.strip() for text in entries):
        if not entry:
            continue
        host, colon, port = entry.rpartition(":")
        if not colon or entry.endswith("]"):
            host, port = entry, str(DEFAULT_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"not an address: {entry!r}; write host:port, as in 127.0.0.1:9092")
        addresses.append(Address(host, int(port)))
    if not addresses:
        raise ValueError("no bootstrap address given; write host:port, as in 127.0.0.1:9092")
    return addresses


class Client:
    """A connection to a cluster.

    >>> async with levada.Client("127.0.0.1:9092") as client:
    ...     for name in (await client.metadata()).topics: ...
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = "127.0.0.1:9092",
        client_id: str = "levada",
        *,
        request_timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        retry_backoff_ms: int = 100,
        metadata_max_age_ms: int = 300_000,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
        rack: str = "",
    ) -> None:
        self.bootstrap = parse_bootstrap(bootstrap)
        self.client_id = client_id
        self.rack = rack  # consumers read from a replica in it, where the brokers select replicas (KIP-392)
        self.request_timeout_ms = request_timeout_ms
        self.retry_backoff_s = retry_backoff_ms / 1000
        self._metadata_max_age_s = metadata_max_age_ms / 1000
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._response_bytes_max = response_bytes_max
        self._brokers: dict[int, BrokerInfo] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._refreshed_at: dict[str, float] = {}  # by topic
        self._pool = self.pool()
        self.has_responded = False  # a broker, ever; set by the retry policy

    async def __aenter__(self) -> "Client":
        try:
            await self._any_connection()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def closed(self) -> bool:
        return self._pool.closed

    async def close(self) -> None:
        """Close every connection; requests in flight fail with ConnectionFailed."""
        await self._pool.close()

    # Metadata

    async def metadata(self, topics: Iterable[str] | None = None, *, create: bool = False) -> ClusterMetadata:
        """Brokers and these topics, or all; `create` lets the broker create missing topics, if it is configured to."""
        names = None if topics is None else list(topics)
        connection = await self._any_connection()
        found = await connection.metadata(names, create=create, timeout_s=self.request_timeout_ms / 1000)
        self._brokers = dict(found.brokers)
        for name, topic in found.topics.items():
            if topic.error == ErrorCode.NONE:
                self._topics[name] = topic
                self._refreshed_at[name] = asyncio.get_running_loop().time()
            else:
                self._topics.pop(name, None)
        return found

    async def topic(self, name: str, *, create: bool = False, refresh: bool = False) -> TopicInfo:
        """One topic, cached unless `refresh`; retries while the topic is being created or brokers are unreachable."""
        known = self._topics.get(name)
        if known is not None and not refresh and self._is_fresh(name):
            return known
        codes = STALE_METADATA if create else frozenset({ErrorCode.LEADER_NOT_AVAILABLE})
        policy = RetryPolicy(codes, self.request_timeout_ms)
        return await retry(self, lambda: self._describe_topic(name, create), policy)

    async def _describe_topic(self, name: str, create: bool) -> TopicInfo:
        topic = (await self.metadata([name], create=create)).topics.get(name)
        if topic is not None and topic.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise_for_code(topic.error, f"topic {name}")
            if topic.partitions:
                return topic
        detail = f"topic {name} does not exist; create it with: levada topic create {name}"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)

    def _is_fresh(self, topic: str) -> bool:
        """Whether a topic's metadata is younger than `metadata_max_age_ms`: brokers do not announce new partitions."""
        return asyncio.get_running_loop().time() - self._refreshed_at[topic] < self._metadata_max_age_s

    async def leader(self, partition: TopicPartition, *, refresh: bool = False) -> int:
        """The node that leads a partition; KafkaError if there is no such partition or no leader now."""
        topic = await self.topic(partition.topic, refresh=refresh)
        if not 0 <= partition.partition < len(topic.partitions):
            raise topic.unknown_partition(partition.partition)
        leader = topic.partitions[partition.partition].leader
        if leader < 0:
            self.invalidate_metadata(partition.topic)  # the next attempt asks again
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(partition))
        return leader

    def cached_leader(self, partition: TopicPartition) -> int:
        """The leader by the cached metadata, -1 if it is unknown."""
        topic = self._topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return -1
        return topic.partitions[partition.partition].leader

    @property
    def metadata_max_age_s(self) -> float:
        """The age from which metadata is refreshed."""
        return self._metadata_max_age_s

    def invalidate_metadata(self, topic: str) -> None:
        """Refresh the metadata of a topic before its next use."""
        self._topics.pop(topic, None)

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> "dict[TopicPartition, OffsetAndTimestamp]":
        """The offset of a time in each partition: milliseconds, or LATEST, EARLIEST, MAX_TIMESTAMP of `data`."""
        from levada.client.consumer.fetch import list_offsets

        return await list_offsets(self, times, isolation_level)

    # Requests

    async def request(
        self,
        api: str,
        request: object,
        *,
        node: int | None = None,
        timeout_ms: int | None = None,
        pool: ConnectionPool | None = None,
        version_min: int = 0,
    ) -> Any:
        """Send any request of the protocol to a broker (to any broker without `node`) and return its response.

        `api` is the API's name as kio spells it ("create_topics"); request and response have the shape of its
        newest version, whatever version the broker supports. Fields that are new in later versions are left out; if
        the broker supports only versions below `version_min`, UNSUPPORTED_VERSION is raised and nothing is sent.
        """
        from levada.wire.schema import messages
        from levada.wire.schema.versions import APIS

        api_key = next((known.key for known in APIS.values() if known.name == api), None)
        if api_key is None:
            raise ValueError(f"there is no API {api!r}")
        connection = await self.connection(node, pool)
        known = messages.versions_known(api_key)
        version = connection.version(Api(api, api_key, range(max(known.start, version_min), known.stop)))
        body = await connection.send(
            api_key,
            version,
            messages.write_request(api_key, version, request),
            timeout_s=(timeout_ms or self.request_timeout_ms) / 1000,
            flexible=messages.request_header_is_flexible(api_key, version),
            flexible_response=messages.response_header_is_flexible(api_key, version),
        )

        def read(view: memoryview) -> Any:
            try:
                return messages.read_response(api_key, version, view)
            except KafkaError as malformed:
                raise ValueError(malformed.detail) from None

        return connection.parse(read, body)

    @property
    def admin(self) -> "Admin":
        """Topics and configs: create, alter, describe, delete."""
        from levada.client.admin.admin import Admin

        return Admin(self)

    @overload
    def producer(self, **options: "Unpack[ProducerOptions]") -> "Producer": ...

    @overload
    def producer(
        self,
        *,
        transactional_id: str,
        transaction_timeout_ms: int = 60_000,
        two_phase: bool = False,
        keep_prepared: bool = False,
        **options: "Unpack[BatchingOptions]",
    ) -> "TransactionalProducer": ...

    def producer(self, *, transactional_id: str | None = None, **options: Any) -> "Producer | TransactionalProducer":
        """A batching producer; with a transactional id one that sends in transactions.

        See `levada.client.producer.producer.Producer` and `levada.client.producer.transactions.TransactionalProducer`.
        """
        if transactional_id is not None:
            from levada.client.producer.transactions import TransactionalProducer

            return TransactionalProducer(self, transactional_id, **options)
        from levada.client.producer.producer import Producer

        return Producer(self, **options)

    async def commit_prepared(self, prepared: "PreparedTransaction") -> None:
        """Commit a transaction that a producer in any process has prepared; safe to repeat.

        ProducerFenced: it was aborted, or another producer has taken over the transactional id.
        """
        from levada.client.producer.transactions import end_prepared

        await end_prepared(self, prepared, committed=True)

    async def abort_prepared(self, prepared: "PreparedTransaction") -> None:
        """Abort a transaction that a producer in any process has prepared, as `commit_prepared` commits it."""
        from levada.client.producer.transactions import end_prepared

        await end_prepared(self, prepared, committed=False)

    @overload
    def consumer(
        self,
        *topics: str,
        assign: "Iterable[TopicPartition | tuple[str, int]]" = (),
        **options: "Unpack[ConsumerOptions]",
    ) -> "Consumer": ...

    @overload
    def consumer(self, *topics: str, group: str, **options: "Unpack[GroupOptions]") -> "GroupConsumer": ...

    def consumer(self, *topics: str, group: str | None = None, **options: Any) -> "Consumer":
        """A consumer of topics, or of the partitions in `assign`, or a member of a group.

        See `levada.client.consumer.consumer.Consumer` and `levada.client.consumer.group_consumer.GroupConsumer`.
        """
        if group is not None:
            from levada.client.consumer.group_consumer import GroupConsumer

            return GroupConsumer(self, group, topics=topics, **options)
        from levada.client.consumer.consumer import Consumer

        return Consumer(self, topics=topics, **options)

    # Connections

    def pool(self) -> ConnectionPool:
        """A new connection pool, for long polls; the caller closes it."""
        return ConnectionPool(
            self.client_id,
            connect_timeout_s=self._connect_timeout_s,
            response_bytes_max=self._response_bytes_max,
        )

    async def connection(self, node: int | None = None, pool: ConnectionPool | None = None) -> Connection:
        """The connection to a broker, opened if need be; without `node` to any broker."""
        if node is None:
            return await self._any_connection()
        broker = self._brokers.get(node)
        if broker is None:
            await self.metadata(())
            broker = self._brokers.get(node)
        if broker is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {node}")
        return await (pool or self._pool).get(Address(broker.host, broker.port))

    async def _any_connection(self) -> Connection:
        """An open connection, or one to the first broker that responds."""
        connection = self._pool.any_open()
        if connection is not None:
            return connection
        known = [Address(broker.host, broker.port) for broker in self._brokers.values()]
        random.shuffle(known)
        failures: list[ConnectionFailed] = []
        for address in dict.fromkeys(known + self.bootstrap):
            try:
                return await self._pool.get(address)
            except ConnectionFailed as failure:
                failures.append(failure)
        not_responding = any(isinstance(failure, BrokerNotResponding) for failure in failures)
        kind = BrokerNotResponding if not_responding else ConnectionFailed
        raise kind("; ".join(dict.fromkeys(map(str, failures))))
