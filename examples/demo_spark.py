"""The demo's part on Spark: the pipeline that follows the stream, and what is told of it at the end."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from rich.console import Console

GROUP = "activity"  # under which the pipeline tells how far it is
RESULTS = ("activity-counts", "activity-pages", "activity-sessions")
PIPELINE = shlex.split("--window '5 seconds' --late '2 seconds' --gap '5 seconds' --every '1 second' --top 3")
PIPELINE += ["--option", f"group={GROUP}"]
PATIENCE_S = 300  # with Spark, on a machine that has much else to do
LAST_BATCH_S = 15
SILENCE_S = 5  # after which it is said what takes so long
QUIET: dict[str, str | int | float | bool] = {
    "log.connection.close": False,
    "log_level": 4,
}  # librdkafka tells of problems only


class Analysis:
    """The pipeline that follows the stream, in a process of its own, as a user runs it."""

    def __init__(self, bootstrap: str) -> None:
        self.home = tempfile.mkdtemp(prefix="levada-demo-pipelines-")
        self._bootstrap = bootstrap
        self._log = open(os.path.join(self.home, "spark.log"), "w+")  # noqa: SIM115 (closed in `end`)
        self._process = self._levada("run", "activity", "--home", self.home, *PIPELINE)

    def _levada(self, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "levada", "pipeline", *arguments, "-b", self._bootstrap]
        # A session of its own: Ctrl-C is for the demo, which ends the pipeline itself.
        return subprocess.Popen(command, stderr=self._log, text=True, start_new_session=True, **options)

    def catch_up(self, ends: dict[TopicPartition, int], console: Console) -> bool:
        """Wait until the pipeline is done with all before these offsets, as its group tells; whether it is."""
        deadline, silent = time.monotonic() + PATIENCE_S, time.monotonic() + SILENCE_S
        consumer = Consumer(QUIET | {"bootstrap.servers": self._bootstrap, "group.id": GROUP})
        done = False
        while not done and time.monotonic() < deadline and self._process.poll() is None:
            time.sleep(0.2)
            if time.monotonic() > silent:
                console.print("(the first batch takes longest: Spark compiles, and starts its workers)")
                silent = deadline
            done = all(place.offset >= ends[place] for place in consumer.committed(list(ends), timeout=10))
        until = time.monotonic() + LAST_BATCH_S
        while done and not self._has_results(consumer) and time.monotonic() < until:
            time.sleep(0.2)
        consumer.close()
        return done

    def _has_results(self, consumer: Consumer) -> bool:
        """What the last events have closed is written by the micro-batch after theirs."""
        return all(consumer.get_watermark_offsets(TopicPartition(topic, 0))[1] > 0 for topic in RESULTS)

    def stop(self) -> int:
        """As `levada pipeline stop` does; the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def results(self) -> Iterator[tuple[str, int, str]]:
        """Each topic of results, how many records it has, and one of the last."""
        told = {"group.id": "demo-results", "enable.partition.eof": True}
        consumer = Consumer(QUIET | {"bootstrap.servers": self._bootstrap} | told)
        for topic in RESULTS:
            consumer.assign([TopicPartition(topic, 0, 0)])
            newest, count = "", 0
            while (message := consumer.poll(10)) is not None and message.error() is None:
                newest, count = (message.value() or b"").decode(), count + 1
            yield topic, count, newest
        consumer.close()

    def report(self, chart: str) -> str:
        """All events counted at once; the tables, after the chart is drawn."""
        with self._levada("report", "activity", "--chart", chart, stdout=subprocess.PIPE) as process:
            tables, _ = process.communicate()
        if process.returncode != 0:
            raise SystemExit(f"the report failed:\n{self.why()}")
        return tables

    def why(self) -> str:
        """The end of what Spark said."""
        self._log.flush()
        self._log.seek(0)
        return "".join(self._log.readlines()[-30:])

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()
        shutil.rmtree(self.home, ignore_errors=True)


def conclude(analysis: Analysis, ends: dict[TopicPartition, int], console: Console) -> int:
    """What Spark made of it; 0 if it has seen every event."""
    console.print("\nThe activity pipeline on Spark reads what is left ...")
    if not analysis.catch_up(ends, console) or analysis.stop() != 0:
        console.print(f"the pipeline failed:\n{analysis.why()}", markup=False)
        return 1
    console.print("\nWritten exactly once while the stream ran, by `levada pipeline run activity`:\n")
    for topic, count, newest in analysis.results():
        console.print(f"{topic:17}  {count:5,} records, such as\n  {newest}", markup=False, soft_wrap=True)
    console.print("\nAll of it counted at once, by `levada pipeline report activity`:\n")
    chart = os.path.join("levada-demo", "activity.svg")
    tables = analysis.report(chart)
    console.print(tables, markup=False, soft_wrap=True)
    console.print(f"chart: {chart}", soft_wrap=True)
    sent = sum(ends.values())
    kinds = tables.split("\n\n")[0].splitlines()[2:]  # after the title and the names of the columns
    counted = sum(int(line.split()[1].replace(",", "")) for line in kinds)
    verdict = "nothing lost" if counted == sent else "SOMETHING IS MISSING"
    console.print(f"{sent:,} events sent, {counted:,} counted by Spark: {verdict}.", style="bold")
    return int(counted != sent)
