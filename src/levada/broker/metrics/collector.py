"""Reads the counters of a broker as metrics in Prometheus' text format.

The hot path counts in plain integers, which are read at each scrape. Names are those of Kafka's JMX exporter, so that
existing dashboards work. The text is written here, a metric at a time: with thousands of partitions prometheus-client
would block the event loop for a tenth of a second per scrape.
"""

import os
import resource
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from levada.broker.broker import Broker, traffic
from levada.broker.metrics.family import COUNTER, GAUGE, HISTOGRAM, Family
from levada.broker.metrics.replication import replication_families
from levada.broker.metrics.requests import BOUNDS_MS
from levada.core.cluster.topic_names import is_internal
from levada.core.groups.classic.group import ClassicGroup, State
from levada.core.groups.consumer.group import ConsumerGroup, GroupState
from levada.errors import ErrorCode
from levada.model import TopicPartitionKey
from levada.net.listener import Listener
from levada.wire.internal.transaction_records import Status
from levada.wire.schema.versions import APIS

TRAFFIC: Final = {
    "messagesin": "Records produced",
    "bytesin": "Bytes produced",
    "bytesout": "Bytes fetched",
}
IDLE_WINDOW_S: Final = 60.0
IDLE_READING_S: Final = 5.0
GROUP_STATES: Final = {ClassicGroup.kind: State, ConsumerGroup.kind: GroupState}


class IdleRatio:
    """The part of the last minute in which the event loop was idle: slept, or spun in busy polling.

    `busy` is the CPU time of its thread without spinning, so the loop itself counts nothing.
    """

    __slots__ = ("_busy", "_clock", "_readings")

    def __init__(self, clock: Callable[[], float], busy: Callable[[], float]) -> None:
        self._clock = clock
        self._busy = busy
        self._readings = deque([(clock(), busy())])  # at least IDLE_READING_S apart

    def value(self) -> float:
        """Between 0 (busy) and 1."""
        now, busy = self._clock(), self._busy()
        readings = self._readings
        while len(readings) > 1 and now - readings[1][0] >= IDLE_WINDOW_S:
            readings.popleft()
        since, before = readings[0]
        if now - readings[-1][0] >= IDLE_READING_S:
            readings.append((now, busy))
        return max(0.0, min(1.0, 1 - (busy - before) / (now - since))) if now > since else 1.0


