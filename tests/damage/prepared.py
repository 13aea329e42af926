"""A data directory with records, transactions and committed offsets, stopped cleanly or killed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from tests.support.broker import BrokerThread, crash_image
from tests.support.raw import Connection, batch, fetch, produce
from tests.support.waiting import until

from levada.errors import ErrorCode, KafkaError
from levada.wire.batches import decode, iterate_headers

LOG_DIRS = ("a", "b")
SETTINGS: dict[str, Any] = {
    "log_segment_bytes": 700,
    "log_index_interval_bytes": 150,
    "offsets_topic_num_partitions": 1,
    "offsets_topic_segment_bytes": 700,
    "transaction_state_log_num_partitions": 1,
    "levada_scrub_bytes_per_second": 0,
    "log_cleaner_enable": "false",
    "log_retention_check_interval_ms": 1 << 40,
}
TOPICS = {"plain": 2, "single": 1, "trimmed": 1, "compacted": 1}
COMPACTED = ("compacted", 0)
ABORTED = ("single", 0)  # has aborted transactions
COMMITTED = ABORTED  # has committed offsets
GROUPS = ("first", "second")
RECORDS = 36
KEYS = 3  # of the compacted topic
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
RETRIABLE = (LOADING, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)

Name = tuple[str, int]


@dataclass
class Prepared:
    """A data directory and what was acknowledged in it."""

    data: Path
    clean: bool
    records: dict[Name, dict[int, bytes]] = field(default_factory=dict)
    recovery_points: dict[Name, int] = field(default_factory=dict)
    starts: dict[Name, int] = field(default_factory=dict)
    aborted: set[tuple[int, int]] = field(default_factory=set)  # producer id and first offset, of ABORTED
    committed: dict[str, int] = field(default_factory=dict)  # by group

    @property
    def log_dirs(self) -> list[Path]:
        return [self.data / name for name in LOG_DIRS]


def prepare(folder: Path) -> list[Prepared]:
    """The same records in a directory that was stopped cleanly and in one whose broker was killed."""
    clean, killed = Prepared(folder / "clean", True), Prepared(folder / "killed", False)
    records: dict[Name, dict[int, bytes]] = {(topic, n): {} for topic, count in TOPICS.items() for n in range(count)}
    with BrokerThread(
        *clean.log_dirs, **SETTINGS | {"log_cleaner_enable": "true", "log_cleaner_backoff_ms": 20}
    ) as broker:
        for topic, partitions in TOPICS.items():
            broker.create(topic, partitions, **{"cleanup_policy": "compact"} if topic == COMPACTED[0] else {})
        add(broker, records, range(RECORDS // 2))
        until(lambda: len(served(broker, COMPACTED)) < RECORDS // 3, "the topic is not compacted")
    with BrokerThread(*clean.log_dirs, **SETTINGS) as broker:
        add(broker, records, range(RECORDS // 2, RECORDS * 3 // 4))
        abort_a_transaction(broker)
        delete_records(broker, "trimmed", 8)
        names = [*records, ("__consumer_offsets", 0), ("__transaction_state", 0)]
        for name in names:
            broker.call(broker.partition(*name).log.flush)
        points = {name: broker.partition(*name).log.recovery_point for name in names}
        broker.broker.log_dirs.checkpoints.write()
        committed = add(broker, records, range(RECORDS * 3 // 4, RECORDS))
        aborted = aborted_transactions(broker)
        assert len(aborted) == 2
        records[COMPACTED] = served(broker, COMPACTED)
        crash_image(clean.data, killed.data)
    for one_stop in (clean, killed):
        one_stop.records, one_stop.recovery_points, one_stop.committed = records, points, committed
        one_stop.starts = {("trimmed", 0): 8}
        one_stop.aborted = aborted
    return [clean, killed]


def add(broker: BrokerThread, records: Mapping[Name, dict[int, bytes]], numbers: range) -> dict[str, int]:
    """Produce a record of each number to each partition, and commit the number for each group; the last commits."""
    with broker.connect() as one:
        for number in numbers:
            for name, acknowledged in records.items():
                topic, index = name
                value = f"{topic}-{index} {number} ".encode() * 3
                key = b"%d" % (number % KEYS)
                answer = produce(one, topic, batch(value, keys=[key]), partition=index)
                assert answer.error_code == 0
                acknowledged[answer.base_offset] = value
            for group in GROUPS:
                until(lambda group=group, number=number: commit(one, group, number), "offsets are not committed")  # type: ignore[misc]
    return dict.fromkeys(GROUPS, numbers[-1])


def commit(one: Connection, group: str, offset: int) -> bool:
    part = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
    topics = [{"name": COMMITTED[0], "partitions": [part]}]
    fields = {"group_id": group, "generation_id_or_member_epoch": -1, "topics": topics}
    one.call("find_coordinator", 3, {"key": group, "key_type": 0})  # which creates the topic
    code = ErrorCode(one.call("offset_commit", 8, fields).topics[0].partitions[0].error_code)
    assert code in (ErrorCode.NONE, *RETRIABLE)
    return code is ErrorCode.NONE


def committed_offset(one: Connection, group: str) -> int | ErrorCode:
    """The committed offset of a group, or the error."""
    topics = [{"name": COMMITTED[0], "partition_indexes": [0]}]
    answer = one.call("offset_fetch", 7, {"group_id": group, "topics": topics})
    if answer.error_code:
        return ErrorCode(answer.error_code)
    (part,) = answer.topics[0].partitions
    return ErrorCode(part.error_code) if part.error_code else int(part.committed_offset)


def delete_records(broker: BrokerThread, topic: str, offset: int) -> None:
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
    with broker.connect() as one:
        one.call("delete_records", 2, {"topics": topics, "timeout": 1000})


def abort_a_transaction(broker: BrokerThread) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "aborting"})
    producer.init_transactions(30)
    for _ in range(2):
        producer.begin_transaction()
        producer.produce(ABORTED[0], b"aborted", partition=ABORTED[1])
        producer.flush(30)
        producer.abort_transaction(30)


def aborted_transactions(broker: BrokerThread) -> set[tuple[int, int]]:
    """What read_committed consumers learn of aborted transactions, from segment to segment."""
    found: set[tuple[int, int]] = set()
    with broker.connect() as one:
        for segment in broker.partition(*ABORTED).log.segments:
            answer = fetch(one, ABORTED[0], segment.base_offset, ABORTED[1], isolation_level=1)
            found |= {(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()}
    return found


def served(broker: BrokerThread, name: Name) -> dict[int, bytes]:
    """Everything a consumer can read."""
    topic, index = name
    found: dict[int, bytes] = {}
    log = broker.partition(topic, index).log
    offset, end = log.log_start_offset, log.log_end_offset
    with broker.connect() as one:
        while offset < end:
            answer = fetch(one, topic, offset, partition=index)
            data = memoryview(bytes(answer.records or b""))
            headers = list(iterate_headers(data))
            if answer.error_code or not headers:
                break
            for position, header in headers:
                try:
                    batch_records = decode(data[position : position + header.size])
                except KafkaError:
                    batch_records = []
                found |= {record.offset: record.value or b"" for record in batch_records}
            following = headers[-1][1].last_offset + 1
            if following <= offset:
                break
            offset = following
    return found
