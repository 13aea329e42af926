"""Settings of the client by Kafka's names: -X and --config, in every command that connects."""

from pathlib import Path

import click
import pytest
from tests.component.cli.test_commands import commands
from tests.support.broker import BrokerThread, free_port
from tests.support.shell import Shell

from levada.cli.client_names import ALIASES, UNUSED
from levada.cli.main import levada as levada_command
from levada.cli.pipeline.commands import PIPELINES, run
from levada.cli.settings import PROPERTIES

CONSUMER_PROPERTIES = """\
# of a Java consumer
bootstrap.servers={bootstrap}
group.id=billing
enable.auto.commit=false
auto.offset.reset=earliest
session.timeout.ms=45000
heartbeat.interval.ms=3000
fetch.min.bytes=2
fetch.max.bytes=1048576
fetch.max.wait.ms=100
max.poll.records=500
key.deserializer=org.apache.kafka.common.serialization.StringDeserializer
isolation.level=read_committed\t
security.protocol=PLAINTEXT
"""
PRODUCER_PROPERTIES = """\
# of a Java producer
bootstrap.servers={bootstrap}
compression.type=zstd
acks=-1
batch.size=0
linger.ms=0
retries=2147483647
key.serializer=org.apache.kafka.common.serialization.StringSerializer
schema.registry.url=http://127.0.0.1:8081
buffer.memory=67108864
"""
LIBRDKAFKA_PROPERTIES = """\
metadata.broker.list={bootstrap}
request.required.acks=all
queue.buffering.max.ms=0.5
compression.codec=lz4
enable.idempotence=True
statistics.interval.ms=0
"""

OFFLINE = {"start", "completion", "log"}
OF_RUNS = {"list", "status", "stop", "forget", "run"}  # of pipelines on this machine


def test_every_command_that_connects_has_them() -> None:
    context = click.Context(levada_command)
    for noun, *verbs in commands():
        command = levada_command.get_command(context, noun)
        for verb in verbs:
            assert isinstance(command, click.Group)
            command = command.get_command(context, verb)
        assert command is not None
        if noun in OFFLINE or isinstance(command, click.Group) or (noun == "pipeline" and OF_RUNS & set(verbs)):
            continue
        names = {name for param in command.params for name in param.opts}
        assert {"-b", "-X", "-F"} <= names, (noun, verbs)
        assert "--config" in names, (noun, verbs)


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_have_them(name: str) -> None:
    command = run.get_command(click.Context(run), name)
    assert command is not None
    assert {"-b", "-X", "-F", "--config"} <= {name for param in command.params for name in param.opts}


def test_brokers_come_from_a_flag_a_pair_a_file_or_a_variable(
    shell: Shell, broker: BrokerThread, tmp_path: Path
) -> None:
    """In this order; the values that are not used name a port without a listener."""
    shell("topic", "create", "orders")
    nobody = f"127.0.0.1:{free_port()}"
    right, wrong = tmp_path / "right.properties", tmp_path / "wrong.properties"
    right.write_text(f"# of the shop\nbootstrap.servers = {broker.bootstrap}\nclient.id=shop\nacks=all\n")
    wrong.write_text(f"bootstrap.servers={nobody}\nsecurity.protocol=PLAINTEXT\n")
    astray = {"LEVADA_BOOTSTRAP": nobody}
    pair = f"bootstrap.servers={broker.bootstrap}"
    for words in (
        ["-b", broker.bootstrap, "-X", f"bootstrap.servers={nobody}"],
        ["-X", pair, "--config", str(wrong)],
        ["--config", str(right)],
        ["-F", str(right)],
    ):
        assert shell("topic", "list", "-q", *words, environment=astray).lines() == ["orders"], words
    assert shell("topic", "list", "--config", str(wrong)).code == 3
    created = ["topic", "create", "new", "-c", "retention.ms=1000", "--config", "segment.ms=1000"]
    assert shell(*created, "--command-config", str(right), environment=astray).code == 0


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("bootstrap.server=x", "no client setting bootstrap.server; did you mean bootstrap.servers?"),
        ("acsk=1", "no client setting acsk; did you mean acks?"),
        ("session.timout.ms=1", "no client setting session.timout.ms; did you mean session.timeout.ms?"),
        ("fetch.min.bytes=4294967296", "fetch.min.bytes=4294967296: the maximum is 2147483647"),
        ("acks=2", "acks=2: write 0, 1, all or -1"),
        ("request.timeout.ms=soon", "request.timeout.ms=soon: write a whole number, 1 or more"),
        ("ssl.truststore.location=x", "ssl.truststore.location: the client does not support TLS and SASL yet"),
        ("sasl.mechanism=PLAIN", "sasl.mechanism: the client does not support TLS and SASL yet"),
        (
            "enable.ssl.certificate.verification=false",
            "enable.ssl.certificate.verification: the client does not support TLS and SASL yet",
        ),
        ("security.protocol=SASL_SSL", "security.protocol: the client does not support TLS and SASL yet"),
    ],
)
def test_wrong_settings_are_refused(shell: Shell, tmp_path: Path, pair: str, message: str) -> None:
    refused = shell("topic", "list", "-X", pair)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"error: -X: {message}\n")
    file = tmp_path / "client.properties"
    file.write_text(pair)
    assert shell("consume", "orders", "--config", str(file)).err.startswith(f"error: {file}: {message}\n")


