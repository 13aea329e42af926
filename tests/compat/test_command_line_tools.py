"""Kafka's own command line tools, run from its jars as an operator runs them.

Each run is a Java process of a second or two, so one test walks through what a user does with one topic.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.compat.drivers.base import Driver, Record
from tests.compat.tools import run_tool

Tool = Callable[..., str]

TOOLS = "org.apache.kafka.tools"
WAIT_S = 60


@pytest.fixture
def tool(broker: str) -> Tool:
    """Run a tool against the broker; its output. `fails=True` expects that the tool says no, `None` does not ask."""

    def run(main: str, *arguments: str, **how: Any) -> str:
        return run_tool(main, *arguments, "--bootstrap-server", broker, stderr=True, **how)

    return run


def test_topics(tool: Tool, name: str) -> None:
    topics = f"{TOOLS}.TopicCommand"
    create = ("--create", "--topic", name, "--partitions", "2", "--replication-factor", "1")
    assert f"Created topic {name}." in tool(topics, *create, "--config", "retention.ms=60000")
    assert "already exists" in tool(topics, *create, fails=True)
    assert name in tool(topics, "--list").splitlines()
    described = tool(topics, "--describe", "--topic", name)
    assert re.search(rf"Topic: {name}\tTopicId: \S{{22}}\tPartitionCount: 2\tReplicationFactor: 1", described)
    assert "retention.ms=60000" in described
    assert re.search(r"Partition: 1\tLeader: \d+\tReplicas: \d+\tIsr: \d+", described)
    tool(topics, "--alter", "--topic", name, "--partitions", "5")
    assert "PartitionCount: 5" in tool(topics, "--describe", "--topic", name)
    tool(topics, "--delete", "--topic", name)
    assert name not in tool(topics, "--list").splitlines()


def test_topic_refused(tool: Tool, name: str) -> None:
    topics = f"{TOOLS}.TopicCommand"
    printed = tool(topics, "--create", "--topic", name, "--replication-factor", "3", fails=True)
    assert "replication factor" in printed.lower()
    assert "does not exist" in tool(topics, "--describe", "--topic", name, fails=True)


def test_console_producer_and_consumer(tool: Tool, topic: str) -> None:
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    lines = "a:one\nb:two\nc:three\n"
    tool(f"{TOOLS}.ConsoleProducer", "--topic", topic, *keyed, "--compression-codec", "zstd", stdin=lines)
    tool(f"{TOOLS}.ConsoleProducer", "--topic", topic, stdin="four\n")
    consumer = f"{TOOLS}.consumer.ConsoleConsumer"
    place = ("--topic", topic, "--partition", "0", "--timeout-ms", "20000")
    shown = ("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true")
    read = tool(consumer, *place, "--offset", "earliest", "--max-messages", "4", *shown)
    assert read.splitlines()[:4] == [
        "Offset:0\ta\tone",
        "Offset:1\tb\ttwo",
        "Offset:2\tc\tthree",
        "Offset:3\tnull\tfour",
    ]
    read = tool(consumer, *place, "--offset", "2", "--max-messages", "1")
    assert read.splitlines()[0] == "three"


def test_configs(tool: Tool, topic: str) -> None:
    configs, entity = "kafka.admin.ConfigCommand", ("--entity-type", "topics", "--entity-name", topic)
    printed = tool(configs, *entity, "--alter", "--add-config", "retention.ms=1234567,cleanup.policy=compact")
    assert f"Completed updating config for topic {topic}." in printed
    described = tool(configs, *entity, "--describe")
    assert "retention.ms=1234567" in described
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=1234567" in described
    assert "DEFAULT_CONFIG:log.cleanup.policy=delete" in described
    tool(configs, *entity, "--alter", "--delete-config", "retention.ms")
    described = tool(configs, *entity, "--describe", "--all")
    assert "retention.ms=604800000" in described
    assert "cleanup.policy=compact" in described
    printed = tool(configs, *entity, "--alter", "--add-config", "retention.ms=soon", fails=True)
    assert "InvalidConfigurationException" in printed


def test_broker_configs(tool: Tool, reference: Driver) -> None:
    node = reference.describe_cluster().controller_id
    entity = ("--entity-type", "brokers", "--entity-name", str(node))
    described = tool("kafka.admin.ConfigCommand", *entity, "--describe", "--all")
    assert "message.max.bytes=1048588" in described
    assert "num.partitions=1" in described


def test_offsets_and_deleted_records(tool: Tool, topic: str, reference: Driver, tmp_path: Path) -> None:
    now = 1_700_000_000_000
    reference.produce(topic, [Record(b"x", timestamp=now + number) for number in range(10)])
    offsets = f"{TOOLS}.GetOffsetShell"
    for asked, expected in (("earliest", 0), ("latest", 10), ("max-timestamp", 9), (str(now + 4), 4)):
        assert f"{topic}:0:{expected}" in tool(offsets, "--topic", topic, "--time", asked).splitlines(), asked
    request = tmp_path / "delete.json"
    place = {"topic": topic, "partition": 0, "offset": 4}
    request.write_text(json.dumps({"version": 1, "partitions": [place]}))
    printed = tool(f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(request))
    assert f"partition: {topic}-0\tlow_watermark: 4" in printed
    assert reference.offsets(topic) == (4, 10)


def test_log_dirs(tool: Tool, topic: str, reference: Driver) -> None:
    reference.produce(topic, [Record(b"x" * 1000)])
    printed = tool(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", topic)
    report = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    (broker,) = report["brokers"]
    (log_dir,) = (found for found in broker["logDirs"] if found["partitions"])
    assert log_dir["error"] is None
    (partition,) = log_dir["partitions"]
    assert partition["partition"] == f"{topic}-0"
    assert 1000 < partition["size"] < 2000
    assert (partition["offsetLag"], partition["isFuture"]) == (0, False)


def test_api_versions(tool: Tool) -> None:
    printed = tool(f"{TOOLS}.BrokerApiVersionsCommand")
    for api in (
        "Produce(0)",
        "Fetch(1)",
        "ListOffsets(2)",
        "Metadata(3)",
        "ApiVersions(18)",
        "CreateTopics(19)",
    ):
        assert api in printed
    assert re.search(r"Produce\(0\): 0 to \d+", printed), "older librdkafka compresses only when this starts at 0"
    assert "UNSUPPORTED" not in "".join(line for line in printed.splitlines() if "Produce(0)" in line)


def test_cluster_id(tool: Tool, reference: Driver) -> None:
    printed = tool(f"{TOOLS}.ClusterTool", "cluster-id")
    assert f"Cluster ID: {reference.describe_cluster().cluster_id}" in printed


def test_performance_and_latency(tool: Tool, topic: str, reference: Driver) -> None:
    load = ("--num-records", "20000", "--record-size", "200", "--throughput", "-1")
    printed = tool(
        f"{TOOLS}.ProducerPerformance", "--topic", topic, *load, "--command-property", "compression.type=lz4"
    )
    assert "20000 records sent" in printed
    assert reference.offsets(topic) == (0, 20000)
    load = ("--num-records", "50", "--record-size", "100", "--producer-acks", "all")
    # The tool ends with a commit for its group; until groups are served it says so after its result.
    printed = tool(f"{TOOLS}.EndToEndLatency", "--topic", topic, *load, fails=None)
    assert "Percentiles: 50th" in printed


def test_verifiable_producer(tool: Tool, topic: str) -> None:
    printed = tool(f"{TOOLS}.VerifiableProducer", "--topic", topic, "--max-messages", "200", "--acks", "-1")
    events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    (summary,) = (event for event in events if event["name"] == "tool_data")
    assert (summary["sent"], summary["acked"]) == (200, 200)
