"""Validates topic names by Kafka's rules: a name is part of a directory and of metrics."""

import re
from collections.abc import Sequence
from typing import Final

from levada.errors import ErrorCode, KafkaError

LENGTH_MAX: Final = 249
INTERNAL: Final = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))
OWN_PREFIX: Final = "__levada_"  # of topics in which Levada's tools keep their state
KAFKA_METADATA: Final = "__cluster_metadata"  # Kafka's topic of cluster metadata
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION if the name is invalid."""
    if not name:
        raise _invalid("the empty string is not allowed")
    if name in (".", ".."):
        raise _invalid(f"'{name}' is not allowed")
    if len(name) > LENGTH_MAX:
        raise _invalid(f"the length of '{name[:LENGTH_MAX]}' is longer than the max allowed length {LENGTH_MAX}")
    if not _LEGAL.fullmatch(name):
        raise _invalid(f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'")


def is_internal(name: str) -> bool:
    """Whether it is an internal topic, which holds state of brokers."""
    return name in INTERNAL


def is_hidden(name: str) -> bool:
    """Whether clients see it as internal and leave it out of patterns: also topics of Levada's tools.

    For the broker those are ordinary topics, which any client may create, write to and delete.
    """
    return is_internal(name) or name.startswith(OWN_PREFIX)


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {why}")


def check_deletable(topic: str, cleanup_policy: Sequence[str]) -> None:
    """DeleteRecords is not for internal topics, nor for topics that are only compacted."""
    if is_internal(topic):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}")
    if "delete" not in cleanup_policy:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"the cleanup.policy of {topic} does not allow records to be deleted"
        )
