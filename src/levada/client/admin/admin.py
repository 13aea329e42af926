"""The admin client for topics and configs: each method sends one request for one resource and raises its error."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from uuid import UUID

from levada.client.errors import raise_for_code
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.create_partitions.v3 as create_partitions
    import kio.schema.create_topics.v7 as create_topics
    import kio.schema.delete_topics.v6 as delete_topics
    import kio.schema.describe_configs.v4 as describe_configs
    import kio.schema.incremental_alter_configs.v1 as alter_configs

if TYPE_CHECKING:
    from levada.client.client import Client

BROKER_DEFAULT = -1  # partitions or replicas by the broker's configs
RESOURCE_TYPES = {"topic": 2, "broker": 4, "group": 32}
SOURCES = {
    1: "topic",
    2: "broker",
    3: "cluster",
    4: "static",
    5: "default",
    6: "logger",
    8: "group",
}  # by the number of ConfigSource
SET, UNSET = 0, 1

Resource = Literal["topic", "broker", "group"]


class ConfigEntry(NamedTuple):
    """One config; `source` is where its value comes from: topic, group, broker, cluster, static or default."""

    name: str
    value: str | None
    source: str
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None


class Admin:
    """Made by `Client.admin`."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> UUID | None:
        """Create a topic and return its id."""
        request: Any = create_topics.request
        topic = request.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=(),
            configs=tuple(
                request.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
            ),
        )
        response = await self._client.request(
            "create_topics",
            request.CreateTopicsRequest(topics=(topic,), timeout=self._timeout(), validate_only=validate_only),
        )
        (result,) = response.topics
        _check(result, f"topic {name}")
        topic_id: UUID | None = result.topic_id
        return topic_id

    async def delete_topic(self, name: str) -> None:
        request: Any = delete_topics.request
        response = await self._client.request(
            "delete_topics",
            request.DeleteTopicsRequest(
                topics=(request.DeleteTopicState(name=name, topic_id=None),), timeout=self._timeout()
            ),
        )
        (result,) = response.responses
        _check(result, f"topic {name}")
        self._client.invalidate_metadata(name)

    async def create_partitions(self, name: str, count: int, *, validate_only: bool = False) -> None:
        """Increase the number of partitions to `count`."""
        request: Any = create_partitions.request
        response = await self._client.request(
            "create_partitions",
            request.CreatePartitionsRequest(
                topics=(request.CreatePartitionsTopic(name=name, count=count, assignments=None),),
                timeout=self._timeout(),
                validate_only=validate_only,
            ),
        )
        (result,) = response.results
        _check(result, f"topic {name}")
        self._client.invalidate_metadata(name)

    async def describe_configs(
        self, resource: Resource, name: str, keys: Iterable[str] | None = None
    ) -> list[ConfigEntry]:
        """The configs of a topic or a group (by name) or of a broker (by node id), ordered by name."""
        request: Any = describe_configs.request
        response = await self._client.request(
            "describe_configs",
            request.DescribeConfigsRequest(
                resources=(
                    request.DescribeConfigsResource(
                        resource_type=RESOURCE_TYPES[resource],
                        resource_name=name,
                        configuration_keys=None if keys is None else tuple(keys),
                    ),
                ),
                include_documentation=True,
            ),
            node=_node(resource, name),
        )
        (result,) = response.results
        _check(result, f"{resource} {name}")
        return sorted(
            ConfigEntry(
                entry.name,
                entry.value,
                SOURCES.get(entry.config_source, "unknown"),
                entry.read_only,
                entry.is_sensitive,
                entry.documentation,
            )
            for entry in result.configs
        )

    async def alter_configs(
        self, resource: Resource, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set these configs, or with None delete them; an empty broker name means all brokers."""
        request: Any = alter_configs.request
        response = await self._client.request(
            "incremental_alter_configs",
            request.IncrementalAlterConfigsRequest(
                resources=(
                    request.AlterConfigsResource(
                        resource_type=RESOURCE_TYPES[resource],
                        resource_name=name,
                        configs=tuple(
                            request.AlterableConfig(
                                name=key, config_operation=UNSET if value is None else SET, value=value
                            )
                            for key, value in changes.items()
                        ),
                    ),
                ),
                validate_only=validate_only,
            ),
            node=_node(resource, name),
        )
        (result,) = response.responses
        _check(result, f"{resource} {name}")

    def _timeout(self) -> timedelta:
        return timedelta(milliseconds=self._client.request_timeout_ms)


def _node(resource: Resource, name: str) -> int | None:
    """Configs of a broker are requested from that broker, all others from any."""
    return int(name) if resource == "broker" and name else None


def _check(result: Any, what: str) -> None:
    raise_for_code(result.error_code, result.error_message or what)
