"""/metrics and /healthz on a port of their own (R52).

The hot path only counts in plain integers; this module reads them when Prometheus asks. Names are those of Kafka's
JMX exporter, so that existing dashboards work.
"""

import asyncio
import errno
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from levada.broker.broker import Broker
from levada.logs import EventLog
from levada.net.listener import Listener
from levada.wire.versions import APIS

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

log = EventLog(__name__)

REQUEST_BYTES_MAX: Final = 8 * 1024
PATIENCE_S: Final = 5.0
SETTING: Final = "levada.metrics.listener"


class Collector:
    """Everything that is counted, as Prometheus wants it."""

    def __init__(self, broker: Broker, listeners: Sequence[Listener]) -> None:
        self._broker = broker
        self._listeners = listeners

    def collect(self) -> Iterator["CounterMetricFamily | GaugeMetricFamily"]:
        yield from self._topics()
        yield from self._requests()
        yield from self._logs()
        yield from self._node()

    def _topics(self) -> Iterator["CounterMetricFamily"]:
        from prometheus_client.core import CounterMetricFamily

        counts: dict[str, Counter[str]] = {
            "messagesin": Counter(),
            "bytesin": Counter(),
            "bytesout": Counter(),
        }
        for partition in self._broker.partitions.values():
            counts["messagesin"][partition.topic] += partition.messages_in
            counts["bytesin"][partition.topic] += partition.bytes_in
            counts["bytesout"][partition.topic] += partition.bytes_out
        for name, by_topic in counts.items():
            family = CounterMetricFamily(
                f"kafka_server_brokertopicmetrics_{name}", f"{name} by topic", labels=["topic"]
            )
            for topic, count in by_topic.items():
                family.add_metric([topic], count)
            yield family

    def _requests(self) -> Iterator["CounterMetricFamily"]:
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(
            "kafka_network_requestmetrics_requests", "Requests by API", labels=["request"]
        )
        for api_key, count in self._broker.request_counts.items():
            if api_key in APIS:
                family.add_metric(["".join(part.title() for part in APIS[api_key].name.split("_"))], count)
        yield family

    def _logs(self) -> Iterator["GaugeMetricFamily"]:
        from prometheus_client.core import GaugeMetricFamily

        labels = ["topic", "partition"]
        size = GaugeMetricFamily("kafka_log_log_size", "Bytes of a partition's segments", labels=labels)
        start = GaugeMetricFamily("kafka_log_log_logstartoffset", "First offset", labels=labels)
        end = GaugeMetricFamily("kafka_log_log_logendoffset", "Offset of the next record", labels=labels)
        for partition in self._broker.partitions.values():
            names = [partition.topic, str(partition.index)]
            size.add_metric(names, partition.log.size_bytes)
            start.add_metric(names, partition.log.log_start_offset)
            end.add_metric(names, partition.log.log_end_offset)
        yield from (size, start, end)

    def _node(self) -> Iterator["CounterMetricFamily | GaugeMetricFamily"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        broker = self._broker
        offline = sum(partition.offline for partition in broker.partitions.values())
        gauges = {
            "kafka_server_replicamanager_partitioncount": len(broker.partitions),
            "kafka_server_replicamanager_leadercount": len(broker.partitions) - offline,
            "kafka_server_replicamanager_offlinereplicacount": offline,
            "kafka_server_replicamanager_underreplicatedpartitions": 0,
            "kafka_controller_kafkacontroller_activecontrollercount": int(
                broker.image.controller_id == broker.node_id
            ),
            "kafka_controller_kafkacontroller_globaltopiccount": len(broker.image.topics),
            "kafka_controller_kafkacontroller_globalpartitioncount": sum(
                len(topic.partitions) for topic in broker.image.topics.values()
            ),
            "kafka_controller_kafkacontroller_offlinepartitionscount": offline,
            "kafka_log_logmanager_offlinelogdirectorycount": len(broker.log_dirs.offline),
            "kafka_server_fetchsessioncache_numincrementalfetchsessions": len(broker.sessions),
            "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached": (
                broker.sessions.partitions_cached
            ),
        }
        for name, value in gauges.items():
            yield GaugeMetricFamily(name, name.rpartition("_")[2], value=value)
        connections = GaugeMetricFamily(
            "kafka_server_socketservermetrics_connection_count", "Clients now", labels=["listener"]
        )
        created = CounterMetricFamily(
            "kafka_server_socketservermetrics_connection_creation", "Clients so far", labels=["listener"]
        )
        for listener in self._listeners:
            connections.add_metric([listener.name], len(listener.connections))
            created.add_metric([listener.name], listener.connections_total)
        yield from (connections, created)


class MetricsServer:
    """A few lines of HTTP: two pages, one request a connection."""

    def __init__(self, broker: Broker, listeners: Sequence[Listener]) -> None:
        self._broker = broker
        self._collector = Collector(broker, listeners)
        self._server: asyncio.Server | None = None
        self.address = ""

    @classmethod
    async def start(cls, broker: Broker, listeners: Sequence[Listener]) -> "MetricsServer | None":
        """Listen where levada.metrics.listener says; None if it says nothing."""
        if not broker.config.levada_metrics_listener:
            return None
        pages = cls(broker, listeners)
        host, _, port = broker.config.levada_metrics_listener.rpartition(":")
        try:
            pages._server = await pages._listen(host, int(port))
        except OSError as error:
            # A second broker on this host is no reason to fail, unless this very port was asked for.
            if error.errno != errno.EADDRINUSE or SETTING in broker.config.given:
                raise
            pages._server = await pages._listen(host, 0)
        taken = pages._server.sockets[0].getsockname()
        pages.address = f"{taken[0]}:{taken[1]}"
        return pages

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(request.split(b" ", 2)[1].partition(b"?")[0]))
                await writer.drain()
        except (TimeoutError, OSError, IndexError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # not HTTP, or gone: there is nobody to tell
        finally:
            writer.close()

    def _answer(self, path: bytes) -> bytes:
        if path == b"/metrics":
            return _response("200 OK", "text/plain; version=0.0.4; charset=utf-8", self._exposition())
        if path == b"/healthz":
            offline = self._broker.log_dirs.offline
            status = (
                "200 OK" if len(offline) < len(self._broker.log_dirs.paths) else "503 Service Unavailable"
            )
            health = {"status": "ok" if not offline else "degraded", "offline_log_dirs": offline}
            return _response(status, "application/json", json.dumps(health).encode())
        return _response("404 Not Found", "text/plain", b"there are /metrics and /healthz\n")

    def _exposition(self) -> bytes:
        # Imported when first asked: it costs a tenth of the start.
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(self._collector)
        return generate_latest(registry)


def _response(status: str, content_type: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return (head + "Connection: close\r\n\r\n").encode() + body
