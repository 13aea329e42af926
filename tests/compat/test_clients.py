"""What users do with a Kafka client, done by every client that can do it.

Each expectation, error names included, was first seen to hold with Apache Kafka 4.3.1.
"""

import threading
import time
from collections.abc import Callable

import pytest
from tests.compat.drivers.base import CODECS, ClientError, Config, Create, Driver, Record, eventually
from tests.compat.drivers.registry import DRIVERS
from tests.compat.features import Feature, shows
from tests.support import raw

NOW = int(time.time() * 1000)
DAY = 86_400_000

HEADERS = (("none", None), ("empty", b""), ("twice", b"1"), ("twice", b"2"))
VARIED = [
    Record(b"plain"),
    Record(b"keyed", key=b"key"),
    Record(None, key=b"tombstone"),
    Record(b"with headers", key=b"key", headers=(("trace", b"abc"), ("kind", b"view"))),
    Record("çüß 流".encode(), key="schlüssel".encode()),
    Record(b"compress me " * 500, key=b"long"),
]


def failure(action: Callable[..., object], *arguments: object, **named: object) -> str:
    """The name of the error that the client reports."""
    with pytest.raises(ClientError) as caught:
        action(*arguments, **named)
    return caught.value.name


def contents(records: list[Record]) -> list[object]:
    return [record.content for record in records]


class TestTopics:
    @shows(Feature.TOPICS)
    @pytest.mark.needs("create_topic", "list_topics")
    def test_create_and_list(self, client: Driver, name: str) -> None:
        client.create_topic(name, partitions=3)
        eventually(lambda: name in client.list_topics(), True)
        assert client.describe_topic(name).partitions == 3

    @shows(Feature.TOPICS)
    @pytest.mark.needs("create_topic")
    @pytest.mark.parametrize(
        ("partitions", "replicas", "configs", "error"),
        [
            (0, 1, {}, "INVALID_PARTITIONS"),
            (1, 3, {}, "INVALID_REPLICATION_FACTOR"),
            (1, 0, {}, "INVALID_REPLICATION_FACTOR"),
            (1, 1, {"cleanup.policy": "sometimes"}, "INVALID_CONFIG"),
            (1, 1, {"retention.ms": "soon"}, "INVALID_CONFIG"),
            (1, 1, {"no.such.setting": "1"}, "INVALID_CONFIG"),
        ],
    )
    def test_create_refused(
        self, client: Driver, name: str, partitions: int, replicas: int, configs: dict[str, str], error: str
    ) -> None:
        assert failure(client.create_topic, name, partitions, replicas, configs) == error
        assert name not in client.list_topics()

    @shows(Feature.TOPICS)
    @pytest.mark.needs("create_topic")
    @pytest.mark.parametrize("bad", ["", ".", "..", "white space", "slash/", "é", "a" * 250])
    def test_invalid_name(self, client: Driver, bad: str) -> None:
        assert failure(client.create_topic, bad) == "INVALID_TOPIC_EXCEPTION"

    @shows(Feature.TOPICS)
    @pytest.mark.needs("create_topic")
    def test_exists_already(self, client: Driver, topic: str) -> None:
        assert failure(client.create_topic, topic) == "TOPIC_ALREADY_EXISTS"

    @shows(Feature.TOPICS)
    @pytest.mark.needs("create_topic")
    def test_colliding_name(self, client: Driver, name: str) -> None:
        """Kafka's metrics cannot tell a dot from an underscore, so two such names may not both exist."""
        client.create_topic(f"{name}.a")
        assert failure(client.create_topic, f"{name}_a") == "INVALID_TOPIC_EXCEPTION"

    @pytest.mark.needs("describes_without_creating")
    def test_describe_unknown(self, client: Driver, name: str) -> None:
        assert failure(client.describe_topic, name) == "UNKNOWN_TOPIC_OR_PARTITION"

    @shows(Feature.PARTITIONS)
    @pytest.mark.needs("create_partitions")
    def test_create_partitions(self, client: Driver, topic: str) -> None:
        client.create_partitions(topic, 4)
        eventually(lambda: client.describe_topic(topic).partitions, 4)
        client.produce(topic, [Record(b"in the new one")], partition=3)

    @shows(Feature.PARTITIONS)
    @pytest.mark.needs("create_partitions")
    def test_create_partitions_refused(self, client: Driver, topic: str, reference: Driver) -> None:
        reference.create_partitions(topic, 4)
        assert failure(client.create_partitions, topic, 3) == "INVALID_PARTITIONS"
        assert failure(client.create_partitions, topic, 4) == "INVALID_PARTITIONS"
        assert failure(client.create_partitions, f"{topic}-none", 4) == "UNKNOWN_TOPIC_OR_PARTITION"

    @shows(Feature.TOPICS)
    @pytest.mark.needs("delete_topic")
    def test_delete(self, client: Driver, topic: str) -> None:
        client.delete_topic(topic)
        eventually(lambda: topic in client.list_topics(), False)
        assert failure(client.delete_topic, topic) == "UNKNOWN_TOPIC_OR_PARTITION"

    @pytest.mark.needs("delete_topic", "consume")
    def test_deleted_and_created_again(self, client: Driver, topic: str) -> None:
        """The new topic is empty, and the client that knew the old one goes on."""
        client.produce(topic, [Record(b"old"), Record(b"older")])
        client.delete_topic(topic)
        client.create_topic(topic, partitions=2)
        eventually(lambda: client.describe_topic(topic).partitions, 2)
        eventually(lambda: client.offsets(topic), (0, 0))
        client.produce(topic, [Record(b"new")])
        assert contents(client.consume(topic, 1)) == [(None, b"new", ())]

    @shows(Feature.TOPIC_IDS)
    @pytest.mark.needs("topic_ids")
    def test_topic_id(self, client: Driver, topic: str) -> None:
        """A topic made anew under its name has another."""
        before = client.describe_topic(topic).topic_id
        client.delete_topic(topic)
        client.create_topic(topic, partitions=2)
        eventually(lambda: client.describe_topic(topic).partitions, 2)
        assert client.describe_topic(topic).topic_id not in (before, None)

    def test_auto_created_by_produce(self, client: Driver, name: str, reference: Driver) -> None:
        """auto.create.topics.enable is on by default, as in Kafka."""
        client.produce(name, [Record(b"first")])
        assert contents(reference.consume(name, 1)) == [(None, b"first", ())]

    @pytest.mark.needs("sends_any_topic_name")
    def test_auto_creation_refuses_bad_names(self, client: Driver) -> None:
        refused = failure(client.produce, "not valid!", [Record(b"x")])
        # librdkafka now and then reports its own "no such topic" instead of the broker's answer, with Kafka too.
        assert refused in ("INVALID_TOPIC_EXCEPTION", "UNKNOWN_TOPIC_OR_PARTITION")