class Collector:
    """Reads the counters of a broker as metric families."""

    def __init__(self, broker: Broker, listeners: Sequence[Listener], idle_ratio: IdleRatio) -> None:
        self._broker = broker
        self._listeners = listeners
        self._idle_ratio = idle_ratio
        config = broker.config
        self._lag_series_max = config.levada_metrics_consumer_lag_series_max
        self._includes: Callable[[str], bool] = lambda topic: (
            config.levada_metrics_internal_topics or not (is_internal(topic))
        )

    def collect(self) -> Iterator[Family]:
        """All metric families, one at a time."""
        yield from self._topics()
        yield from self._requests()
        yield from replication_families(self._broker, self._includes)
        yield from self._logs()
        yield from self._log_dirs()
        yield from self._cleaner()
        yield from self._scrub()
        yield from self._groups()
        yield from self._lags()
        yield from self._transactions()
        yield from self._node()
        yield from self._connections()
        yield from _process()

    def _topics(self) -> Iterator[Family]:
        """By topic, and without a label the totals of all topics, deleted and internal ones included."""
        totals = Counter(self._broker.deleted_traffic)
        counts: dict[str, Counter[str]] = {name: Counter() for name in TRAFFIC}
        for partition in self._broker.partitions.values():
            for name, count in traffic(partition).items():
                totals[name] += count
                counts[name][partition.topic] += count
        for name, by_topic in counts.items():
            samples = [(f'{{topic="{topic}"}}', count) for topic, count in by_topic.items() if self._includes(topic)]
            samples.append(("", totals[name]))
            yield Family(f"kafka_server_brokertopicmetrics_{name}_total", COUNTER, TRAFFIC[name], samples)

    def _requests(self) -> Iterator[Family]:
        prefix, metrics = "kafka_network_requestmetrics", self._broker.request_metrics
        metrics.fold()
        requests: list[tuple[str, float]] = []
        times: list[tuple[str, float]] = []
        for api_key, histogram in metrics.times.items():
            count = sum(histogram.buckets)
            if count:
                label = f'request="{_request_name(api_key)}"'
                requests.append((f"{{{label}}}", count))
                for bound, below in zip((*BOUNDS_MS, "+Inf"), accumulate(histogram.buckets), strict=True):
                    times.append((f'_bucket{{{label},le="{bound}"}}', below))
                times += [(f"_sum{{{label}}}", histogram.total_s * 1_000), (f"_count{{{label}}}", count)]
        yield Family(f"{prefix}_requests_total", COUNTER, "Requests answered, by API", requests)
        description = "Milliseconds from dispatch to response, by API"
        yield Family(f"{prefix}_totaltimems", HISTOGRAM, description, times)
        errors = [
            (f'{{request="{_request_name(api_key)}",error="{ErrorCode(code).name}"}}', count)
            for (api_key, code), count in metrics.errors.items()
        ]
        yield Family(f"{prefix}_errors_total", COUNTER, "Errors in responses, by API and error code", errors)
        idle = [("", self._idle_ratio.value())]
        name = "kafka_network_socketserver_networkprocessoravgidlepercent"
        yield Family(name, GAUGE, "Idle part of the event loop's time in the last minute, 0 to 1", idle)

    def _logs(self) -> Iterator[Family]:
        partitions = [
            (f'{{topic="{partition.topic}",partition="{partition.index}"}}', partition.log)
            for partition in self._broker.partitions.values()
            if self._includes(partition.topic)
        ]
        sizes = [(labels, log.size_bytes) for labels, log in partitions]
        yield Family("kafka_log_log_size", GAUGE, "Bytes of a partition's segments", sizes)
        starts = [(labels, log.log_start_offset) for labels, log in partitions]
        yield Family("kafka_log_log_logstartoffset", GAUGE, "First offset", starts)
        ends = [(labels, log.log_end_offset) for labels, log in partitions]
        yield Family("kafka_log_log_logendoffset", GAUGE, "Offset of the next record", ends)

    def _log_dirs(self) -> Iterator[Family]:
        log_dirs = self._broker.log_dirs
        remaining = [(f'{{dir="{_escaped(path)}"}}', count) for path, count in log_dirs.remaining_logs().items()]
        name = "kafka_log_logmanager_remaininglogstorecover"
        yield Family(name, GAUGE, "Logs that are not open yet since the start, by log dir", remaining)
        checkpoints = log_dirs.damaged_checkpoints().items()
        damaged = [(f'{{dir="{_escaped(path)}"}}', len(paths)) for path, paths in checkpoints]
        name = "levada_log_dir_damaged_checkpoints"
        yield Family(name, GAUGE, "Checkpoints that were missing or corrupt at the start", damaged)

    def _cleaner(self) -> Iterator[Family]:
        metrics = self._broker.cleaner_metrics
        dirty = [("", metrics.dirty_ratio_max * 100)]
        yield Family("kafka_log_logcleaner_max_dirty_percent", GAUGE, "Of the dirtiest compacted log", dirty)
        uncleanable = [("", metrics.uncleanable)]
        name = "kafka_log_logcleanermanager_uncleanable_partitions_count"
        yield Family(name, GAUGE, "Logs that could not be compacted", uncleanable)
        counts = (
            ("cleanings", metrics.cleanings, "Logs compacted"),
            ("read_bytes", metrics.bytes_read, "Bytes read by compaction"),
            ("written_bytes", metrics.bytes_written, "Bytes written by compaction"),
        )
        for what, count, description in counts:
            yield Family(f"levada_log_cleaner_{what}_total", COUNTER, description, [("", count)])

    def _scrub(self) -> Iterator[Family]:
        metrics = self._broker.scrub_metrics
        counts = (
            ("segments", metrics.segments, "Segments read by the scrub"),
            ("read_bytes", metrics.bytes_read, "Bytes read by the scrub"),
            ("corrupt_segments", metrics.corrupt, "Segments in which the scrub found a corrupt batch"),
        )
        for what, count, description in counts:
            yield Family(f"levada_log_scrub_{what}_total", COUNTER, description, [("", count)])

    def _groups(self) -> Iterator[Family]:
        states = Counter({(kind, state): 0 for kind, known in GROUP_STATES.items() for state in known})
        members, offsets = Counter(dict.fromkeys(GROUP_STATES, 0)), 0
        for shard in self._broker.groups:
            if shard.machine is not None:
                offsets += shard.machine.offsets.total
                for group in shard.machine.groups.values():
                    states[group.kind, group.state] += 1
                    members[group.kind] += len(group.members)
        prefix, metrics = "kafka_server_group_coordinator_metrics", self._broker.coordinator_metrics
        counts = [(f'{{protocol="{kind}",state="{state}"}}', count) for (kind, state), count in states.items()]
        yield Family(f"{prefix}_group_count", GAUGE, "Groups by protocol and state", counts)
        present = [(f'{{protocol="{kind}"}}', count) for kind, count in members.items()]
        yield Family("levada_group_members", GAUGE, "Members of groups", present)
        name = "kafka_coordinator_group_groupmetadatamanager_numoffsets"
        yield Family(name, GAUGE, "Committed offsets that are kept", [("", offsets)])
        committed = [("", metrics.offsets_committed)]
        yield Family(f"{prefix}_offset_commit_total", COUNTER, "Offsets committed", committed)
        rebalances = [
            ('{protocol="classic"}', metrics.classic_rebalances),
            ('{protocol="consumer"}', metrics.consumer_rebalances),
        ]
        yield Family(f"{prefix}_rebalance_total", COUNTER, "Rebalances of groups", rebalances)

    def _lags(self) -> Iterator[Family]:
        """The consumer lag of each committed offset, up to the configured number of series."""
        if not self._lag_series_max:
            return
        samples: list[tuple[str, float]] = []
        omitted = 0
        for group, (topic, index), offset in self._committed():
            partition = self._broker.partitions.get((topic, index))
            if partition is None or not self._includes(topic):
                continue
            if len(samples) == self._lag_series_max:
                omitted += 1
                continue
            labels = f'{{group="{_escaped(group)}",topic="{topic}",partition="{index}"}}'
            samples.append((labels, max(partition.high_watermark - offset, 0)))
        yield Family("kafka_consumergroup_lag", GAUGE, "Records after the committed offset of a group", samples)
        name = "levada_consumergroup_lag_omitted"
        yield Family(name, GAUGE, "Lags left out by levada.metrics.consumer.lag.series.max", [("", omitted)])

    def _committed(self) -> Iterator[tuple[str, TopicPartitionKey, int]]:
        for shard in self._broker.groups:
            if shard.machine is not None:
                offsets = shard.machine.offsets
                for group in offsets.groups():
                    for topic_partition, value in offsets.of(group):
                        yield group, topic_partition, value.offset

    def _transactions(self) -> Iterator[Family]:
        states = Counter(dict.fromkeys(Status, 0))
        for shard in self._broker.transactions:
            if shard.machine is not None:
                states.update(transaction.status for transaction in shard.machine.transactions.values())
        counts = [(f'{{state="{status.title}"}}', count) for status, count in states.items()]
        yield Family("levada_transactions", GAUGE, "Transactional ids by the state of their transaction", counts)
        metrics = self._broker.coordinator_metrics
        ended = [
            ('{result="committed"}', metrics.transactions_committed),
            ('{result="aborted"}', metrics.transactions_aborted),
        ]
        yield Family("levada_transactions_ended_total", COUNTER, "Transactions committed and aborted", ended)
        late = [("", metrics.transactions_timed_out)]
        yield Family("levada_transactions_timed_out_total", COUNTER, "Transactions aborted by timeout", late)

    def _node(self) -> Iterator[Family]:
        broker = self._broker
        offline = len(broker.log_dirs.offline_partitions())
        leaderless = sum(state.leader < 0 for topic in broker.image.topics.values() for state in topic.partitions)
        image, sessions = broker.image, broker.sessions
        partitions = sum(len(topic.partitions) for topic in image.topics.values())
        here, cluster = "kafka_server_replicamanager", "kafka_controller_kafkacontroller"
        cache = "kafka_server_fetchsessioncache"
        gauges = (
            (f"{here}_partitioncount", len(broker.partitions), "Partitions here"),
            (f"{here}_offlinereplicacount", offline, "Partitions here whose log or directory is offline"),
            (
                f"{cluster}_activecontrollercount",
                int(image.controller_id == broker.node_id),
                "1 on the controller",
            ),
            (f"{cluster}_globaltopiccount", len(image.topics), "Topics of the cluster"),
            (f"{cluster}_globalpartitioncount", partitions, "Partitions of the cluster"),
            (
                f"{cluster}_offlinepartitionscount",
                max(offline, leaderless),
                "Partitions of the cluster without a leader",
            ),
            (
                "kafka_log_logmanager_offlinelogdirectorycount",
                len(broker.log_dirs.offline),
                "Directories offline",
            ),
            (f"{cache}_numincrementalfetchsessions", len(sessions), "Incremental fetch sessions"),
            (
                f"{cache}_numincrementalfetchpartitionscached",
                sessions.partitions_cached,
                "Partitions in them",
            ),
        )
        for name, value, description in gauges:
            yield Family(name, GAUGE, description, [("", value)])

    def _connections(self) -> Iterator[Family]:
        labelled = [(f'{{listener="{listener.name}"}}', listener) for listener in self._listeners]
        now = [(labels, len(listener.connections)) for labels, listener in labelled]
        yield Family("kafka_server_socketservermetrics_connection_count", GAUGE, "Open connections", now)
        so_far = [(labels, listener.connections_total) for labels, listener in labelled]
        yield Family(
            "kafka_server_socketservermetrics_connection_creation_total",
            COUNTER,
            "Connections accepted",
            so_far,
        )


def _request_name(api_key: int) -> str:
    """Kafka's name of an API, such as ListOffsets."""
    return "".join(part.title() for part in APIS[api_key].name.split("_"))


def _escaped(label: str) -> str:
    """A label's value that clients choose."""
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _process() -> Iterator[Family]:
    """Resource usage of this process, under the names of Prometheus' client libraries."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    values: dict[str, float] = {
        "process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
        "process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }
    if os.path.exists("/proc/self/stat"):
        with open("/proc/self/stat") as stat, open("/proc/stat") as machine:
            fields = stat.read().rpartition(")")[2].split()
            booted = next(int(line.split()[1]) for line in machine if line.startswith("btime"))
        values["process_start_time_seconds"] = booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
        values["process_virtual_memory_bytes"] = int(fields[20])
        values["process_resident_memory_bytes"] = int(fields[21]) * resource.getpagesize()
        values["process_open_fds"] = len(os.listdir("/proc/self/fd"))
    for name, value in values.items():
        description = name.removeprefix("process_").removesuffix("_total").replace("_", " ")
        yield Family(
            name,
            COUNTER if name.endswith("_total") else GAUGE,
            f"{description} of the process",
            [("", value)],
        )
