"""Handlers of DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.

A value comes from the first of its sources that sets it: the topic or group, this broker, all brokers, the static
configuration, the default. DescribeConfigs returns all of them as synonyms, in that order. Settings come in
the order of Kafka, which is that of a Java HashMap.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

from levada.api.registry import handles
from levada.api.request import UNTHROTTLED, RequestContext
from levada.api.slices import map_in_slices
from levada.broker.broker import Broker
from levada.broker.coordinator.runtime import java_hash
from levada.config.broker import BROKER_SETTINGS
from levada.config.groups import GROUP_SETTINGS, GroupConfig
from levada.config.settings import Setting
from levada.config.topic import TOPIC_SETTINGS, TopicConfig
from levada.config.unused import UNUSED_SETTINGS
from levada.core.cluster import topic_names
from levada.core.cluster.config_changes import (
    SETTINGS,
    AlterConfigs,
    ConfigChange,
    IncrementalAlterConfigs,
    Operation,
    ResourceType,
)
from levada.core.cluster.controller import find_topic
from levada.core.cluster.image import CLUSTER_DEFAULT, TopicImage
from levada.errors import ErrorCode, KafkaError
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.alter_configs.v2 as alter_configs_v2
    import kio.schema.describe_configs.v4 as describe_configs_v4
    import kio.schema.incremental_alter_configs.v1 as incremental_alter_configs_v1
    import kio.schema.list_config_resources.v1 as list_config_resources_v1

RESOURCES_PER_ITERATION = 25  # described with all their settings, before the handler yields to the event loop
CLIENT_METRICS = 16
LISTED_TYPES = (ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP)
TABLE_SIZES = {ResourceType.TOPIC: 64, ResourceType.BROKER: 512, ResourceType.GROUP: 32}  # of Kafka's hash maps
# Topic settings that come before others of the same bucket: Kafka defined them first.
DEFINED_FIRST = (
    "segment.bytes",
    "flush.messages",
    "retention.bytes",
    "retention.ms",
    "index.interval.bytes",
    "max.compaction.lag.ms",
)
KNOWN_TYPES = frozenset((2, 4, 8, 16, 32))  # topics, brokers, broker loggers, client metrics, groups


class Source(IntEnum):
    """Kafka's ConfigSource codes."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    GROUP_CONFIG = 8


class Synonym(NamedTuple):
    """One source of a value: the setting's name there, and the text."""

    name: str
    text: str | None
    source: Source


class Entry(NamedTuple):
    """A setting as DescribeConfigs returns it; the first synonym is the effective one."""

    setting: Setting
    text: str | None
    read_only: bool
    synonyms: list[Synonym]

    @property
    def source(self) -> Source:
        return self.synonyms[0].source if self.synonyms else Source.DEFAULT_CONFIG


@cache
def _defaults() -> Mapping[str, str]:
    texts = {item.name: item.render(item.default) for item in BROKER_SETTINGS.values()}
    return {name: text for name, text in texts.items() if text is not None}


def _synonyms(broker: Broker, *names: str) -> list[Synonym]:
    """The sources of a broker's setting, or of several synonymous ones, the effective one first."""
    dynamic = broker.image.broker_configs
    layers: tuple[tuple[Source, Mapping[str, str]], ...] = (
        (Source.DYNAMIC_BROKER_CONFIG, dynamic.get(str(broker.node_id), {})),
        (Source.DYNAMIC_DEFAULT_BROKER_CONFIG, dynamic.get(CLUSTER_DEFAULT, {})),
        (Source.STATIC_BROKER_CONFIG, broker.config.static),
        (Source.DEFAULT_CONFIG, _defaults()),
    )
    found = [Synonym(name, layer[name], source) for source, layer in layers for name in names if name in layer]
    # As in Kafka, sources before the first of the first name are left out, such as a static log.retention.hours.
    while found and found[0].name != names[0]:
        del found[0]
    return found


def inherited_entries(broker: Broker) -> list[Entry]:
    """All settings of a topic without configs of its own."""
    return _inherited(broker, TOPIC_SETTINGS, TopicConfig.build(broker.current_config().topic_defaults, {}))


def _inherited(broker: Broker, settings: Mapping[str, Setting], config: object) -> list[Entry]:
    return [
        Entry(
            setting,
            setting.render(setting.value_of(config)),
            False,
            _synonyms(broker, *(synonym.name for synonym in setting.synonyms)) if setting.synonyms else [],
        )
        for setting in settings.values()
    ]


def topic_entries(topic: TopicImage, inherited: list[Entry]) -> list[Entry]:
    """All settings of a topic: its own configs override the inherited ones."""
    return _with_own(topic.configs, Source.TOPIC_CONFIG, inherited)


def _group_entries(broker: Broker, group: str) -> list[Entry]:
    """All settings of a group, whether it exists or not."""
    if not group:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
    inherited = _inherited(broker, GROUP_SETTINGS, GroupConfig.build(broker.current_config().groups, {}))
    return _with_own(broker.image.group_configs.get(group, {}), Source.GROUP_CONFIG, inherited)


