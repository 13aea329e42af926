"""What the metadata says about the partitions of a stopped broker, and what is wrong with it."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from levada.cli.errors import CommandError
from levada.config.topic import TOPIC_DEFAULTS, TopicConfig
from levada.core.cluster.image import (
    CLUSTER_DEFAULT,
    UNASSIGNED,
    BrokerConfigsChanged,
    Change,
    ClusterFormed,
    TopicChanged,
)
from levada.core.cluster.metadata_records import decode
from levada.core.cluster.topic_names import is_internal
from levada.errors import KafkaError
from levada.metadata.sqlite import read_closed_store
from levada.metadata.store import StoreError
from levada.model import TopicPartition
from levada.storage.log_check import NOT_POSSIBLE, Assignment, Finding, Topics, no_metadata
from levada.storage.log_dir import LogDir

METADATA_FILE: Final = "levada-metadata.db"


class StoredMetadata(NamedTuple):
    """The metadata of one broker."""

    findings: list[Finding]
    topics: Topics  # the partitions that it has in log dirs
    known: Mapping[TopicPartition, UUID] | None  # the topic ids of all its partitions; None: there is no metadata


def read_metadata(log_dirs: Sequence[LogDir]) -> StoredMetadata:
    """Read the metadata in the first data directory that has some. Raises CommandError."""
    paths = {os.path.join(log_dir.path, METADATA_FILE): log_dir for log_dir in log_dirs}
    found = [path for path in paths if os.path.exists(path)]
    findings = []
    if found[:1] != list(paths)[:1] and any(log_dir.partitions() for log_dir in log_dirs):
        findings.append(no_metadata(next(iter(paths)), found))  # a broker with partitions does not start then
    if not found:
        return StoredMetadata(findings, {}, None)
    path, owner = found[0], paths[found[0]].owner
    try:
        changes = [decode(record.key, record.value) for record in read_closed_store(path)]
    except (StoreError, ValueError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from error
    findings += _contradictions(path, changes, log_dirs)
    default = _default_cleanup_policy(changes, owner)
    topics: dict[TopicPartition, Assignment] = {}
    known: dict[TopicPartition, UUID] = {}
    for topic in [change.topic for change in changes if isinstance(change, TopicChanged)]:
        compacts = is_internal(topic.name) or "compact" in topic.configs.get("cleanup.policy", default)
        for index, state in enumerate(topic.partitions):
            if str(state.leader) == owner:
                name, assigned = TopicPartition(topic.name, index), state.directory_of(state.leader)
                known[name] = topic.id
                if assigned != UNASSIGNED:
                    topics[name] = Assignment(topic.id, assigned, compacts)
    return StoredMetadata(findings, topics, known)


def _contradictions(path: str, changes: Sequence[Change | None], log_dirs: Sequence[LogDir]) -> Iterator[Finding]:
    """Yield why a broker refuses to start, or to open the logs of a topic."""
    cluster_id = next((change.cluster_id for change in changes if isinstance(change, ClusterFormed)), "none")
    for log_dir in log_dirs:
        if log_dir.cluster_id not in (None, cluster_id):
            problem = f"it has the cluster.id {cluster_id}, but {log_dir.path} has {log_dir.cluster_id}"
            yield _finding(path, f"{problem}: the broker does not start", "restore the one that is wrong")
    for change in changes:
        if isinstance(change, TopicChanged):
            try:
                TopicConfig.build(TOPIC_DEFAULTS, change.topic.configs)
            except KafkaError as error:
                name = change.topic.name
                problem = f"topic {name!r} has an invalid setting: {error.detail}; its partitions are offline"
                yield _finding(path, problem, f"start the broker, and use: levada topic alter {name} --unset")


def _finding(path: str, problem: str, remedy: str) -> Finding:
    return Finding("-", path, None, None, problem, "nothing", f"{NOT_POSSIBLE}: {remedy}")


def _default_cleanup_policy(changes: Sequence[Change | None], node_id: str | None) -> str:
    """The cleanup.policy of topics without their own, as far as the metadata has it: the dynamic broker settings.

    A setting of the broker's start is not in there; the cleaner's checkpoint has the logs that were compacted by it.
    """
    stored = {change.broker: change.configs for change in changes if isinstance(change, BrokerConfigsChanged)}
    policies = [stored.get(name, {}).get("log.cleanup.policy") for name in (node_id or "", CLUSTER_DEFAULT)]
    return next(filter(None, policies), "")
