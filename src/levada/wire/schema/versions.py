"""Declares the APIs and how one shape per API carries every version.

A handler sees one class per message, its *shape*: kio's class of the newest version. Fields that an old version
lacks get Kafka's defaults. A field that only old versions have is declared in `MOVED_FIELDS` with its path in the
shape: `groups[0].topics` is the topics of the only group, `topics[].name` the name of every topic. In six APIs the
newest version dropped fields that handlers still need, mostly topic names that topic ids replaced: their shapes are
subclasses of kio's classes in `levada.wire.schema.shapes.<api>`. There a request has the name or the topic id,
whichever its version carries (the other is "" or None); a response gives both.

A test walks all APIs and versions and fails for a field that has neither a place in the shape nor a rule here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Api(NamedTuple):
    """An API: its key, kio's name for it, its first and last version and its first flexible version."""

    key: int
    name: str
    first: int
    last: int
    flexible: int  # NEVER if no version is flexible


NEVER = 32_767

APIS: dict[int, Api] = {
    api.key: api
    for api in (
        Api(0, "produce", 3, 13, 9),
        Api(1, "fetch", 4, 18, 12),
        Api(2, "list_offsets", 1, 11, 6),
        Api(3, "metadata", 0, 13, 9),
        Api(8, "offset_commit", 2, 10, 8),
        Api(9, "offset_fetch", 1, 10, 6),
        Api(10, "find_coordinator", 0, 6, 3),
        Api(11, "join_group", 0, 9, 6),
        Api(12, "heartbeat", 0, 4, 4),
        Api(13, "leave_group", 0, 5, 4),
        Api(14, "sync_group", 0, 5, 4),
        Api(15, "describe_groups", 0, 6, 5),
        Api(16, "list_groups", 0, 5, 3),
        Api(17, "sasl_handshake", 0, 1, NEVER),
        Api(18, "api_versions", 0, 4, 3),
        Api(19, "create_topics", 2, 7, 5),
        Api(20, "delete_topics", 1, 6, 4),
        Api(21, "delete_records", 0, 2, 2),
        Api(22, "init_producer_id", 0, 6, 2),
        Api(23, "offset_for_leader_epoch", 2, 4, 4),
        Api(24, "add_partitions_to_txn", 0, 5, 3),
        Api(25, "add_offsets_to_txn", 0, 4, 3),
        Api(26, "end_txn", 0, 5, 3),
        Api(27, "write_txn_markers", 1, 2, 1),
        Api(28, "txn_offset_commit", 0, 5, 3),
        Api(29, "describe_acls", 1, 3, 2),
        Api(30, "create_acls", 1, 3, 2),
        Api(31, "delete_acls", 1, 3, 2),
        Api(32, "describe_configs", 1, 4, 4),
        Api(33, "alter_configs", 0, 2, 2),
        Api(34, "alter_replica_log_dirs", 1, 2, 2),
        Api(35, "describe_log_dirs", 1, 5, 2),
        Api(36, "sasl_authenticate", 0, 2, 2),
        Api(37, "create_partitions", 0, 3, 2),
        Api(38, "create_delegation_token", 1, 3, 2),
        Api(39, "renew_delegation_token", 1, 2, 2),
        Api(40, "expire_delegation_token", 1, 2, 2),
        Api(41, "describe_delegation_token", 1, 3, 2),
        Api(42, "delete_groups", 0, 2, 2),
        Api(43, "elect_leaders", 0, 2, 2),
        Api(44, "incremental_alter_configs", 0, 1, 1),
        Api(45, "alter_partition_reassignments", 0, 1, 0),
        Api(46, "list_partition_reassignments", 0, 0, 0),
        Api(47, "offset_delete", 0, 0, NEVER),
        Api(48, "describe_client_quotas", 0, 1, 1),
        Api(49, "alter_client_quotas", 0, 1, 1),
        Api(50, "describe_user_scram_credentials", 0, 0, 0),
        Api(51, "alter_user_scram_credentials", 0, 0, 0),
        Api(52, "vote", 0, 2, 0),
        Api(53, "begin_quorum_epoch", 0, 1, 1),
        Api(54, "end_quorum_epoch", 0, 1, 1),
        Api(55, "describe_quorum", 0, 2, 0),
        Api(56, "alter_partition", 2, 3, 2),
        Api(57, "update_features", 0, 2, 0),
        Api(58, "envelope", 0, 0, 0),
        Api(59, "fetch_snapshot", 0, 1, 0),
        Api(60, "describe_cluster", 0, 2, 0),
        Api(61, "describe_producers", 0, 0, 0),
        Api(62, "broker_registration", 0, 4, 0),
        Api(63, "broker_heartbeat", 0, 2, 0),
        Api(64, "unregister_broker", 0, 0, 0),
        Api(65, "describe_transactions", 0, 0, 0),
        Api(66, "list_transactions", 0, 2, 0),
        Api(67, "allocate_producer_ids", 0, 0, 0),
        Api(68, "consumer_group_heartbeat", 0, 1, 0),
        Api(69, "consumer_group_describe", 0, 1, 0),
        Api(70, "controller_registration", 0, 0, 0),
        Api(71, "get_telemetry_subscriptions", 0, 0, 0),
        Api(72, "push_telemetry", 0, 0, 0),
        Api(73, "assign_replicas_to_dirs", 0, 0, 0),
        Api(74, "list_config_resources", 0, 1, 0),
        Api(75, "describe_topic_partitions", 0, 0, 0),
        Api(76, "share_group_heartbeat", 1, 1, 1),
        Api(77, "share_group_describe", 1, 1, 1),
        Api(78, "share_fetch", 1, 2, 1),
        Api(79, "share_acknowledge", 1, 2, 1),
        Api(80, "add_raft_voter", 0, 1, 0),
        Api(81, "remove_raft_voter", 0, 0, 0),
        Api(82, "update_raft_voter", 0, 0, 0),
        Api(83, "initialize_share_group_state", 0, 0, 0),
        Api(84, "read_share_group_state", 0, 0, 0),
        Api(85, "write_share_group_state", 0, 1, 0),
        Api(86, "delete_share_group_state", 0, 0, 0),
        Api(87, "read_share_group_state_summary", 0, 1, 0),
        Api(88, "streams_group_heartbeat", 0, 0, 0),
        Api(89, "streams_group_describe", 0, 0, 0),
        Api(90, "describe_share_group_offsets", 0, 1, 0),
        Api(91, "alter_share_group_offsets", 0, 0, 0),
        Api(92, "delete_share_group_offsets", 0, 0, 0),
    )
}

