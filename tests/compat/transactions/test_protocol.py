"""Transactions on the wire: every version of their APIs, the errors that clients act on, and what partitions refuse.

All but two-phase commit was written against Apache Kafka and runs against it too (COMPAT_BOOTSTRAP).
"""

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.compat.drivers.base import WAIT_S, eventually
from tests.support import raw
from tests.support.broker import BrokerProcess
from tests.support.raw import Connection, batch, fitting

from levada.errors import ErrorCode

TRANSACTIONAL = 0x10
CONTROL = 0x20
TIMEOUT_MS = 60_000
VERSION_1 = 11  # the newest Produce whose partition must have been added


class Producer(NamedTuple):
    id: int
    epoch: int


def versions(api: str, first: int = 0, last: int = 1_000) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", [v for v in raw.versions_known(api) if first <= v <= last])


@pytest.fixture
def name(wire: Connection) -> str:
    """A transactional id whose coordinator is there."""
    chosen = f"transactor-{uuid.uuid4().hex[:12]}"
    find_coordinator(wire, chosen, key_type=1)
    return chosen


def find_coordinator(wire: Connection, key: str, key_type: int) -> None:
    def look() -> Any:
        answer = wire.call("find_coordinator", 4, {"key_type": key_type, "coordinator_keys": [key]})
        return answer.coordinators[0].error_code

    eventually(look, ErrorCode.NONE)


@pytest.fixture
def topic(create: Any) -> str:
    made: str = create(f"txn-{uuid.uuid4().hex[:12]}", partitions=2)
    return made


