"""replay: what a lake has comes back into a topic in order, once, also if the replay is killed in between."""

import time
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
)
from pyspark.errors import AnalysisException
from tests.spark.support.lakes import DAY_MS, archive_once, fill, send_at

from levada.pipelines.errors import PipelineError
from levada.pipelines.lake.replay import is_file_gone, replay
from levada.pipelines.runs.queries import RunningPipeline
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def when(second: int) -> datetime:
    return datetime.fromtimestamp(DAY_MS / 1000 + second, UTC)


def numbers(broker: EmbeddedBroker, topic: str) -> dict[int, list[int]]:
    """By partition, what is there to read."""
    found: dict[int, list[int]] = {}
    for record in broker.records(topic):
        assert record.value is not None
        found.setdefault(record.partition, []).append(int(record.value[1:]))
    return found


def await_a_batch(running: RunningPipeline) -> None:
    """Until its first step is done, which no output shows."""
    while not running.progress().batches:
        assert running.is_active
        time.sleep(0.05)


def test_a_topic_comes_back_as_it_was(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    lake, topic, again = str(tmp_path / "lake"), broker.topic(partitions=3), broker.topic(partitions=3, retention_ms=-1)
    fill(broker, topic, 0, 300, first_ms=DAY_MS)
    archive_once(spark, broker, tmp_path / "lake", topic)

    def run(to: str) -> RunningPipeline:
        return replay(topic, lake, to, bootstrap=broker.bootstrap, spark=spark)

    assert run(again).wait(300)
    assert numbers(broker, again) == numbers(broker, topic)
    assert [record.timestamp for record in broker.records(again)] == [
        record.timestamp for record in broker.records(topic)
    ]
    done = run(again)  # has been done under this name
    assert done.wait(300) and done.progress().rows == 0
    assert sum(map(len, numbers(broker, again).values())) == 300
    with pytest.raises(PipelineError, match=f"started with other arguments .to was {again}.;"):
        run(topic).wait(300)


def test_a_time_range_at_a_chosen_speed(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Forty seconds of records, ten times as fast; stopped in between and gone on with."""
    lake, topic, again = str(tmp_path / "lake"), broker.topic(partitions=2), broker.topic(retention_ms=-1)
    fill(broker, topic, 0, 100, first_ms=DAY_MS)
    archive_once(spark, broker, tmp_path / "lake", topic, lake_format="delta")
    start, end = when(20), when(60)

    def run(wait: bool) -> int:
        running = replay(
            topic,
            lake,
            again,
            bootstrap=broker.bootstrap,
            start=start,
            end=end,
            speed=10,
            by_key=True,
            spark=spark,
        )
        if not wait:
            await_a_batch(running)
            running.stop()
        assert running.wait(300)
        return running.progress().batches

    run(wait=False)
    sent = numbers(broker, again)[0]
    assert 0 < len(sent) < 40
    assert run(wait=True) == 4  # ten seconds of records in each of the real ones
    sent = numbers(broker, again)[0]
    assert sorted(sent) == list(range(20, 60))
    for partition in numbers(broker, topic).values():
        assert [number for number in sent if number in partition] == [n for n in partition if 20 <= n < 60]
    slow = replay(
        topic,
        lake,
        broker.topic(retention_ms=-1),
        bootstrap=broker.bootstrap,
        speed=0.01,
        name="slow",
        spark=spark,
        by_key=True,
    )
    await_a_batch(slow)
    assert not slow.wait(3)  # the next record is due in a hundred seconds
    assert slow.progress().rows == 1
    slow.stop()


def test_a_topic_keeps_what_is_replayed_to_it_however_old(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """One that would delete it at once gets nothing, until an option keeps it; one that is made keeps it."""
    lake, topic, week = str(tmp_path / "lake"), broker.topic(), broker.topic(retention_ms=7 * 86_400_000)
    fill(broker, topic, 0, 3, first_ms=DAY_MS)
    archive_once(spark, broker, tmp_path / "lake", topic)

    def run(to: str, name: str = "replay") -> None:
        assert replay(topic, lake, to, bootstrap=broker.bootstrap, name=name, spark=spark).wait(300)

    with pytest.raises(PipelineError, match=f"{week} deletes .* older than 168 hours .* begin at 2025-10-09 08:53"):
        run(week)
    assert numbers(broker, week) == {}
    made, stamped = f"{topic}-again", broker.topic(message_timestamp_type="LogAppendTime")
    run(made)  # under the same name: nothing had begun
    run(stamped, "stamped")  # its records are of now
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ConfigResource.Type.TOPIC, week)
    resource.add_incremental_config(ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([resource])[resource].result(30)
    run(week, "week")
    assert numbers(broker, week) == numbers(broker, made) == numbers(broker, stamped) == {0: [0, 1, 2]}
    (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, made)]).values()
    entry = described.result(30)["retention.ms"]
    assert (entry.value, entry.source) == ("-1", ConfigSource.DYNAMIC_TOPIC_CONFIG.value)


def test_a_replay_that_goes_on_finds_its_topic_or_says_so(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """At another speed, too; but not to a topic that lost what was sent, nor to one that would lose it soon."""
    lake, topic = str(tmp_path / "lake"), broker.topic()
    fill(broker, topic, 0, 30, first_ms=DAY_MS)
    archive_once(spark, broker, tmp_path / "lake", topic)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def run(to: str, speed: float | None) -> RunningPipeline:
        return replay(topic, lake, to, bootstrap=broker.bootstrap, speed=speed, name=to, spark=spark)

    def begin(to: str) -> None:
        slow = run(to, 0.01)
        await_a_batch(slow)
        slow.stop()
        assert 0 < len(numbers(broker, to)[0]) < 30

    begin("faster")
    assert run("faster", None).wait(300) and numbers(broker, "faster") == {0: list(range(30))}
    admin.delete_topics(["faster"])["faster"].result(30)
    assert run("faster", None).wait(300)  # there is nothing left to send
    assert run("whole", None).wait(300)
    with pytest.raises(PipelineError, match="started without a speed"):
        run("whole", 10).wait(300)
    begin("gone")
    admin.delete_topics(["gone"])["gone"].result(30)
    for _ in range(2):  # it does not make it again
        with pytest.raises(PipelineError, match="topic gone was deleted since this replay started"):
            run("gone", None).wait(300)
    admin.create_topics([NewTopic("gone", 1, config={"retention.ms": "-1"})])["gone"].result(30)
    with pytest.raises(PipelineError, match="topic gone was deleted since this replay started"):
        run("gone", None).wait(300)
    begin("short")
    resource = ConfigResource(ConfigResource.Type.TOPIC, "short")
    resource.add_incremental_config(ConfigEntry("retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([resource])[resource].result(30)
    with pytest.raises(PipelineError, match="older than 1 hours"):
        run("short", None).wait(300)


def test_a_topic_with_too_few_partitions_is_refused_unless_by_key(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path
) -> None:
    lake, topic, small = str(tmp_path / "lake"), broker.topic(partitions=3), broker.topic(partitions=2)
    fill(broker, topic, 0, 30)
    archive_once(spark, broker, tmp_path / "lake", topic)
    with pytest.raises(PipelineError, match=f"of 3 partitions, and topic {small} has 2: .*--by-key"):
        replay(topic, lake, small, bootstrap=broker.bootstrap, spark=spark).wait(300)
    options: dict[str, Any] = {"kafka.compression.type": "zstd"}
    by_key = replay(topic, lake, small, bootstrap=broker.bootstrap, by_key=True, spark=spark, **options)
    assert by_key.wait(300)
    assert sorted(chain(*numbers(broker, small).values())) == list(range(30))


def test_how_old_records_are_is_asked_of_them(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    """And not of the spans of time they are sent in, which at this speed are days."""
    lake, topic, hour = str(tmp_path / "lake"), broker.topic(), broker.topic(retention_ms=3_600_000)
    fill(broker, topic, 0, 3)
    archive_once(spark, broker, tmp_path / "lake", topic)
    assert replay(topic, lake, hour, bootstrap=broker.bootstrap, speed=1e6, spark=spark).wait(300)
    assert numbers(broker, hour) == {0: [0, 1, 2]}


def test_what_is_not_in_the_lake_is_reported(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    lake, topic = str(tmp_path / "lake"), broker.topic()

    def run(name: str) -> None:
        replay("orders", lake, "again", bootstrap=broker.bootstrap, name=name, spark=spark).wait(300)

    with pytest.raises(PipelineError, match="there is no lake at"):
        run("early")
    fill(broker, topic, 0, 1)
    archive_once(spark, broker, tmp_path / "lake", topic)
    with pytest.raises(PipelineError, match="has no records of orders"):
        run("late")
    late = replay(topic, lake, "again", bootstrap=broker.bootstrap, end=when(0), spark=spark)
    with pytest.raises(PipelineError, match=f"has no records of {topic} in this time range"):
        late.wait(300)
    with pytest.raises(ValueError, match="speed"):
        replay("orders", lake, "again", speed=0, spark=spark)


def test_files_that_were_joined_meanwhile_are_known_by_spark_s_error(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Read again as they are now; any other error is one."""
    folder = tmp_path / "files"
    spark.range(10).selectExpr("string(id) value").write.parquet(str(folder))
    rows = spark.read.parquet(str(folder))

    def failure(topic: str) -> Exception:
        writer = rows.write.format("levada").mode("append").option("topic", topic)
        with pytest.raises(Exception, match=r"\S") as raised:
            writer.option("kafka.bootstrap.servers", broker.bootstrap).save()
        return raised.value

    assert not is_file_gone(failure("no such name"))
    for file in folder.glob("*.parquet"):
        file.unlink()
    assert is_file_gone(failure(broker.topic()))
    with pytest.raises(AnalysisException) as raised:
        spark.read.parquet(str(folder / "gone.parquet"))
    assert is_file_gone(raised.value)


def test_records_come_back_with_any_timestamp(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    """None, or one of the far future, which the topic that a replay creates must allow."""
    lake, far_ms = str(tmp_path / "lake"), 4_102_444_800_000
    topic, narrow = broker.topic(message_timestamp_after_max_ms=2**63 - 1), broker.topic(retention_ms=-1)
    times = [-1, DAY_MS, far_ms, -1, 9_223_372_036_854_775, -1]
    send_at(broker, topic, *times)
    archive_once(spark, broker, tmp_path / "lake", topic)

    def run(to: str, **options: Any) -> None:
        assert replay(topic, lake, to, bootstrap=broker.bootstrap, name=to, spark=spark, **options).wait(300)

    for to, options in ((f"{topic}-again", {}), (f"{topic}-by-time", {"speed": 1e13})):
        run(to, **options)
        assert [time_ms for _, time_ms in sorted(timestamps(broker, to))] == times
    with pytest.raises(PipelineError, match=rf"{narrow} refuses timestamps after now .*message.timestamp.after.max.ms"):
        run(narrow)
    assert not timestamps(broker, narrow)


def test_records_from_before_1970_are_refused_before_any_is_sent(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """A real Kafka could not compact a topic with them."""
    lake, topic = str(tmp_path / "lake"), broker.topic()
    send_at(broker, topic, DAY_MS, -2, DAY_MS)
    archive_once(spark, broker, tmp_path / "lake", topic)

    def run(**options: Any) -> None:
        assert replay(topic, lake, f"{topic}-again", bootstrap=broker.bootstrap, spark=spark, **options).wait(300)

    with pytest.raises(
        PipelineError, match=r"begin at 1969-12-31 23:59 \(UTC\).*Nothing was sent; .*--from 1970-01-01"
    ):
        run()
    with pytest.raises(ValueError, match="no such topic"):
        broker.records(f"{topic}-again")
    run(start=datetime(1970, 1, 1, tzinfo=UTC))
    assert [time_ms for _, time_ms in timestamps(broker, f"{topic}-again")] == [DAY_MS] * 2


def timestamps(broker: EmbeddedBroker, topic: str) -> list[tuple[int, int]]:
    return [(record.offset, record.timestamp) for record in broker.records(topic)]
