"""Kafka's own tools on transactions of Levada: they list, describe and end them, and read every file."""

import signal
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from tests.compat.own_broker import own_broker
from tests.compat.tools import run_tool
from tests.support.broker import BrokerProcess

pytestmark = own_broker

TOOLS = "org.apache.kafka.tools"
WAIT_S = 60
TOPIC = "ledger"
NAME = "accountant"


def transactions(address: str, *arguments: str) -> list[list[str]]:
    """The rows of a table of `kafka-transactions`, without its head."""
    lines = run_tool(f"{TOOLS}.TransactionsCommand", "--bootstrap-server", address, *arguments).splitlines()
    return [line.split() for line in lines[1:]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Has committed, aborted, committed, and one open."""
    server = BrokerProcess(tmp_path_factory.mktemp("tools"), {"offsets.topic.num.partitions": 1})
    server.start()
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": NAME, "log_level": 0})
    producer.init_transactions(WAIT_S)
    for commit in (True, False, True):
        producer.begin_transaction()
        producer.produce(TOPIC, f"committed {commit}", partition=0)
        producer.flush(WAIT_S)
        (producer.commit_transaction if commit else producer.abort_transaction)(WAIT_S)
    producer.begin_transaction()
    producer.produce(TOPIC, "open", partition=0)
    producer.flush(WAIT_S)
    yield server
    server.stop(signal.SIGKILL)


def test_operators_see_and_end_transactions(server: BrokerProcess) -> None:
    """kafka-transactions: list, describe, describe-producers, abort, forceTerminateTransaction."""
    address = server.bootstrap
    ((name, _, producer_id, state),) = transactions(address, "list")
    assert (name, state) == (NAME, "Ongoing")
    ((_, name, _, _, state, timeout_ms, _, _, places),) = transactions(address, "describe", "--transactional-id", NAME)
    assert (name, state, timeout_ms, places) == (NAME, "Ongoing", "60000", f"{TOPIC}-0")
    place = ("--topic", TOPIC, "--partition", "0")
    ((writer, _, _, _, _, start),) = transactions(address, "describe-producers", *place)
    assert (writer, start) == (producer_id, "6")
    transactions(address, "abort", *place, "--start-offset", "6")
    ((_, _, _, _, _, start),) = transactions(address, "describe-producers", *place)
    assert start == "None"
    transactions(address, "forceTerminateTransaction", "--transactionalId", NAME)
    ((_, _, _, _, state, *_),) = transactions(address, "describe", "--transactional-id", NAME)
    assert state in ("Empty", "CompleteAbort")


def test_every_file_is_read(server: BrokerProcess) -> None:
    """DumpLogSegments: markers, `.txnindex`, snapshots and the coordinator's log."""
    assert server.stop(signal.SIGTERM) == 0
    data = server.log.parent / "data"
    folder = data / f"{TOPIC}-0"
    files = [*folder.glob("*.log"), *folder.glob("*.txnindex"), *folder.glob("*.snapshot")]
    dumped = run_tool(f"{TOOLS}.DumpLogSegments", "--deep-iteration", "--files", ",".join(map(str, files)))
    assert "isvalid: false" not in dumped
    assert dumped.count("endTxnMarker: COMMIT coordinatorEpoch: 0") == 2
    assert "version: 0 producerId: 0 firstOffset: 2 lastOffset: 3 lastStableOffset: 4" in dumped
    assert "currentTxnFirstOffset: OptionalLong.empty" in dumped
    (journal,) = [path for path in data.glob("__transaction_state-*/*.log") if path.stat().st_size]
    dumped = run_tool(f"{TOOLS}.DumpLogSegments", "--transaction-log-decoder", "--files", str(journal))
    assert dumped.count(f'key: {{"type":"0","data":{{"transactionalId":"{NAME}"}}}}') > 10
    assert '"transactionStatus":2,"transactionPartitions":[{"topic":"ledger","partitionIds":[0]}]' in dumped
    server.start()


def test_the_journal_is_consumed_with_kafkas_formatter(server: BrokerProcess) -> None:
    printed = run_tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--bootstrap-server", server.bootstrap, "--topic", "__transaction_state", "--from-beginning"),
        *("--timeout-ms", "8000", "--max-messages", "8"),
        *("--formatter", f"{TOOLS}.consumer.TransactionLogMessageFormatter"),
    )
    assert printed.count(f'"transactionalId":"{NAME}"') == 8, printed
