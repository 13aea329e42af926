"""The rows of the matrix in docs/compatibility.md, and which of them the tests of this run have shown.

A test says by `shows` what it proves; the client it ran with is found among its parameters. So a mark in the table is a
test that passed with that client; where there is none, `ABSENCES` says why there cannot be.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

import pytest


class Feature(StrEnum):
    """What users do with a client, in the order of the table."""

    TOPICS = "create, describe and delete topics"
    PARTITIONS = "add partitions"
    SETTINGS = "describe and alter settings"
    DELETE_RECORDS = "delete records"
    TOPIC_IDS = "topic ids"
    CODECS = "produce: none, gzip, snappy, lz4, zstd"
    RECORDS = "produce: keys, headers, nulls, 900 KB, acks 0/1/all"
    IDEMPOTENT = "produce: idempotent"
    TIMESTAMPS = "produce: own timestamps"
    OFFSETS = "offsets: earliest, latest, by time"
    CONSUME = "consume by offset, all codecs, long poll"
    RESTARTS = "write through restarts of the broker"
    GROUPS = "groups: members join, leave, are killed"
    COMMITS = "groups: committed offsets with metadata"
    STATIC = "groups: static members"
    COOPERATIVE = "groups: cooperative rebalances"
    GROUPS_KILL = "groups: go on when the broker is killed"
    DESCRIBE_GROUPS = "groups, admin: list, describe, offsets"
    CHANGE_GROUPS = "groups, admin: set offsets, delete"
    TRIM_GROUPS = "groups, admin: delete offsets, remove static members"
    CONSUMER = "consumer protocol: members join, leave, are killed"
    CONSUMER_COMMITS = "consumer protocol: committed offsets with metadata"
    CONSUMER_STATIC = "consumer protocol: static members"
    CONSUMER_ASSIGNORS = "consumer protocol: choose the assignor"
    CONSUMER_PATTERNS = "consumer protocol: patterns of topics"
    CONSUMER_KILL = "consumer protocol: go on when the broker is killed"
    CONSUMER_ADMIN = "consumer protocol, admin: list, describe, set offsets, delete"
    MIGRATION = "from one protocol to the other, a process at a time"
    TRANSACTIONS = "transactions: commit, abort, several partitions"
    ABORTED = "transactions: readers see none that is open or aborted"
    FENCING = "transactions: a new producer fences the old, alive or killed"
    TIMEOUT = "transactions: aborted by their timeout"
    TXN_OFFSETS = "transactions: with committed offsets"
    TXN_MEMBERS = "transactions: offsets of a former member are rejected"
    TXN_ADMIN = "transactions, admin: list, describe, abort"


class Absence(NamedTuple):
    """Why some clients have no test of some features: the next letter of the alphabet in their cells."""

    why: str
    clients: tuple[str, ...]
    features: tuple[Feature, ...]


OF_GROUPS = tuple(feature for feature in Feature if feature.startswith(("groups", "consumer", "from one")))
OF_GROUP_ADMIN = (Feature.DESCRIBE_GROUPS, Feature.CHANGE_GROUPS, Feature.TRIM_GROUPS)
OF_CONSUMER_PROTOCOL = tuple(feature for feature in Feature if feature.startswith(("consumer", "from one")))
OF_TRANSACTIONS = tuple(feature for feature in Feature if feature.startswith("transactions"))
OF_TOPICS = (Feature.TOPICS, Feature.PARTITIONS, Feature.SETTINGS, Feature.DELETE_RECORDS, Feature.TOPIC_IDS)

ABSENCES = (
    Absence("has no such call", ("kcat",), (*OF_TOPICS, *OF_GROUP_ADMIN)),
    Absence("does not expose topic ids", ("aiokafka", "kafkajs"), (Feature.TOPIC_IDS,)),
    Absence("has no option for timestamps", ("kcat",), (Feature.TIMESTAMPS,)),
    Absence("consumes in groups only; its records are read with another client", ("kafkajs",), (Feature.CONSUME,)),
    Absence("runs for one command", ("kcat",), (Feature.RESTARTS,)),
    Absence(
        "leaves it to librdkafka, which is tested with confluent-kafka",
        ("kcat",),
        (Feature.COMMITS, Feature.STATIC, Feature.COOPERATIVE, Feature.GROUPS_KILL),
    ),
    Absence("is tested as Spark uses it, without groups", ("java-3.9",), OF_GROUPS),
    Absence("has no static members", ("kafkajs",), (Feature.STATIC,)),
    Absence("has only eager assignors", ("aiokafka", "kafkajs"), (Feature.COOPERATIVE,)),
    Absence("has no admin call that changes groups", ("aiokafka",), (Feature.CHANGE_GROUPS,)),
    Absence("has no such admin call", ("confluent-kafka", "aiokafka", "kafkajs"), (Feature.TRIM_GROUPS,)),
    Absence(
        "supports only the classic protocol",
        ("kafka-python", "aiokafka", "kcat", "kafkajs"),
        OF_CONSUMER_PROTOCOL,
    ),
    Absence(
        "leaves without its instance id, as a dynamic member does",
        ("franz-go",),
        (Feature.CONSUMER_STATIC,),
    ),
    Absence("has no transactions", ("kcat",), OF_TRANSACTIONS),
    Absence("commits in a transaction without the member id", ("aiokafka", "kafkajs"), (Feature.TXN_MEMBERS,)),
    Absence("has no admin calls on transactions", ("confluent-kafka", "aiokafka", "kafkajs"), (Feature.TXN_ADMIN,)),
)

Shown = dict[tuple[Feature, str], set[str]]  # outcomes of all tests that show a feature with a client
SHOWN = pytest.StashKey[Shown]()
CHOSEN = pytest.StashKey[bool]()  # some tests were left out
CLIENTS = ("client", "kind", "transactors")  # parameters that are a client


def shows(*features: Feature, clients: Iterable[str] = ()) -> pytest.MarkDecorator:
    """This test proves a feature with the client that it runs with, or with all of these."""
    return pytest.mark.shows(*features, clients=tuple(clients))


def record(item: pytest.Item, report: pytest.TestReport) -> None:
    """Remember how a test of features went."""
    if report.when != "call" and report.passed:
        return
    shown: Shown = item.config.stash.setdefault(SHOWN, {})
    for mark in item.iter_markers("shows"):
        for client in mark.kwargs["clients"] or _clients(item):
            for feature in mark.args:
                shown.setdefault((feature, client), set()).add(report.outcome)


def _clients(item: pytest.Item) -> list[str]:
    assert isinstance(item, pytest.Function)
    parameters: dict[str, Any] = item.callspec.params
    return [parameters[name].name for name in CLIENTS if name in parameters]
