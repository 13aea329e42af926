"""Kafka's own tools on groups: kafka-consumer-groups, and the formatters of __consumer_offsets."""

import json
import re
import time
import uuid
from typing import Any

import pytest
from confluent_kafka import Consumer
from tests.compat.tools import run_tool
from tests.support import raw

TOOLS = "org.apache.kafka.tools.consumer"
GROUPS = f"{TOOLS}.group.ConsumerGroupCommand"
pytestmark = pytest.mark.broker(group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=3)


def tool(broker: str, main: str, *arguments: str) -> str:
    return run_tool(main, *arguments, "--bootstrap-server", broker)


def rows(printed: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    lines = [re.split(r"\s+", line.strip()) for line in printed.splitlines() if line.strip()]
    return [line for line in lines if line[0] != "GROUP"]


def journal(broker: str, formatter: str) -> list[dict[str, Any]]:
    """The records of __consumer_offsets as a formatter of Kafka prints them."""
    what = ("--topic", "__consumer_offsets", "--from-beginning", "--formatter", f"{TOOLS}.{formatter}")
    printed = ""
    for timeout_ms in ("3000", "30000"):  # also for the first record, which a slow machine may have later
        printed = printed or tool(broker, f"{TOOLS}.ConsoleConsumer", *what, "--timeout-ms", timeout_ms)
    decoder, found, position = json.JSONDecoder(), [], 0
    while (position := printed.find("{", position)) >= 0:
        record, position = decoder.raw_decode(printed, position)
        found.append(record)
    return found


def test_the_life_of_a_group_in_kafkas_tools(broker: str, wire: raw.Connection, name: str) -> None:
    group = f"group-{uuid.uuid4().hex[:8]}"
    new = {"name": name, "num_partitions": 2, "replication_factor": 1}
    wire.call("create_topics", 5, {"topics": [new], "timeout": 10_000})
    raw.wait_until_served(wire, name, 1)
    written = raw.batch(*[b"value"] * 10, timestamp=int(time.time() * 1000))  # retention takes old ones
    assert raw.produce(wire, name, written).error_code == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": group,
            "client.id": "tested",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([name])
    read = [consumer.poll(20) for _ in range(4)]
    assert all(message is not None and message.error() is None for message in read)
    consumer.commit(asynchronous=False)

    assert [group, "Stable"] in rows(tool(broker, GROUPS, "--list", "--state"))
    (member,) = rows(tool(broker, GROUPS, "--describe", "--group", group, "--members"))
    assert member[1].startswith("tested-")
    assert member[2:5] == ["/127.0.0.1", "tested", "2"]
    offsets = rows(tool(broker, GROUPS, "--describe", "--group", group))
    assert sorted(row[1:6] for row in offsets) == [[name, "0", "4", "10", "6"], [name, "1", "-", "0", "-"]]
    consumer.close()

    place = ("--group", group, "--topic", f"{name}:0")
    assert rows(tool(broker, GROUPS, "--reset-offsets", *place, "--shift-by", "-3", "--execute")) == [
        [group, name, "0", "1"]
    ]
    (after,) = rows(tool(broker, GROUPS, "--describe", "--group", group, "--offsets"))
    assert after[1:6] == [name, "0", "1", "10", "9"]

    committed = [one for one in journal(broker, "OffsetsMessageFormatter") if one["key"]["data"]["group"] == group]
    assert [one["value"]["data"]["offset"] for one in committed] == [4, 1]
    assert committed[0]["key"] == {"type": 1, "data": {"group": group, "topic": name, "partition": 0}}
    saved = [one for one in journal(broker, "GroupMetadataMessageFormatter") if one["key"]["data"]["group"] == group]
    by_generation = {one["value"]["data"]["generation"]: one["value"]["data"] for one in saved}
    stable, empty = by_generation[1], by_generation[2]
    assert (stable["protocolType"], stable["protocol"]) == ("consumer", "range")
    assert [one["clientId"] for one in stable["members"]] == ["tested"]
    assert empty["members"] == []

    assert "successful" in tool(broker, GROUPS, "--delete", "--group", group)
    assert group not in tool(broker, GROUPS, "--list")
