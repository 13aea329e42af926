"""Options: stock names, any case, errors that name the option and what is valid."""

import os
from pathlib import Path

import pytest

from levada.model import TopicPartition
from levada.spark.errors import OptionError
from levada.spark.options import ConnectionOptions, Option, declared, duration, size, timestamp
from levada.spark.read.offsets import from_json, resolve_offsets, to_json
from levada.spark.read.options import ReadOptions, for_batch, for_stream, read_options

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
DEEP = '{"a":' * 100_000
HERE = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def options(**given: str) -> ReadOptions:
    return read_options(HERE | {"subscribe": "t"} | {name.replace("__", "."): text for name, text in given.items()})


def test_keys_come_in_lower_case_and_both_names_of_the_servers_do() -> None:
    found = read_options({"bootstrap.servers": "h:1", "subscribepattern": "a.*", "startingoffsets": "Earliest"})
    assert (found.bootstrap, found.subscribe_pattern, found.starting_offsets) == ("h:1", "a.*", "earliest")


def test_defaults_are_those_of_the_documentation() -> None:
    found = options()
    assert found.include_headers and found.fail_on_data_loss and found.read_committed
    assert found.where is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingofset": "latest"}, "there is no option startingofset; did you mean startingOffsets?"),
        ({"startingOffsets": "newest"}, "option startingOffsets: write earliest, latest or"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "-3 for t-0 is neither an offset nor"),
        ({"startingOffsets": '{"t": 3}'}, "option startingOffsets: write"),
        ({"endingOffsets": "earliest"}, "option endingOffsets: write latest or"),
        ({"failOnDataLoss": "yes"}, "option failOnDataLoss: write true or false; found 'yes'"),
        ({"minPartitions": "0"}, "option minPartitions: write a whole number, 1 or more"),
        ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay: write a duration"),
        ({"maxBytesPerTrigger": "big"}, "option maxBytesPerTrigger: write a size"),
        ({"subscribePattern": "("}, "subscribePattern: this is not a regular expression"),
        ({"assign": '{"t": [0]}'}, "subscribe and assign exclude each other"),
        ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        (
            {"kafka.security.protocol": "SSL"},
            "option kafka.security.protocol: the client supports PLAINTEXT only",
        ),
        ({"kafka.ssl.truststore.location": "/x"}, "does not support TLS or SASL yet"),
        ({"kafka.isolation.level": "any"}, "option isolation: write read_committed or read_uncommitted"),
        ({"valueFormat": "xml"}, "option valueFormat: write json or avro"),
        ({"valueFormat": "avro"}, "needs valueSchema"),
        ({"deadLetterTopic": "dead"}, "deadLetterTopic needs valueFormat"),
        (
            {"valueFormat": "json", "deadLetterTopic": "t"},
            "deadLetterTopic: t is one of the topics that the query reads",
        ),
        ({"header": "novalue"}, "option header: write name=value"),
        ({"fromTime": "yesterday"}, "option fromTime: write milliseconds since 1970"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger is greater"),
        ({"subscribe": ","}, "option subscribe: write at least one name"),
        ({"subscribe": "x" * 40_000}, "option subscribe: the maximum is 32767 bytes"),
        ({"kafka.client.id": "é" * 20_000}, "option kafka.client.id: the maximum is 32767 bytes"),
        ({"kafka.fetch.max.wait.ms": "2147483648"}, "kafka.fetch.max.wait.ms: the maximum is 2147483647"),
        ({"kafka.request.timeout.ms": "9" * 5_000}, "option kafka.request.timeout.ms: write a whole number"),
        ({"kafka.fetch.max.bytes": "2g"}, "option kafka.fetch.max.bytes: the maximum is 2147483647 bytes"),
        (
            {"maxOffsetsPerTrigger": str(2**63)},
            "option maxOffsetsPerTrigger: the maximum is 9223372036854775807",
        ),
        ({"maxTriggerDelay": "9" * 400 + "d"}, "option maxTriggerDelay: write a duration"),
        ({"valueSkipBytes": "99999999999"}, "option valueSkipBytes: the maximum is 2147483647"),
        ({"startingTimestamp": str(2**63)}, "option startingTimestamp: write milliseconds since 1970"),
        ({"fromTime": "-" + "9" * 20}, "option fromTime: write milliseconds since 1970"),
        ({"startingOffsetsByTimestamp": '{"t": {"0": 9223372036854775808}}'}, "does not fit into 64 bits"),
        ({"startingOffsets": DEEP}, 'option startingOffsets: it is too deep or too large; found \'{"a":'),
        ({"header": DEEP}, "option header: it is too deep"),
        ({"assign": DEEP}, "option assign: it is too deep"),
        (
            {"subscribePattern": "(?=a{9999999999999999999})"},
            "option subscribePattern: it is too deep or too",
        ),
        (
            {"valueFormat": "json", "valueSchema": "a foat"},
            "valueSchema: foat is not a type; did you mean float?",
        ),
    ],
)
def test_a_mistake_is_reported_with_the_name_of_the_option(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as failure:
        read_options(HERE | {"subscribe": "t"} | given)
    assert message in str(failure.value)
    assert len(str(failure.value)) < 500


def test_topics_and_servers_must_be_given() -> None:
    with pytest.raises(OptionError, match="no topics are given"):
        read_options(HERE)
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is missing"):
        read_options({"subscribe": "t"})
    with pytest.raises(OptionError, match="not an address"):
        read_options({"subscribe": "t", "kafka.bootstrap.servers": "host:x"})


def test_a_setting_without_effect_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"kafka\.session\.timeout\.ms has no effect"):
        options(kafka__session__timeout__ms="5")