class TestCluster:
    @pytest.mark.needs("cluster_id")
    def test_describe(self, client: Driver, broker: str) -> None:
        cluster = client.describe_cluster()
        assert cluster.cluster_id
        self.check(client, broker)

    def check(self, client: Driver, broker: str) -> None:
        cluster = client.describe_cluster()
        ((node, host, port),) = cluster.brokers
        assert f"{host}:{port}" == broker
        assert cluster.controller_id == node

    def test_every_client_finds_the_broker(self, client: Driver, broker: str) -> None:
        self.check(client, broker)


class TestConfigs:
    @shows(Feature.SETTINGS)
    @pytest.mark.needs("describe_configs")
    def test_defaults_and_sources(self, client: Driver, name: str, create: Create) -> None:
        create(name, configs={"retention.ms": "3600000", "cleanup.policy": "compact"})
        configs = client.describe_configs(name)
        assert configs["retention.ms"].value == "3600000"
        assert configs["retention.ms"].source == "DYNAMIC_TOPIC_CONFIG"
        assert configs["cleanup.policy"].value == "compact"
        assert configs["max.message.bytes"].value == "1048588"
        assert configs["max.message.bytes"].source == "DEFAULT_CONFIG"
        assert configs["segment.bytes"].value == str(1 << 30)
        assert configs["message.timestamp.type"].value == "CreateTime"
        assert configs["compression.type"].value == "producer"

    @shows(Feature.SETTINGS)
    @pytest.mark.needs("alter_configs")
    def test_alter(self, client: Driver, topic: str) -> None:
        client.alter_configs(topic, {"retention.ms": "7200000"})
        changed = Config("7200000", "DYNAMIC_TOPIC_CONFIG")
        eventually(lambda: client.describe_configs(topic)["retention.ms"], changed)

    @shows(Feature.SETTINGS)
    @pytest.mark.needs("alter_configs")
    @pytest.mark.parametrize("bad", [{"retention.ms": "soon"}, {"no.such.setting": "1"}])
    def test_alter_refused(self, client: Driver, topic: str, bad: dict[str, str]) -> None:
        assert failure(client.alter_configs, topic, bad) == "INVALID_CONFIG"

    @shows(Feature.SETTINGS)
    @pytest.mark.needs("alter_configs")
    def test_alter_takes_effect(self, client: Driver, topic: str) -> None:
        client.produce(topic, [Record(b"x" * 5000)])
        client.alter_configs(topic, {"max.message.bytes": "2000"})
        eventually(lambda: client.describe_configs(topic)["max.message.bytes"].value, "2000")
        assert failure(client.produce, topic, [Record(b"x" * 5000)]) == "MESSAGE_TOO_LARGE"


