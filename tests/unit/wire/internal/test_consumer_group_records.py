"""Records of consumer groups are Kafka's own, byte for byte."""

from typing import Any
from uuid import UUID

import pytest

from levada.wire.internal.consumer_group_records import (
    CONSUMER_GROUP_RECORD_TYPES,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    CurrentMemberAssignmentKey,
    CurrentMemberAssignmentValue,
    CurrentTopicPartitions,
    MemberMetadataKey,
    MemberMetadataValue,
    PartitionMetadata,
    PartitionMetadataKey,
    PartitionMetadataValue,
    RegularExpressionKey,
    RegularExpressionValue,
    TargetAssignmentMemberKey,
    TargetAssignmentMemberValue,
    TargetAssignmentMetadataKey,
    TargetAssignmentMetadataValue,
    TargetTopicPartitions,
    TopicMetadata,
)
from levada.wire.internal.record_types import RecordFormat

FORMAT: RecordFormat[Any] = RecordFormat(*CONSUMER_GROUP_RECORD_TYPES)
TOPIC = UUID(int=(1 << 64) + 2)
CLASSIC = ClassicMemberMetadata(45_000, (ClassicProtocol("range", b"\x01\x02"),))

# Written by the classes of Apache Kafka 4.3.1.
WRITTEN_BY_KAFKA = [
    (
        ConsumerGroupMetadataKey("g"),
        ConsumerGroupMetadataValue(7, -5),
        "0003000167",
        "000000000007010008fffffffffffffffb",
    ),
    (ConsumerGroupMetadataKey("g"), ConsumerGroupMetadataValue(7), "0003000167", "00000000000700"),
    (
        MemberMetadataKey("g", "m"),
        MemberMetadataValue("i", None, "c", "/h", ("a", "b"), "x.*", 300, "range", CLASSIC),
        "000500016700016d",
        "00000269000263032f68030261026204782e2a0000012c0672616e6765010011010000afc8020672616e67650301020000",
    ),
    (
        MemberMetadataKey("g", "m"),
        MemberMetadataValue(None, "r", "c", "/h", (), "", 300, None),
        "000500016700016d",
        "00000002720263032f6801010000012c0000",
    ),
    (
        TargetAssignmentMetadataKey("g"),
        TargetAssignmentMetadataValue(3, 99),
        "0006000167",
        "0000000000030100080000000000000063",
    ),
    (
        TargetAssignmentMemberKey("g", "m"),
        TargetAssignmentMemberValue((TargetTopicPartitions(TOPIC, (0, 1)),)),
        "000700016700016d",
        "000002000000000000000100000000000000020300000000000000010000",
    ),
    (
        CurrentMemberAssignmentKey("g", "m"),
        CurrentMemberAssignmentValue(
            3, 2, 1, (CurrentTopicPartitions(TOPIC, (0, 1), (2, 3)),), (CurrentTopicPartitions(TOPIC, (2,)),)
        ),
        "000800016700016d",
        "00000000000300000002010200000000000000010000000000000002030000000000000001010009030000000200000003"
        "020000000000000001000000000000000202000000020000",
    ),
    (
        RegularExpressionKey("g", "x"),
        RegularExpressionValue(("a",), 8, 9),
        "00100001670001" + "78",
        "00000202610000000000000008000000000000000900",
    ),
]


@pytest.mark.parametrize(("key", "value", "key_bytes", "value_bytes"), WRITTEN_BY_KAFKA)
def test_records_are_as_kafka_writes_them(key: Any, value: Any, key_bytes: str, value_bytes: str) -> None:
    assert FORMAT.encode(key, value) == (bytes.fromhex(key_bytes), bytes.fromhex(value_bytes))
    assert FORMAT.decode(bytes.fromhex(key_bytes), bytes.fromhex(value_bytes)) == (key, value)
    assert FORMAT.decode(bytes.fromhex(key_bytes), None) == (key, None)


def test_what_old_brokers_kept_of_topics_can_be_read() -> None:
    key = PartitionMetadataKey("g")
    value = PartitionMetadataValue((TopicMetadata(TOPIC, "a", 1, (PartitionMetadata(0, ("r1", "r2")),)),))
    assert FORMAT.decode(*FORMAT.encode(key, value)) == (key, value)