def test_what_is_for_a_stream_is_refused_in_a_batch_and_the_other_way_round() -> None:
    with pytest.raises(OptionError, match=r"group is for a stream and has no meaning for spark\.read"):
        for_batch(options(group="g"))
    with pytest.warns(UserWarning, match="maxOffsetsPerTrigger is for a stream and has no effect"):
        for_batch(options(maxOffsetsPerTrigger="5"))
    with pytest.raises(OptionError, match="endingOffsets is for a batch"):
        for_stream(options(endingOffsets="latest"))
    with pytest.raises(OptionError, match="reads nothing"):
        for_batch(options(startingOffsets="latest"))


def test_the_names_of_a_group_are_that_of_the_client() -> None:
    """There are no consumers in a group; brokers see these names as the stock connector's users know them."""
    assert options(groupIdPrefix="team-a").client_options()["client_id"] == "team-a"
    assert options(kafka__group__id="team-a").fetch_options.client_id == "team-a"
    assert options(kafka__client__id="mine", groupIdPrefix="team-a").client_id == "mine"


def test_units() -> None:
    assert (size("5"), size("2k"), size("64M"), size("1gb")) == (5, 2048, 64 << 20, 1 << 30)
    assert (duration("500ms"), duration("15m"), duration("2h")) == (500, 900_000, 7_200_000)
    assert timestamp("1970-01-01T00:00:01Z") == timestamp("1970-01-01 00:00:01") == timestamp("1000") == 1000


@pytest.mark.parametrize("schema", ["a int, b", "a foo", "a struct<b: foo>", "a array<foo>", "a map<int, int"])
def test_columns_that_spark_could_not_read_are_reported(schema: str) -> None:
    with pytest.raises(OptionError, match=r"option valueSchema: (b is not a type|foo is not a type|each < needs a >)"):
        options(valueFormat="json", valueSchema=schema)


@pytest.mark.parametrize(
    "schema",
    [
        "a STRING NOT NULL, b: decimal(8, 2), c timestamp_ntz",
        "a struct<b: array<map<string, int>>, c double>, d bigint",
        "a interval day to second, `b c` date COMMENT 'x'",
        "a varchar(10) COLLATE UTF8_BINARY",
        "",
        "struct struct<struct struct<a int>>,",
    ],
)
def test_columns_are_left_to_spark_otherwise(schema: str) -> None:
    assert options(valueFormat="json", valueSchema=f"x int, {schema}").value_schema == f"x int, {schema}".strip()


def test_times_are_exact() -> None:
    times = [f"2026-11-15T12:00:10.{number:03}Z" for number in range(1_000)]
    assert [timestamp(time) for time in times] == [1_794_744_010_000 + number for number in range(1_000)]
    assert timestamp("1969-12-31T23:59:59.999Z") == -1


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("(a+)+c", "aac", "a" * 60),
        ("orders|payments.*", "payments-1", "orders-1"),
        (r"(?!dead)\w+", "letters", "dead_letters"),
        (r"(\w)\1", "aa", "ab"),
    ],
)
def test_patterns_match_whole_names_if_an_option_says_so(pattern: str, yes: str, no: str) -> None:
    """The first would take longer than anybody lives if it were tried way by way."""
    given = HERE | {"subscribePattern": pattern, "subscribePatternFullMatch": "true"}
    matches = read_options(given).topic_matcher
    assert matches(yes) and not matches(no)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("(a+)+c", "x-aac-x", "a" * 60),
        ("orders|payments", "payments-1", "order"),
        ("^orders$", "orders", "orders-1"),
        (r"(\w)\1", "xaay", "ab"),
    ],
)
def test_patterns_match_parts_of_names(pattern: str, yes: str, no: str) -> None:
    matches = read_options(HERE | {"subscribePattern": pattern}).topic_matcher
    assert matches(yes) and not matches(no)


def test_filters_are_what_the_decoder_takes() -> None:
    found = options(key="k", header='{"a": "1"}', fromTime="5", toTime="9").where
    assert found == (b"k", (("a", b"1"),), 5, 9)


def test_positions_are_the_stock_connectors_json() -> None:
    text = {"b": {"0": 1}, "a": {"1": 5, "0": 3}}
    assert str(to_json(from_json(text))) == "{'a': {'0': 3, '1': 5}, 'b': {'0': 1}}"


def test_written_offsets_must_name_what_is_read() -> None:
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    earliest, latest = {zero: 7, one: 0}, {zero: 8, one: 9}
    assert resolve_offsets({zero: -2, one: -1}, earliest, latest, "x") == {zero: 7, one: 9}
    with pytest.raises(OptionError, match=r"option x .* nothing for t-1"):
        resolve_offsets({zero: 1}, earliest, latest, "x")
    with pytest.raises(OptionError, match="no partition t-2 is read"):
        resolve_offsets({zero: 1, one: 1, TopicPartition("t", 2): 1}, earliest, latest, "x")


def row_of(one: Option) -> str:
    names = ", ".join(f"`{name}`" for name in (one.name, *one.aliases))
    default = f"`{one.default}`" if one.default and " " not in one.default else one.default
    return f"| {names} | {default} | {one.doc} |"


def test_the_page_names_every_option() -> None:
    """UPDATE_REFERENCE=1 writes the table from the declarations."""
    connection, options = declared(ConnectionOptions), declared(ReadOptions)
    lines = [row_of(one) for name, one in options.items() if name not in connection]
    lines += [row_of(one) for one in connection.values()]
    table = "\n".join(["| option | default | |", "|---|---|---|", *lines, ""])
    head, _, found = PAGE.read_text().partition("| option | default | |")
    if os.environ.get("UPDATE_REFERENCE"):
        PAGE.write_text(head + table)
    else:
        assert "| option | default | |" + found == table