def init_reply(wire: Connection, name: str, version: int = 5, **fields: Any) -> Any:
    """InitProducerId; asked again while the transaction before is being aborted."""
    wanted = {
        "transactional_id": name,
        "transaction_timeout": TIMEOUT_MS,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    asked = raw.fitting("init_producer_id", version, wanted | fields)
    deadline = time.monotonic() + WAIT_S
    while True:
        reply = wire.call("init_producer_id", version, asked)
        if reply.error_code != ErrorCode.CONCURRENT_TRANSACTIONS or time.monotonic() > deadline:
            return reply


def init(wire: Connection, name: str, version: int = 5, **fields: Any) -> Producer:
    reply = init_reply(wire, name, version, **fields)
    assert reply.error_code == ErrorCode.NONE
    return Producer(reply.producer_id, reply.producer_epoch)


def add(wire: Connection, name: str, producer: Producer, topic: str, *partitions: int, version: int = 3) -> list[int]:
    """AddPartitionsToTxn as clients ask; the error code of each partition."""
    topics = [{"name": topic, "partitions": partitions}]
    if version < 4:
        prefix = "v3_and_below_"
        fields = {"transactional_id": name, "producer_id": producer.id, "producer_epoch": producer.epoch}
        asked: dict[str, Any] = {prefix + key: value for key, value in {**fields, "topics": topics}.items()}
        found = wire.call("add_partitions_to_txn", version, asked).results_by_topic_v3_and_below
    else:
        one = {"transactional_id": name, "producer_id": producer.id, "producer_epoch": producer.epoch}
        asked = {"transactions": [{**one, "verify_only": False, "topics": topics}]}
        found = wire.call("add_partitions_to_txn", version, asked).results_by_transaction[0].topic_results
    parts = sorted(found[0].results_by_partition, key=lambda part: part.partition_index)
    return [int(part.partition_error_code) for part in parts]


def send(
    wire: Connection,
    name: str | None,
    producer: Producer,
    topic: str,
    *values: bytes,
    sequence: int = 0,
    version: int = 12,
    partition: int = 0,
) -> Any:
    """A Produce of a transaction: the answer of its partition."""
    records = batch(
        *values,
        producer=(producer.id, producer.epoch, sequence),
        attributes=TRANSACTIONAL,
        timestamp=int(time.time() * 1000),  # near that of the marker, or a new segment would begin with it
    )
    place = {"name": topic, "partition_data": [{"index": partition, "records": records}]}
    fields = {"transactional_id": name, "acks": -1, "timeout": 10_000, "topic_data": [place]}
    return wire.call("produce", version, fields).responses[0].partition_responses[0]


def end(wire: Connection, name: str, producer: Producer, commit: bool, version: int = 5) -> Any:
    fields = {"transactional_id": name, "producer_id": producer.id, "producer_epoch": producer.epoch}
    return wire.call("end_txn", version, fields | {"committed": commit})


def fetched(wire: Connection, topic: str, partition: int = 0, committed: bool = True) -> Any:
    place = {"partition": partition, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    fields = {
        "max_bytes": 50 << 20,
        "isolation_level": int(committed),
        "topics": [{"topic": topic, "partitions": [place]}],
    }
    return wire.call("fetch", 12, fields).responses[0].partitions[0]


def state(wire: Connection, name: str) -> str:
    (found,) = wire.call("describe_transactions", 0, {"transactional_ids": [name]}).transaction_states
    assert found.error_code == ErrorCode.NONE
    return str(found.transaction_state)


def wait_for(wire: Connection, name: str, wanted: str) -> None:
    eventually(lambda: state(wire, name), wanted)


def offset_at(wire: Connection, topic: str, timestamp: int, committed: bool) -> int:
    """Where ListOffsets finds a time, or a place that has a name."""
    place = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    asked = {"replica_id": -1, "topics": [{"name": topic, "partitions": [place]}]}
    answer = wire.call("list_offsets", 7, asked | {"isolation_level": int(committed)})
    return int(answer.topics[0].partitions[0].offset)


# Versions.


@versions("init_producer_id", last=5)
def test_init_producer_id(wire: Connection, name: str, version: int) -> None:
    first, second = init(wire, name, version), init(wire, name, version)
    assert second == Producer(first.id, first.epoch + 1)


@versions("add_partitions_to_txn")
def test_add_partitions_to_txn(wire: Connection, name: str, topic: str, version: int) -> None:
    producer = init(wire, name)
    assert add(wire, name, producer, topic, 0, 1, version=version) == [0, 0]
    assert state(wire, name) == "Ongoing"
    missing, not_tried = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert add(wire, name, producer, topic, 0, 7, version=version) == [not_tried, missing]
    stranger = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert add(wire, name, Producer(987_654, 0), topic, 0, version=version) == [stranger]
    old = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert add(wire, name, Producer(producer.id, producer.epoch + 1), topic, 0, version=version) == [old]


@pytest.mark.parametrize("version", [4, 5])
def test_partitions_are_verified_without_being_added(wire: Connection, name: str, topic: str, version: int) -> None:
    producer = init(wire, name)
    add(wire, name, producer, topic, 0)
    one = {
        "transactional_id": name,
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "verify_only": True,
    }
    asked = {"transactions": [one | {"topics": [{"name": topic, "partitions": [0, 1]}]}]}
    answer = wire.call("add_partitions_to_txn", version, asked)
    found = answer.results_by_transaction[0].topic_results[0].results_by_partition
    codes = {part.partition_index: part.partition_error_code for part in found}
    assert codes == {0: ErrorCode.NONE, 1: ErrorCode.TRANSACTION_ABORTABLE}


@versions("end_txn")
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_end_txn(wire: Connection, name: str, topic: str, version: int, commit: bool) -> None:
    producer = init(wire, name)
    add(wire, name, producer, topic, 0)
    assert send(wire, name, producer, topic, b"a", b"b", version=VERSION_1).error_code == ErrorCode.NONE
    reply = end(wire, name, producer, commit, version)
    assert reply.error_code == ErrorCode.NONE
    if version >= 5:
        assert (reply.producer_id, reply.producer_epoch) == (producer.id, producer.epoch + 1)
    wait_for(wire, name, "CompleteCommit" if commit else "CompleteAbort")
    part = fetched(wire, topic)
    assert (part.high_watermark, part.last_stable_offset) == (3, 3)
    aborted = [] if commit else [(producer.id, 0)]
    assert [(one.producer_id, one.first_offset) for one in part.aborted_transactions] == aborted
    *_, marker = raw.headers(bytes(part.records))
    assert marker.attributes == TRANSACTIONAL | CONTROL and marker.record_count == 1
    assert (marker.producer_id, marker.producer_epoch) == (producer.id, producer.epoch + (version >= 5))
    again = end(wire, name, producer, commit, version)
    assert again.error_code == ErrorCode.NONE, "asked twice"
    other = end(wire, name, producer, not commit, version)
    assert other.error_code == ErrorCode.INVALID_TXN_STATE


@versions("add_offsets_to_txn")
def test_add_offsets_and_txn_offset_commit(
    wire: Connection, ask: Callable[..., Any], name: str, topic: str, version: int
) -> None:
    group = f"group-{name}"
    find_coordinator(wire, group, key_type=0)
    producer = init(wire, name)
    fields = {"transactional_id": name, "producer_id": producer.id, "producer_epoch": producer.epoch}
    reply = ask("add_offsets_to_txn", version, **fields, group_id=group)
    assert reply.error_code == ErrorCode.NONE
    reply = ask("add_offsets_to_txn", version, **(fields | {"producer_id": 987_654}), group_id=group)
    assert reply.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert commit_offset(ask, 3, name, producer, group, topic, 5) == ErrorCode.NONE
    assert end(wire, name, producer, True, 4).error_code == ErrorCode.NONE
    eventually(lambda: committed_offset(wire, group, topic), 5)


@versions("txn_offset_commit")
def test_txn_offset_commit(wire: Connection, ask: Callable[..., Any], name: str, topic: str, version: int) -> None:
    group = f"group-{name}"
    find_coordinator(wire, group, key_type=0)
    producer = init(wire, name)
    fields = {"transactional_id": name, "producer_id": producer.id, "producer_epoch": producer.epoch}
    if version < 5:
        refused = commit_offset(ask, version, name, producer, group, topic, 1)
        assert refused == (ErrorCode.TRANSACTION_ABORTABLE if version == 4 else ErrorCode.INVALID_TXN_STATE)
        assert ask("add_offsets_to_txn", 3, **fields, group_id=group).error_code == ErrorCode.NONE
    for offset, commit in ((5, False), (7, True), (9, False)):
        if version < 5:
            ask("add_offsets_to_txn", 3, **fields, group_id=group)
        assert commit_offset(ask, version, name, producer, group, topic, offset) == ErrorCode.NONE
        before = committed_offset(wire, group, topic)
        assert before != offset
        assert committed_offset(wire, group, topic, stable=True) == ErrorCode.UNSTABLE_OFFSET_COMMIT
        reply = end(wire, name, producer, commit, 5 if version >= 5 else 4)
        assert reply.error_code == ErrorCode.NONE
        producer = Producer(producer.id, producer.epoch + 1) if version >= 5 else producer
        wait_for(wire, name, "CompleteCommit" if commit else "CompleteAbort")
        eventually(lambda: committed_offset(wire, group, topic, stable=True), offset if commit else before)


def commit_offset(
    ask: Callable[..., Any], version: int, name: str, producer: Producer, group: str, topic: str, offset: int
) -> int:
    place = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
    reply = ask(
        "txn_offset_commit",
        version,
        transactional_id=name,
        group_id=group,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        generation_id=-1,
        topics=[{"name": topic, "partitions": [place]}],
    )
    return int(reply.topics[0].partitions[0].error_code)


def committed_offset(wire: Connection, group: str, topic: str, stable: bool = False) -> int:
    """The committed offset, or the error code."""
    asked = {
        "group_id": group,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "require_stable": stable,
    }
    part = wire.call("offset_fetch", 7, asked).topics[0].partitions[0]
    return int(part.error_code or part.committed_offset)


@versions("write_txn_markers")
def test_write_txn_markers(wire: Connection, name: str, topic: str, version: int) -> None:
    """What an operator does with a transaction that hangs."""
    init(wire, name)
    producer = init(wire, name)
    add(wire, name, producer, topic, 0)
    send(wire, name, producer, topic, b"a", version=VERSION_1)
    marker = {
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": [0, 7]}],
        "coordinator_epoch": 5,
    }
    answer = wire.call("write_txn_markers", version, {"markers": [marker]})
    codes = {part.partition_index: part.error_code for part in answer.markers[0].topics[0].partitions}
    assert codes == {0: ErrorCode.NONE, 7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    part = fetched(wire, topic)
    assert (part.last_stable_offset, [one.first_offset for one in part.aborted_transactions]) == (2, [0])
    for wrong, code in (
        ({"coordinator_epoch": 4}, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        ({"producer_epoch": producer.epoch - 1}, ErrorCode.INVALID_PRODUCER_EPOCH),
    ):
        asked = marker | wrong | {"topics": [{"name": topic, "partition_indexes": [0]}]}
        answer = wire.call("write_txn_markers", version, {"markers": [asked]})
        assert answer.markers[0].topics[0].partitions[0].error_code == code


@versions("list_transactions")
def test_list_transactions(wire: Connection, ask: Callable[..., Any], name: str, topic: str, version: int) -> None:
    producer = init(wire, name)

    def listed(**filters: Any) -> dict[str, str]:
        reply = ask("list_transactions", version, **({"duration_filter": -1} | filters))
        assert reply.error_code == ErrorCode.NONE
        return {one.transactional_id: one.transaction_state for one in reply.transaction_states}

    assert listed()[name] == "Empty"
    add(wire, name, producer, topic, 0)
    assert listed()[name] == "Ongoing"
    assert name not in listed(state_filters=["CompleteCommit"])
    assert listed(producer_id_filters=[producer.id]) == {name: "Ongoing"}
    reply = ask("list_transactions", version, state_filters=["Ongoing", "Asleep"], duration_filter=-1)
    assert reply.unknown_state_filters == ("Asleep",)
    if version >= 1:
        assert name not in listed(duration_filter=3_600_000)
    if version >= 2:
        assert listed(transactional_id_pattern=f"^{name[:-1]}.$") == {name: "Ongoing"}
        wrong = ask("list_transactions", version, transactional_id_pattern="a(", duration_filter=-1)
        assert wrong.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_describe_transactions_and_producers(wire: Connection, name: str, topic: str) -> None:
    producer = init(wire, name)
    add(wire, name, producer, topic, 0, 1)
    send(wire, name, producer, topic, b"a", b"b", version=VERSION_1)
    asked = {"transactional_ids": [name, "nobody-has-this"]}
    found, missing = wire.call("describe_transactions", 0, asked).transaction_states
    assert (found.transactional_id, found.transaction_state) == (name, "Ongoing")
    assert (found.producer_id, found.producer_epoch) == producer
    assert [(one.topic, sorted(one.partitions)) for one in found.topics] == [(topic, [0, 1])]
    assert abs(found.transaction_start_time.timestamp() - time.time()) < 60
    assert found.transaction_timeout.total_seconds() * 1000 == TIMEOUT_MS
    assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    answer = wire.call("describe_producers", 0, {"topics": [{"name": topic, "partition_indexes": [0, 1, 9]}]})
    written, untouched, unknown = answer.topics[0].partitions
    (one,) = written.active_producers
    assert (one.producer_id, one.producer_epoch, one.last_sequence) == (*producer, 1)
    assert one.current_txn_start_offset == 0
    assert untouched.active_producers == () and unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# Who may write.


@pytest.mark.parametrize("version", [3, 10, 11])
def test_a_partition_that_was_not_added_is_refused(wire: Connection, name: str, topic: str, version: int) -> None:
    """KIP-890 part 1. TRANSACTION_ABORTABLE is known from version 11 on."""
    producer = init(wire, name)
    refused = send(wire, name, producer, topic, b"a", version=version)
    abortable = ErrorCode.TRANSACTION_ABORTABLE if version >= 11 else ErrorCode.INVALID_TXN_STATE
    assert refused.error_code == abortable
    add(wire, name, producer, topic, 0)
    assert send(wire, name, producer, topic, b"a", version=version).error_code == ErrorCode.NONE
    assert send(wire, name, producer, topic, b"b", sequence=1, partition=1, version=version).error_code == abortable


def test_a_produce_of_version_12_adds_its_partition(wire: Connection, name: str, topic: str) -> None:
    """KIP-890 part 2."""
    producer = init(wire, name)
    for partition in range(2):
        for sequence in range(3):
            answer = send(wire, name, producer, topic, b"a", sequence=sequence, partition=partition)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, sequence)
    (found,) = wire.call("describe_transactions", 0, {"transactional_ids": [name]}).transaction_states
    assert [sorted(one.partitions) for one in found.topics] == [[0, 1]]
    reply = end(wire, name, producer, True)
    following = Producer(reply.producer_id, reply.producer_epoch)
    answer = send(wire, name, following, topic, b"b")
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 4)


def test_old_epochs_are_refused_everywhere(wire: Connection, name: str, topic: str) -> None:
    old = init(wire, name)
    send(wire, name, old, topic, b"a")
    new = init(wire, name)
    assert send(wire, name, old, topic, b"b", sequence=1).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(wire, name, old, topic, b"b", partition=1).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(wire, name, old, True).error_code == ErrorCode.PRODUCER_FENCED
    assert end(wire, name, old, True, 1).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (
        init_reply(wire, name, 5, producer_id=old.id, producer_epoch=old.epoch).error_code == ErrorCode.PRODUCER_FENCED
    )
    reply = init_reply(wire, name, 3, producer_id=old.id, producer_epoch=old.epoch)
    assert reply.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(wire, name, new, topic, b"c").error_code == ErrorCode.NONE


def test_a_producer_names_its_old_identity(wire: Connection, name: str) -> None:
    """KIP-360."""
    producer = init(wire, name)
    bumped = init(wire, name, producer_id=producer.id, producer_epoch=producer.epoch)
    assert bumped == Producer(producer.id, producer.epoch + 1)
    assert init(wire, name, producer_id=producer.id, producer_epoch=producer.epoch) == bumped


@pytest.mark.parametrize("timeout_ms", [0, -1, 2**31 - 1])
def test_timeouts_are_bounded(wire: Connection, name: str, timeout_ms: int) -> None:
    reply = init_reply(wire, name, transaction_timeout=timeout_ms)
    assert reply.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_empty_ids_are_refused(wire: Connection, topic: str) -> None:
    assert init_reply(wire, "").error_code == ErrorCode.INVALID_REQUEST
    assert end(wire, "", Producer(1, 0), True).error_code == ErrorCode.INVALID_REQUEST
    assert end(wire, "nobody-has-this", Producer(1, 0), True).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert add(wire, "", Producer(1, 0), topic, 0) == [ErrorCode.INVALID_REQUEST]


def test_requests_that_follow_a_parked_one_keep_their_order(wire: Connection, name: str, topic: str) -> None:
    """Many Produces at once on one connection: the first waits for the coordinator, the others behind it."""
    producer = init(wire, name)
    for commit in (True, False, True):
        sent = []
        for number in range(20):
            records = batch(b"%d" % number, producer=(producer.id, producer.epoch, number), attributes=TRANSACTIONAL)
            place = {"name": topic, "partition_data": [{"index": 0, "records": records}]}
            fields = {"transactional_id": name, "acks": -1, "timeout": 10_000, "topic_data": [place]}
            sent.append(wire.send("produce", 12, fields))
        answers = [wire.receive() for _ in sent]
        assert [correlation_id for correlation_id, _ in answers] == sent
        parts = [answer.responses[0].partition_responses[0] for _, answer in answers]
        assert [part.error_code for part in parts] == [ErrorCode.NONE] * 20
        first = parts[0].base_offset
        assert [part.base_offset for part in parts] == list(range(first, first + 20))
        reply = end(wire, name, producer, commit)
        producer = Producer(reply.producer_id, reply.producer_epoch)


def test_a_batch_without_its_transaction_is_refused(wire: Connection, name: str, topic: str) -> None:
    producer = init(wire, name)
    assert send(wire, None, producer, topic, b"a").error_code != ErrorCode.NONE
    control = batch(b"a", producer=(producer.id, producer.epoch, 0), attributes=TRANSACTIONAL | CONTROL)
    place = {"name": topic, "partition_data": [{"index": 0, "records": control}]}
    fields = {"transactional_id": name, "acks": -1, "timeout": 10_000, "topic_data": [place]}
    answer = wire.call("produce", 12, fields).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert fetched(wire, topic).high_watermark == 0


def test_features_tell_the_version_of_transactions(wire: Connection) -> None:
    answer = wire.call("api_versions", 4, {"client_software_name": "compat", "client_software_version": "1"})
    levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    assert levels["transaction.version"] == 2


# What Kafka does not do yet is tried on a broker of its own.


def test_places_are_found_among_what_the_reader_may_see(wire: Connection, name: str, topic: str) -> None:
    """ListOffsets by isolation: the end, the first record of a time, the one with the largest timestamp."""
    latest, first, newest = -1, 0, -3
    producer = init(wire, name)
    assert send(wire, name, producer, topic, b"1").error_code == ErrorCode.NONE
    for committed, found in ((False, [1, 0, 0]), (True, [0, -1, -1])):
        assert [offset_at(wire, topic, moment, committed) for moment in (latest, first, newest)] == found
    assert end(wire, name, producer, True).error_code == ErrorCode.NONE
    eventually(lambda: offset_at(wire, topic, latest, True), 2)
    assert offset_at(wire, topic, first, True) == 0
    assert offset_at(wire, topic, newest, True) == 1  # the marker is newer


@pytest.fixture(scope="module")
def own_wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A broker of its own, since Kafka does not keep prepared transactions yet."""
    folder: Path = tmp_path_factory.mktemp("two-phase")
    with BrokerProcess(folder, {"num.partitions": 2}) as server, Connection(server.bootstrap) as connection:
        yield connection


@pytest.fixture
def prepared(own_wire: Connection) -> Callable[..., tuple[str, str, Producer]]:
    """A topic, an id, and its producer with a transaction that was written and left open."""

    def prepare(**fields: Any) -> tuple[str, str, Producer]:
        name = f"prepared-{uuid.uuid4().hex[:12]}"
        topic = f"txn-{uuid.uuid4().hex[:12]}"
        own_wire.call("create_topics", 5, {"topics": [{"name": topic, "num_partitions": 1, "replication_factor": 1}]})
        find_coordinator(own_wire, name, key_type=1)
        producer = init(own_wire, name, 6, **fields)
        assert send(own_wire, name, producer, topic, b"prepared").error_code == ErrorCode.NONE
        return topic, name, producer

    return prepare


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_prepared_transaction_is_kept_and_ended_by_the_next_client(
    own_wire: Connection, prepared: Callable[..., tuple[str, str, Producer]], commit: bool
) -> None:
    """KIP-939."""
    topic, name, producer = prepared(enable2_pc=True, transaction_timeout=-1)
    reply = init_reply(own_wire, name, 6, enable2_pc=True, keep_prepared_txn=True)
    assert reply.error_code == ErrorCode.NONE
    assert Producer(reply.ongoing_txn_producer_id, reply.ongoing_txn_producer_epoch) == producer
    owner = Producer(reply.producer_id, reply.producer_epoch)
    assert owner == Producer(producer.id, producer.epoch + 1)
    assert end(own_wire, name, producer, commit).error_code == ErrorCode.PRODUCER_FENCED
    assert send(own_wire, name, owner, topic, b"more").error_code == ErrorCode.INVALID_TXN_STATE
    reply = end(own_wire, name, owner, commit)
    assert reply.error_code == ErrorCode.NONE
    part = fetched(own_wire, topic)
    assert (part.last_stable_offset, len(part.aborted_transactions)) == (2, 0 if commit else 1)
    following = Producer(reply.producer_id, reply.producer_epoch)
    assert send(own_wire, name, following, topic, b"next").error_code == ErrorCode.NONE


def test_a_prepared_transaction_that_is_not_kept_is_aborted(
    own_wire: Connection, prepared: Callable[..., tuple[str, str, Producer]]
) -> None:
    topic, name, producer = prepared(enable2_pc=True, transaction_timeout=-1)
    reply = init_reply(own_wire, name, 6, enable2_pc=True)
    assert (reply.error_code, reply.ongoing_txn_producer_id) == (ErrorCode.NONE, -1)
    assert reply.producer_epoch > producer.epoch
    assert len(fetched(own_wire, topic).aborted_transactions) == 1


def test_two_phase_commit_can_be_forbidden(tmp_path: Path) -> None:
    settings = {"transaction.two.phase.commit.enable": "false"}
    with BrokerProcess(tmp_path, settings) as server, Connection(server.bootstrap) as wire:
        find_coordinator(wire, "forbidden", key_type=1)
        reply = init_reply(wire, "forbidden", 6, enable2_pc=True)
    assert reply.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_only_transactions_that_are_not_two_phase_time_out(
    own_wire: Connection, prepared: Callable[..., tuple[str, str, Producer]]
) -> None:
    kept_topic, kept, _ = prepared(enable2_pc=True, transaction_timeout=-1)
    topic, name, producer = prepared(transaction_timeout=300)
    eventually(lambda: state(own_wire, name), "CompleteAbort")
    assert len(fetched(own_wire, topic).aborted_transactions) == 1
    assert end(own_wire, name, producer, True).error_code == ErrorCode.INVALID_TXN_STATE
    assert send(own_wire, name, producer, topic, b"late", sequence=1).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert state(own_wire, kept) == "Ongoing" and fetched(own_wire, kept_topic).last_stable_offset == 0


# Clients that come back after their transaction was aborted by the timeout; every response is Apache Kafka 4.3.1's.

Expired = Callable[[bool], Producer]
EPOCH, FENCED = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED


@pytest.fixture
def expired(wire: Connection, name: str, topic: str) -> Expired:
    """Opens a transaction, of version 2 or 1, and waits until it is aborted."""

    def expire(second: bool) -> Producer:
        producer = init(wire, name, transaction_timeout=300)
        if not second:
            assert add(wire, name, producer, topic, 0) == [ErrorCode.NONE]
        version = 12 if second else VERSION_1
        assert send(wire, name, producer, topic, b"1", version=version).error_code == ErrorCode.NONE
        eventually(lambda: state(wire, name), "CompleteAbort")
        return producer

    return expire


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize(("version", "error"), [(0, EPOCH), (1, EPOCH), (2, FENCED), (3, FENCED), (4, FENCED)])
def test_the_end_of_a_transaction_of_version_1(
    wire: Connection, name: str, expired: Expired, version: int, error: ErrorCode, commit: bool
) -> None:
    producer = expired(False)
    for _ in range(2):
        assert end(wire, name, producer, commit, version).error_code == error


def test_the_end_of_a_transaction_of_version_2(wire: Connection, name: str, topic: str, expired: Expired) -> None:
    """It cannot be committed any more; who aborts it has what it asks for, and goes on in the next epoch."""
    producer = expired(True)
    assert end(wire, name, producer, True).error_code == ErrorCode.INVALID_TXN_STATE
    for _ in range(2):
        reply = end(wire, name, producer, False)
        assert reply.error_code == ErrorCode.NONE
        following = Producer(reply.producer_id, reply.producer_epoch)
        assert following == Producer(producer.id, producer.epoch + 1)
    assert send(wire, name, following, topic, b"next").error_code == ErrorCode.NONE
    assert end(wire, name, following, True).error_code == ErrorCode.NONE


@pytest.mark.parametrize("second", [False, True], ids=["version 1", "version 2"])
def test_nothing_more_goes_into_it(wire: Connection, name: str, topic: str, expired: Expired, second: bool) -> None:
    producer = expired(second)
    for version in (5, VERSION_1, 12):
        answer = send(wire, name, producer, topic, b"late", sequence=1, version=version)
        assert answer.error_code == EPOCH
    for version in range(4):
        assert add(wire, name, producer, topic, 0, version=version) == [EPOCH if version < 2 else FENCED]
    who = {"transactional_id": name, "producer_id": producer.id, "producer_epoch": producer.epoch}
    for version in range(5):
        answer = wire.call("add_offsets_to_txn", version, {**who, "group_id": name})
        assert answer.error_code == (EPOCH if version < 2 else FENCED)
    find_coordinator(wire, name, key_type=0)
    place = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    fields: dict[str, Any] = {
        **who,
        "group_id": name,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": [place]}],
    }
    for version in range(6):
        answer = wire.call("txn_offset_commit", version, fitting("txn_offset_commit", version, fields))
        assert answer.topics[0].partitions[0].error_code == EPOCH


@pytest.mark.parametrize("second", [False, True], ids=["version 1", "version 2"])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producer_that_says_who_it_was_goes_on(
    wire: Connection, name: str, topic: str, expired: Expired, second: bool, version: int
) -> None:
    """KIP-360, KIP-588."""
    producer = expired(second)
    who = {"producer_id": producer.id, "producer_epoch": producer.epoch}
    reply = init_reply(wire, name, version, **who)
    following = Producer(reply.producer_id, reply.producer_epoch)
    assert (reply.error_code, following) == (ErrorCode.NONE, Producer(producer.id, producer.epoch + 1))
    assert send(wire, name, following, topic, b"next").error_code == ErrorCode.NONE


def test_another_producer_fences_it(wire: Connection, name: str, expired: Expired) -> None:
    producer = expired(True)
    assert init(wire, name) == Producer(producer.id, producer.epoch + 2)
    assert end(wire, name, producer, False).error_code == FENCED