def _with_own(configs: Mapping[str, str], source: Source, inherited: list[Entry]) -> list[Entry]:
    entries = []
    for entry in inherited:
        name = entry.setting.name
        own = configs.get(name)
        if own is None:
            entries.append(entry)
        else:
            entries.append(entry._replace(text=own, synonyms=[Synonym(name, own, source), *entry.synonyms]))
    return entries


def broker_entries(broker: Broker) -> list[Entry]:
    """All settings of this broker, and the unused ones that are set."""
    config, stored = broker.current_config(), broker.image.broker_configs
    changed = stored.get(CLUSTER_DEFAULT, {}).keys() | stored.get(str(broker.node_id), {}).keys()
    unused = {setting: _synonyms(broker, name) for name, setting in UNUSED_SETTINGS.items() if name in changed}
    return [
        Entry(
            setting,
            setting.render(setting.value_of(config)),
            not setting.dynamic,
            _synonyms(broker, setting.name),
        )
        for setting in BROKER_SETTINGS.values()
    ] + [Entry(setting, synonyms[0].text, False, synonyms) for setting, synonyms in unused.items()]


def _cluster_entries(broker: Broker) -> list[Entry]:
    """The dynamic settings of all brokers."""
    return [
        Entry(
            SETTINGS[ResourceType.BROKER][name],
            text,
            False,
            [Synonym(name, text, Source.DYNAMIC_DEFAULT_BROKER_CONFIG)],
        )
        for name, text in broker.image.broker_configs.get(CLUSTER_DEFAULT, {}).items()
    ]


@handles("describe_configs", versions=range(1, 5))
def describe_configs(
    context: RequestContext, request: "describe_configs_v4.DescribeConfigsRequest"
) -> "describe_configs_v4.DescribeConfigsResponse | Awaitable[describe_configs_v4.DescribeConfigsResponse]":
    """Return settings with their sources. v3 adds types and documentation (KIP-569)."""
    # A repeated resource is returned once, which bounds the response by the number of resources.
    resources = list({(item.resource_type, item.resource_name): item for item in request.resources}.values())
    if len(resources) > RESOURCES_PER_ITERATION:
        return _describe_in_slices(context, request, resources)
    inherited = inherited_entries(context.broker)
    return _described(_describe(context, request, resource, inherited) for resource in resources)


async def _describe_in_slices(
    context: RequestContext, request: "describe_configs_v4.DescribeConfigsRequest", resources: list[Any]
) -> "describe_configs_v4.DescribeConfigsResponse":
    inherited = inherited_entries(context.broker)

    def describe(resource: Any) -> Any:
        return _describe(context, request, resource, inherited)

    return _described(await map_in_slices(context.broker, describe, resources, RESOURCES_PER_ITERATION))


def _described(results: Iterable[Any]) -> "describe_configs_v4.DescribeConfigsResponse":
    response = describe_configs_v4.response
    return response.DescribeConfigsResponse(throttle_time=UNTHROTTLED, results=tuple(results))


def _describe(
    context: RequestContext,
    request: "describe_configs_v4.DescribeConfigsRequest",
    resource: Any,
    inherited: list[Entry],
) -> Any:
    error, entries = None, []
    try:
        found = _entries(context.broker, resource.resource_type, resource.resource_name, inherited)
        entries = _in_kafkas_order(resource.resource_type, found)
    except KafkaError as raised:
        error = raised.without_traceback()
    wanted = resource.configuration_keys
    return describe_configs_v4.response.DescribeConfigsResult(
        error_code=error.code if error else ErrorCode.NONE,
        error_message=error.detail if error else "",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(_config(entry, request) for entry in entries if not wanted or entry.setting.name in wanted),
    )


def _in_kafkas_order(type_: int, entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: _position(type_, entry.setting.name))


@cache
def _position(type_: int, name: str) -> tuple[int, int]:
    """The position of a setting in Kafka's responses: the bucket of its hash, then its place in the bucket."""
    number = java_hash(name) & 0xFFFF_FFFF
    place = DEFINED_FIRST.index(name) if name in DEFINED_FIRST else len(DEFINED_FIRST)
    return (number ^ number >> 16) % TABLE_SIZES[ResourceType(type_)], place


def _entries(broker: Broker, type_: int, name: str, inherited: list[Entry]) -> list[Entry]:
    if type_ == ResourceType.TOPIC:
        topic_names.check(name)
        return topic_entries(find_topic(broker.image, name), inherited)
    if type_ == ResourceType.GROUP:
        return _group_entries(broker, name)
    if type_ != ResourceType.BROKER:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Settings of resource type {type_} are not available.")
    if name == CLUSTER_DEFAULT:
        return _cluster_entries(broker)
    if not name.isdecimal():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    if int(name) != broker.node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {broker.node_id} or empty string, but received {name}",
        )
    return broker_entries(broker)