def test_the_properties_files_of_other_clients(shell: Shell, broker: BrokerThread, tmp_path: Path) -> None:
    consumer, producer, librdkafka = (tmp_path / name for name in ("consumer", "producer", "librdkafka"))
    consumer.write_text(CONSUMER_PROPERTIES.format(bootstrap=broker.bootstrap))
    producer.write_text(PRODUCER_PROPERTIES.format(bootstrap=broker.bootstrap))
    librdkafka.write_text(LIBRDKAFKA_PROPERTIES.format(bootstrap=broker.bootstrap))
    nobody = {"LEVADA_BOOTSTRAP": f"127.0.0.1:{free_port()}"}
    shell("topic", "create", "orders")
    sent = shell("produce", "orders", "--config", str(producer), stdin=b"a\nb\n", environment=nobody)
    assert (sent.code, sent.err) == (
        0, "warning: retries, key.serializer, schema.registry.url have no effect here\n"
    )  # fmt: skip
    sent = shell("produce", "orders", "-F", str(librdkafka), stdin=b"c\n", environment=nobody)
    assert (sent.code, sent.err) == (0, "warning: statistics.interval.ms has no effect here\n")
    for _ in range(2):  # it commits nothing
        read = shell("consume", "orders", "-e", "--config", str(consumer), environment=nobody)
        assert read.lines() == ["a", "b", "c"]
        assert read.err == (
            "warning: session.timeout.ms, heartbeat.interval.ms, max.poll.records, key.deserializer "
            "have no effect here\n"
        )
    assert shell("consume", "orders", "-e", "-F", str(consumer), "-X", "enable.auto.commit=true").code == 0
    assert shell("consume", "orders", "-e", "-F", str(consumer)).lines() == []
    listed = shell("topic", "list", "-q", "--config", str(producer), environment=nobody)
    assert listed.lines() == ["orders"]
    assert "warning: compression.type, acks, batch.size, linger.ms, retries," in listed.err


def test_a_pair_without_a_value_and_a_file_that_is_not_there(shell: Shell) -> None:
    assert shell("topic", "list", "-X", "acks").code == 2
    assert shell("topic", "list", "--config", "/no/such/file").code == 2


def test_the_timeout_of_requests(shell: Shell, broker: BrokerThread) -> None:
    broker.delay("metadata", 30)
    late = shell("topic", "list", "-X", "request.timeout.ms=300")
    assert late.code == 6
    assert "did not respond within 0.3 s" in late.err
    broker.delay("metadata", 30)
    late = shell("topic", "list", "-X", "request.timeout.ms=60000", "--timeout", "0.2")
    assert "did not respond within 0.2 s" in late.err


def test_a_setting_has_one_meaning() -> None:
    assert not UNUSED & {*PROPERTIES, *ALIASES}
    assert set(ALIASES.values()) <= set(PROPERTIES)


def test_the_page_names_every_setting() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text()
    assert [name for name in PROPERTIES if f"`{name}`" not in page] == []