class TestProduce:
    @shows(Feature.CODECS)
    @pytest.mark.parametrize("codec", CODECS)
    def test_round_trip(self, client: Driver, codec: str, topic: str, broker: str, reference: Driver) -> None:
        """Keys, nulls, headers and texts come back as written, compressed as the client was told to."""
        offsets = client.produce(topic, VARIED, codec=codec)
        assert offsets in ([], list(range(len(VARIED))))
        assert contents(reference.consume(topic, len(VARIED))) == contents(VARIED)
        stored = {batch.codec for batch in raw.batches(broker, topic)}
        assert codec in stored
        assert stored <= {codec, "none"}, "librdkafka leaves a batch alone that compression makes longer"

    @shows(Feature.CODECS)
    @pytest.mark.parametrize("target", ["uncompressed", *CODECS[1:]])
    def test_a_topic_with_a_codec_of_its_own(
        self, client: Driver, target: str, name: str, create: Create, broker: str, reference: Driver
    ) -> None:
        """The broker recompresses what it gets; the client reads what the broker compressed."""
        create(name, configs={"compression.type": target})
        many = VARIED + [Record(b"%d " % number * 20) for number in range(300)]
        client.produce(name, many, codec="none" if target != "uncompressed" else "gzip")
        assert contents(reference.consume(name, len(many))) == contents(many)
        assert {batch.codec for batch in raw.batches(broker, name)} == {"none" if target == "uncompressed" else target}
        if "consume" not in client.lacks:
            assert contents(client.consume(name, len(many))) == contents(many)

    @shows(Feature.RECORDS)
    @pytest.mark.needs("empty_values")
    def test_empty_is_not_null(self, client: Driver, topic: str, reference: Driver) -> None:
        """Empty keys, values and headers stay empty, null ones null, and a header may come twice."""
        headers = tuple(header for header in HEADERS if header[1] is not None or "null_headers" not in client.lacks)
        records = [Record(b"", key=b""), Record(None, key=b"k"), Record(b"x", headers=headers)]
        client.produce(topic, records)
        assert contents(reference.consume(topic, len(records))) == contents(records)

    @shows(Feature.CONSUME)
    @pytest.mark.needs("consume")
    def test_reads_empty_and_null(self, client: Driver, topic: str, reference: Driver) -> None:
        records = [Record(b"", key=b""), Record(None, key=b"k"), Record(b"x", headers=HEADERS)]
        reference.produce(topic, records)
        assert contents(client.consume(topic, len(records))) == contents(records)

    @shows(Feature.CONSUME)
    @pytest.mark.needs("consume")
    @pytest.mark.parametrize("codec", CODECS)
    def test_reads_all_codecs(self, client: Driver, codec: str, topic: str, reference: Driver) -> None:
        reference.produce(topic, VARIED, codec=codec)
        read = client.consume(topic, len(VARIED))
        assert contents(read) == contents(VARIED)
        assert [record.offset for record in read] == list(range(len(VARIED)))

    @shows(Feature.RECORDS)
    @pytest.mark.parametrize("codec", ["none", "lz4"])
    def test_big(self, client: Driver, codec: str, topic: str, reference: Driver) -> None:
        big = Record(bytes(range(32, 127)) * 9_500, key=b"big")
        client.produce(topic, [big], codec=codec)
        reader = reference if "consume" in client.lacks else client
        assert contents(reader.consume(topic, 1)) == [big.content]

    @shows(Feature.RECORDS)
    def test_too_large(self, client: Driver, name: str, create: Create, reference: Driver) -> None:
        create(name, configs={"max.message.bytes": "2000"})
        assert failure(client.produce, name, [Record(b"x" * 5000)]) == "MESSAGE_TOO_LARGE"
        client.produce(name, [Record(b"fits")])
        assert reference.offsets(name) == (0, 1)

    @shows(Feature.IDEMPOTENT)
    def test_idempotent(self, client: Driver, topic: str, broker: str, reference: Driver) -> None:
        records = [Record(b"%d" % number) for number in range(5)]
        for _ in range(2):
            client.produce(topic, records, idempotent=True)
        assert contents(reference.consume(topic, 10)) == contents(records * 2)
        assert all(batch.producer_id >= 0 and batch.base_sequence >= 0 for batch in raw.batches(broker, topic))

    @shows(Feature.RECORDS)
    @pytest.mark.parametrize("acks", ["0", "1", "all"])
    def test_acks(self, client: Driver, acks: str, topic: str, reference: Driver) -> None:
        client.produce(topic, [Record(b"acks")], acks=acks)
        assert contents(reference.consume(topic, 1)) == [(None, b"acks", ())]

    def test_partitions_are_separate(self, client: Driver, name: str, create: Create, reference: Driver) -> None:
        create(name, partitions=3)
        for partition in range(3):
            client.produce(name, [Record(b"to %d" % partition)] * (partition + 1), partition=partition)
        assert [reference.offsets(name, partition) for partition in range(3)] == [(0, 1), (0, 2), (0, 3)]
        assert reference.consume(name, 1, partition=2)[0].value == b"to 2"

    @shows(Feature.TIMESTAMPS)
    @pytest.mark.needs("timestamps")
    def test_create_time(self, client: Driver, topic: str, reference: Driver) -> None:
        client.produce(topic, [Record(b"then", timestamp=NOW - DAY)])
        assert reference.consume(topic, 1)[0].timestamp == NOW - DAY

    @shows(Feature.TIMESTAMPS)
    @pytest.mark.needs("timestamps")
    def test_log_append_time(self, client: Driver, name: str, create: Create, reference: Driver) -> None:
        create(name, configs={"message.timestamp.type": "LogAppendTime"})
        client.produce(name, [Record(b"then", timestamp=NOW - DAY)])
        reader = reference if "consume" in client.lacks else client
        assert (reader.consume(name, 1)[0].timestamp or 0) >= NOW

    @shows(Feature.TIMESTAMPS)
    @pytest.mark.needs("timestamps")
    def test_timestamp_too_far_ahead(self, client: Driver, topic: str) -> None:
        """message.timestamp.after.max.ms is one hour by default."""
        records = [Record(b"ahead", timestamp=NOW + DAY)]
        assert failure(client.produce, topic, records) == "INVALID_TIMESTAMP"

    @pytest.mark.needs("knows_invalid_record")
    def test_no_key_on_compacted_topic(self, client: Driver, name: str, create: Create, reference: Driver) -> None:
        create(name, configs={"cleanup.policy": "compact"})
        client.produce(name, [Record(b"value", key=b"key")])
        assert failure(client.produce, name, [Record(b"no key")]) == "INVALID_RECORD"
        assert reference.offsets(name) == (0, 1)