def _config(entry: Entry, request: "describe_configs_v4.DescribeConfigsRequest") -> Any:
    response = describe_configs_v4.response
    setting = entry.setting
    return response.DescribeConfigsResourceResult(
        name=setting.name,
        value=None if setting.sensitive else entry.text,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=setting.sensitive,
        synonyms=tuple(
            response.DescribeConfigsSynonym(
                name=synonym.name, value=None if setting.sensitive else synonym.text, source=synonym.source
            )
            for synonym in (entry.synonyms if request.include_synonyms else ())
        ),
        config_type=setting.type,
        documentation=setting.doc if request.include_documentation else None,
    )


@handles("alter_configs", versions=range(3))
async def alter_configs(
    context: RequestContext, request: "alter_configs_v2.AlterConfigsRequest"
) -> "alter_configs_v2.AlterConfigsResponse":
    """Replace all configs of a resource; settings that are not given revert to their defaults."""

    def command(type_: ResourceType, resource: Any) -> AlterConfigs:
        for item in resource.configs:
            if item.value is None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {item.name}")
        configs = {item.name: item.value for item in resource.configs}
        if len(configs) < len(resource.configs):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        return AlterConfigs(type_, resource.resource_name, configs, context.broker.current_config().groups)

    response = alter_configs_v2.response
    responses = await _alter(context, request, command, response.AlterConfigsResourceResponse)
    return response.AlterConfigsResponse(throttle_time=UNTHROTTLED, responses=responses)


@handles("incremental_alter_configs", versions=range(2))
async def incremental_alter_configs(
    context: RequestContext, request: "incremental_alter_configs_v1.IncrementalAlterConfigsRequest"
) -> "incremental_alter_configs_v1.IncrementalAlterConfigsResponse":
    """Change the given configs of a resource and keep the others (KIP-339)."""

    def command(type_: ResourceType, resource: Any) -> IncrementalAlterConfigs:
        try:
            alterations = tuple(
                ConfigChange(item.name, Operation(item.config_operation), item.value) for item in resource.configs
            )
        except ValueError:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Unknown config operation.") from None
        return IncrementalAlterConfigs(
            type_, resource.resource_name, alterations, context.broker.current_config().groups
        )

    response = incremental_alter_configs_v1.response
    responses = await _alter(context, request, command, response.AlterConfigsResourceResponse)
    return response.IncrementalAlterConfigsResponse(throttle_time=UNTHROTTLED, responses=responses)


async def _alter(
    context: RequestContext,
    request: Any,
    command_of: Callable[[ResourceType, Any], Any],
    result_class: Callable[..., Any],
) -> tuple[Any, ...]:
    """Commit all changes at once; return a result for each resource."""
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    errors: dict[int, KafkaError | None] = {}
    commands: dict[int, AlterConfigs | IncrementalAlterConfigs] = {}
    for position, resource in enumerate(request.resources):
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            commands[position] = command_of(_resource_type(context.broker, resource), resource)
        except KafkaError as raised:
            errors[position] = raised.without_traceback()
    decision = await context.broker.controller.submit_all(
        list(commands.values()), validate_only=request.validate_only, requester=context.requester
    )
    errors.update(zip(commands, decision.errors, strict=True))
    responses = []
    for position, resource in enumerate(request.resources):
        error = errors[position]
        responses.append(
            result_class(
                error_code=error.code if error else ErrorCode.NONE,
                error_message=error.detail if error else None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return tuple(responses)


def _resource_type(broker: Broker, resource: Any) -> ResourceType:
    name = resource.resource_name
    if resource.resource_type in (ResourceType.TOPIC, ResourceType.GROUP):
        type_ = ResourceType(resource.resource_type)
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Default {type_.name.lower()} resources are not allowed.")
        return type_
    if resource.resource_type != ResourceType.BROKER:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")
    if name != CLUSTER_DEFAULT and not name.isdecimal():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if name != CLUSTER_DEFAULT and name not in map(str, broker.image.registered):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {broker.node_id}, but received {name}",
        )
    return ResourceType.BROKER


@handles("list_config_resources", versions=range(2))
def list_config_resources(
    context: RequestContext, request: "list_config_resources_v1.ListConfigResourcesRequest"
) -> "list_config_resources_v1.ListConfigResourcesResponse":
    """Return the resources that have configs. v0 lists client metrics, of which there are none; v1 all (KIP-1142)."""
    response = list_config_resources_v1.response
    types = request.resource_types or ((CLIENT_METRICS,) if context.api_version == 0 else LISTED_TYPES)
    if not KNOWN_TYPES.issuperset(types):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unknown resource types among {types}")
    image = context.broker.image
    names: dict[int, list[str]] = {
        ResourceType.BROKER: [str(broker_id) for broker_id in image.registered],
        ResourceType.TOPIC: list(image.topics),
        ResourceType.GROUP: list(image.group_configs),
    }
    return response.ListConfigResourcesResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        config_resources=tuple(
            response.ConfigResource(resource_name=name, resource_type=type_)
            for type_ in dict.fromkeys(types)
            for name in names.get(type_, ())
        ),
    )