SHAPES = frozenset({"produce", "fetch", "metadata", "offset_commit", "offset_fetch", "update_features"})


class Moved(NamedTuple):
    """The path in the shape of a field that only old versions have, and how its value is converted, if it is."""

    path: str
    from_shape: Callable[[Any], Any] | None = None
    to_shape: Callable[[Any], Any] | None = None


UPGRADE, SAFE_DOWNGRADE = 1, 2  # FeatureUpdate's upgrade types

# message path -> field of old versions -> its place in the shape
MOVED_FIELDS: dict[str, dict[str, Moved]] = {
    # KIP-903: replicas send their epoch too.
    "fetch.request": {"replica_id": Moved("replica_state.replica_id")},
    # KIP-709: many groups in one request.
    "offset_fetch.request": {
        "group_id": Moved("groups[0].group_id"),
        "topics": Moved("groups[0].topics"),
    },
    "offset_fetch.response": {
        "error_code": Moved("groups[0].error_code"),
        "topics": Moved("groups[0].topics"),
    },
    # KIP-699: many coordinators in one request.
    "find_coordinator.request": {"key": Moved("coordinator_keys[0]")},
    "find_coordinator.response": {
        name: Moved(f"coordinators[0].{name}") for name in ("error_code", "error_message", "node_id", "host", "port")
    },
    # KIP-345: many members in one request.
    "leave_group.request": {"member_id": Moved("members[0].member_id")},
    # KIP-516: topics by name or by id.
    "delete_topics.request": {"topic_names": Moved("topics[].name")},
    # KIP-890: many transactions in one request.
    "add_partitions_to_txn.request": {
        f"v3_and_below_{name}": Moved(f"transactions[0].{name}")
        for name in ("transactional_id", "producer_id", "producer_epoch", "topics")
    },
    "add_partitions_to_txn.response": {
        "results_by_topic_v3_and_below": Moved("results_by_transaction[0].topic_results")
    },
    # KIP-853: candidates have directory ids.
    "end_quorum_epoch.request.topics.partitions": {
        "preferred_successors": Moved("preferred_candidates[].candidate_id")
    },
    # KIP-903: replicas in the ISR have epochs.
    "alter_partition.request.topics.partitions": {"new_isr": Moved("new_isr_with_epochs[].broker_id")},
    # KIP-584, KIP-778: the flag became an upgrade type.
    "update_features.request.feature_updates": {
        "allow_downgrade": Moved(
            "upgrade_type",
            from_shape=lambda upgrade_type: upgrade_type != UPGRADE,
            to_shape=lambda allow_downgrade: SAFE_DOWNGRADE if allow_downgrade else UPGRADE,
        )
    },
}


def _leave_group_error(response: Any) -> int:
    """The error code of versions without members: that of the response or else of its only member."""
    if response.error_code or not response.members:
        return int(response.error_code)
    return int(response.members[0].error_code)


# message path -> field -> (last version, function from the whole shape to the field's value up to that version)
DERIVED_FIELDS: dict[str, dict[str, tuple[int, Callable[[Any], Any]]]] = {
    "leave_group.response": {"error_code": (2, _leave_group_error)},
    # The protocol name was not nullable up to v6.
    "join_group.response": {"protocol_name": (6, lambda response: response.protocol_name or "")},
}

# message path -> field that old versions lack -> the field whose value it takes, instead of a default.
# JoinGroup v0 has one timeout for sessions and rebalances.
FALLBACK_FIELDS: dict[str, dict[str, str]] = {"join_group.request": {"rebalance_timeout": "session_timeout"}}

# Fields that were not nullable at first and in which empty meant what null means now: in Metadata v0 an empty list
# means all topics.
EMPTY_MEANT_NULL: dict[str, frozenset[str]] = {"metadata.request": frozenset({"topics"})}