class TestConsume:
    @shows(Feature.CONSUME)
    @pytest.mark.needs("consume")
    @pytest.mark.parametrize("codec", ["none", "gzip"])
    def test_from_the_middle_of_a_batch(self, client: Driver, codec: str, topic: str, reference: Driver) -> None:
        reference.produce(topic, [Record(b"%d" % number) for number in range(10)], codec=codec)
        read = client.consume(topic, 3, offset=7)
        assert [(record.offset, record.value) for record in read] == [(7, b"7"), (8, b"8"), (9, b"9")]

    @shows(Feature.CONSUME)
    @pytest.mark.needs("consume")
    def test_offset_out_of_range(self, client: Driver, topic: str, reference: Driver) -> None:
        reference.produce(topic, [Record(b"x")] * 3)
        assert failure(client.consume, topic, 1, offset=100) == "OFFSET_OUT_OF_RANGE"

    @shows(Feature.CONSUME)
    @pytest.mark.needs("consume")
    def test_many_batches(self, client: Driver, topic: str, reference: Driver) -> None:
        expected = [Record(b"%d-" % number + b"x" * 1000) for number in range(2000)]
        reference.produce(topic, expected)
        read = client.consume(topic, len(expected))
        assert [record.offset for record in read] == list(range(len(expected)))
        assert contents(read) == contents(expected)

    @shows(Feature.CONSUME)
    @pytest.mark.needs("consume")
    def test_waiting_at_the_end(self, client: Driver, topic: str, reference: Driver) -> None:
        """A long poll on an empty partition ends when a record comes."""
        read: list[Record] = []
        waiting = threading.Thread(target=lambda: read.extend(client.consume(topic, 2, offset=0)))
        waiting.start()
        reference.produce(topic, [Record(b"one")])
        reference.produce(topic, [Record(b"two")])
        waiting.join()
        assert [record.value for record in read] == [b"one", b"two"]

    @shows(Feature.OFFSETS)
    def test_earliest_and_latest(self, client: Driver, topic: str, reference: Driver) -> None:
        assert client.offsets(topic) == (0, 0)
        reference.produce(topic, [Record(b"x")] * 5)
        assert client.offsets(topic) == (0, 5)

    @shows(Feature.OFFSETS)
    def test_by_time(self, client: Driver, topic: str, reference: Driver) -> None:
        """Looked up inside batches too: one batch holds several of these times."""
        times = [NOW - 5 * DAY, NOW - 3 * DAY, NOW - 3 * DAY + 10, NOW - DAY]
        reference.produce(topic, [Record(b"x", timestamp=timestamp) for timestamp in times])
        reference.produce(topic, [Record(b"y", timestamp=NOW - DAY + 5)])
        found = {asked: client.offset_for_time(topic, asked) for asked in (0, *times, NOW - DAY + 1)}
        assert found == {0: 0, times[0]: 0, times[1]: 1, times[2]: 2, times[3]: 3, NOW - DAY + 1: 4}
        assert client.offset_for_time(topic, NOW - DAY + 6) is None

    @shows(Feature.DELETE_RECORDS)
    @pytest.mark.needs("delete_records")
    def test_delete_records(self, client: Driver, topic: str, reference: Driver) -> None:
        reference.produce(topic, [Record(b"%d" % number) for number in range(10)])
        client.delete_records(topic, 6)
        assert client.offsets(topic) == (6, 10)
        assert reference.consume(topic, 1)[0].offset == 6
        assert failure(reference.consume, topic, 1, offset=2) == "OFFSET_OUT_OF_RANGE"
        assert failure(client.delete_records, topic, 11) == "OFFSET_OUT_OF_RANGE"


@pytest.mark.parametrize("codec", CODECS)
def test_every_client_reads_what_every_client_wrote(
    codec: str, topic: str, connect: Callable[[type[Driver]], Driver]
) -> None:
    clients = [connect(driver) for driver in DRIVERS]
    written: list[object] = []
    for client in clients:
        records = [Record(f"{client.name} {number} ".encode() * 20, key=b"k") for number in range(3)]
        client.produce(topic, records, codec=codec)
        written += contents(records)
    for client in clients:
        if "consume" not in client.lacks:
            assert contents(client.consume(topic, len(written))) == written, client.name
