"""Settings have Kafka's names, types, defaults and bounds: compared with what Kafka 4.3 itself declares."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.downloads import Unavailable, must_be_had
from tests.support.kafka_jars import java

from levada.config.broker import BROKER_NAMES, BROKER_SETTINGS
from levada.config.properties import IGNORED
from levada.config.settings import ConfigType, Setting
from levada.config.topic import TOPIC_SETTINGS

PROGRAM = Path(__file__).parent / "java" / "Settings.java"
NOT_OF_KAFKA_4 = ("levada.", "zookeeper.")  # Kafka 3.9 was the last one with ZooKeeper

# What differs on purpose. One node must be able to make its internal topics, and listens to itself alone.
OTHER_DEFAULTS = {
    "node.id",
    "listeners",
    "controller.listener.names",
    "log.dirs",
    "socket.listen.backlog.size",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.two.phase.commit.enable",
}
OTHER_TYPES = {"listener.security.protocol.map"}  # a list of pairs, which Kafka keeps as one text
SMALLER_MINIMUM = {"segment.bytes", "log.segment.bytes"}  # tests want small segments
UNKNOWN_TOPIC_SETTINGS = {"internal.segment.bytes"}
REFUSED = {"authorizer.class.name"}  # where a warning is not enough


class Declared(NamedTuple):
    """A setting as Kafka declares it."""

    type: str
    default: str
    bounds: str


@pytest.fixture(scope="module")
def kafkas() -> Mapping[tuple[str, str], Declared]:
    try:
        command = java(str(PROGRAM))
    except Unavailable as error:
        must_be_had("Kafka's settings", error)
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    return {(owner, name): Declared(*rest) for owner, name, *rest in rows}


@pytest.mark.parametrize(("owner", "settings"), [("broker", BROKER_SETTINGS), ("topic", TOPIC_SETTINGS)])
def test_what_is_declared_is_as_in_kafka(
    kafkas: Mapping[tuple[str, str], Declared], owner: str, settings: Mapping[str, Setting]
) -> None:
    for name, ours in settings.items():
        if name.startswith(NOT_OF_KAFKA_4):
            continue
        theirs = kafkas[owner, name]
        assert ours.type.name == theirs.type or name in OTHER_TYPES, name
        assert same(ours, theirs.default) or name in OTHER_DEFAULTS, (name, ours.default, theirs.default)
        minimum = re.match(r"\[(-?[\d.]+),", theirs.bounds)
        if minimum and name not in SMALLER_MINIMUM:
            assert ours.minimum == float(minimum[1]), (name, ours.minimum, theirs.bounds)


def same(ours: Setting, default: str) -> bool:
    if ours.type is ConfigType.DOUBLE:
        return ours.default == float(default)
    return str(ours.render(ours.default)) == default.replace("null", "None")


def test_every_topic_setting_is_known(kafkas: Mapping[tuple[str, str], Declared]) -> None:
    names = {name for owner, name in kafkas if owner == "topic"}
    assert names - TOPIC_SETTINGS.keys() == UNKNOWN_TOPIC_SETTINGS


def test_settings_without_effect_have_a_reason(kafkas: Mapping[tuple[str, str], Declared]) -> None:
    """Every setting of Kafka's broker is supported, or listed with the reason why not."""
    names = {name for owner, name in kafkas if owner == "broker"} - BROKER_NAMES.keys()
    assert {name for name in names if not name.startswith(tuple(IGNORED))} == REFUSED


def test_no_setting_is_both_supported_and_ignored() -> None:
    exact = IGNORED.keys() & BROKER_NAMES.keys()
    assert exact == set()
