"""The demo's part on Spark: the pipeline that processes the stream, and its results at the end."""

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

GROUP = "activity"  # the group in which the pipeline commits its progress
RESULTS = ("activity-counts", "activity-pages", "activity-sessions")
PIPELINE = shlex.split("--window '5 seconds' --late '2 seconds' --gap '5 seconds' --every '1 second' --top 3")
PIPELINE += ["--option", f"group={GROUP}"]
SECONDS = float(os.environ.get("DEMO_SECONDS", "15"))
CATCH_UP_TIMEOUT_S = 300  # on a busy machine
LAST_BATCH_S = 4 * SECONDS  # a short stream may close no window
# Spark is over before the optimizing compiler and the parallel collector have paid for their threads.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
NOTICE_S = 5  # until the notice that the first batch takes long
QUIET: dict[str, str | int | float | bool] = {
    "log.connection.close": False,
    "log_level": 4,
}  # librdkafka logs problems only


class Analysis:
    """The process of the pipeline, started with `levada pipeline run`."""

    def __init__(self, bootstrap: str) -> None:
        self.home = tempfile.mkdtemp(prefix="levada-demo-pipelines-")
        self._bootstrap = bootstrap
        self._log = open(os.path.join(self.home, "spark.log"), "w+")  # noqa: SIM115 (closed in `end`)
        self._process = self._levada("run", "activity", "--home", self.home, *PIPELINE)

    def _levada(self, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "levada", "pipeline", *arguments, "-b", self._bootstrap]
        environment = {"JDK_JAVA_OPTIONS": JAVA_OPTIONS} | os.environ
        # A process group of its own: Ctrl-C is for the demo, which stops the pipeline.
        return subprocess.Popen(
            command, stderr=self._log, text=True, start_new_session=True, env=environment, **options
        )

    def catch_up(self, ends: dict[TopicPartition, int], console: Console) -> bool:
        """Wait until the group of the pipeline has committed these offsets; return whether it has."""
        deadline, notice_at = time.monotonic() + CATCH_UP_TIMEOUT_S, time.monotonic() + NOTICE_S
        consumer = Consumer(QUIET | {"bootstrap.servers": self._bootstrap, "group.id": GROUP})
        done = False
        while not done and time.monotonic() < deadline and self._process.poll() is None:
            time.sleep(0.2)
            if time.monotonic() > notice_at:
                console.print("(the first batch takes longest: Spark compiles, and starts its workers)")
                notice_at = deadline
            done = all(part.offset >= ends[part] for part in consumer.committed(list(ends), timeout=10))
        until = time.monotonic() + LAST_BATCH_S
        while done and not self._has_results(consumer) and time.monotonic() < until:
            time.sleep(0.2)
        consumer.close()
        return done

    def _has_results(self, consumer: Consumer) -> bool:
        """Whether all result topics have records: the micro-batch after the last events writes the closed windows."""
        return all(consumer.get_watermark_offsets(TopicPartition(topic, 0))[1] > 0 for topic in RESULTS)

    def stop(self) -> int:
        """Stop the pipeline as `levada pipeline stop` does; return the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def results(self) -> Iterator[tuple[str, int, str]]:
        """Each result topic, the number of its records, and the newest one."""
        settings = {"group.id": "demo-results", "enable.partition.eof": True}
        consumer = Consumer(QUIET | {"bootstrap.servers": self._bootstrap} | settings)
        for topic in RESULTS:
            consumer.assign([TopicPartition(topic, 0, 0)])
            newest, count = "", 0
            while (message := consumer.poll(10)) is not None and message.error() is None:
                newest, count = (message.value() or b"").decode(), count + 1
            yield topic, count, newest
        consumer.close()

    def report(self, chart: str, page: str) -> str:
        """Run the report and draw the chart as an image and as a page; return the tables."""
        files = ("--chart", chart, "--chart", page)
        with self._levada("report", "activity", *files, stdout=subprocess.PIPE) as process:
            tables, _ = process.communicate()
        if process.returncode != 0:
            raise SystemExit(f"the report failed:\n{self.log_tail()}")
        return tables

    def log_tail(self) -> str:
        """The end of the log."""
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
    """Show the results of Spark; return 0 if it has counted every event."""
    console.print("\nThe activity pipeline on Spark reads what is left ...")
    if not analysis.catch_up(ends, console) or analysis.stop() != 0:
        console.print(f"the pipeline failed:\n{analysis.log_tail()}", markup=False)
        return 1
    console.print("\nWritten exactly once while the stream ran, by `levada pipeline run activity`:\n")
    for topic, count, newest in analysis.results():
        console.print(f"{topic:17}  {count:5,} records, such as\n  {newest}", markup=False, soft_wrap=True)
    console.print("\nAll of it counted at once, by `levada pipeline report activity`:\n")
    chart, page = (os.path.join("levada-demo", name) for name in ("activity.svg", "activity.html"))
    tables = analysis.report(chart, page)
    console.print(tables, markup=False, soft_wrap=True)
    console.print(f"chart: {chart}", soft_wrap=True)
    console.print(f"page: {page} (to open in a browser and zoom)", soft_wrap=True)
    sent = sum(ends.values())
    kinds = tables.split("\n\n")[0].splitlines()[2:]  # after the title and the column names
    counted = sum(int(line.split()[1].replace(",", "")) for line in kinds)
    verdict = "nothing lost" if counted == sent else "SOMETHING IS MISSING"
    console.print(f"{sent:,} events sent, {counted:,} counted by Spark: {verdict}.", style="bold")
    return int(counted != sent)
