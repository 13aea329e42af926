"""Builds every component of a broker from its config, and starts and stops them in order."""

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from levada import __version__, logs
from levada.api.registry import dispatcher
from levada.broker.broker import Broker
from levada.broker.compaction.cleaner import LogCleaner
from levada.broker.faults import Faults
from levada.broker.housekeeping import Housekeeping
from levada.broker.log_dirs import LogDirs
from levada.broker.metrics.server import MetricsServer
from levada.broker.scrub import Scrub
from levada.clock import Clock, SystemClock
from levada.config.broker import BrokerConfig
from levada.config.listeners import address_text
from levada.config.metadata import MetadataSettings
from levada.core.cluster.image import BrokerImage
from levada.core.cluster.topic_names import is_internal
from levada.errors import KafkaError
from levada.extras import install_command
from levada.logs import EventLog
from levada.loop import new_event_loop
from levada.metadata.sqlite import SqliteStore
from levada.metadata.store import MetadataStore, StoreError
from levada.model import Endpoint
from levada.net.buffer_pool import BufferPool
from levada.net.busy_polling import BusyPoller
from levada.net.connection import RequestLimits
from levada.net.flush import FlushQueue
from levada.net.listener import ConnectionLimits, Listener
from levada.storage.disk import Disk, OsDisk
from levada.storage.log_dir import LogDirError

log = EventLog(__name__)

METADATA_FILE = "levada-metadata.db"
SESSION_FILE = "zookeeper-session.json"
# Reference counts free nearly everything. Cycles are rare, and a collection stops all threads: that of the middle
# generation visits at most 60,000 objects.
GARBAGE_THRESHOLDS = (10_000, 4, 160)
PARTITIONS_PER_FREEZE = 1_000
FILES_RESERVED = 256  # for the store, the listeners, threads that open files, connections being rejected


class CannotStartError(Exception):
    """The broker cannot start; the message is the reason in one sentence."""


class Server:
    """One running broker."""

    def __init__(
        self,
        config: BrokerConfig,
        faults: Faults | None = None,
        clock: Clock | None = None,
        disk: Disk | None = None,
    ) -> None:
        self._config = config
        self._faults = Faults() if faults is None else faults
        self._clock = clock or SystemClock()
        self._disk = disk or OsDisk()
        self._log_dirs: LogDirs | None = None
        self._listeners: list[Listener] = []
        self._metrics: MetricsServer | None = None
        self.endpoints: list[Endpoint] = []  # where the listeners are bound
        self.advertised: tuple[Endpoint, ...] = ()  # where clients connect
        self.broker: Broker

    async def start(self) -> None:
        """Join the cluster, then accept connections; partitions are served as their logs are opened."""
        config = self._config
        call_soon = asyncio.get_running_loop().call_soon
        flush_queue = FlushQueue(call_soon, self._clock.monotonic)
        pool = BufferPool(config.queued_max_request_bytes, config.levada_receive_buffers_bytes_max)
        flush_queue.after_flush(pool.reset)
        busy_poller = BusyPoller(call_soon, self._clock.monotonic)
        flush_queue.after_flush(busy_poller.flushed)
        open_files_max, connections_max = _shares_of_files(config)
        self._log_dirs = log_dirs = LogDirs(config, self._disk, self._clock, open_files_max)
        try:
            log_dirs.lock()
            store = _metadata_store(config, log_dirs, self._clock)
            self.broker = broker = Broker(config, self._clock, store, log_dirs, flush_queue)
            dispatch = dispatcher(broker, self._faults)
            connection_limits = ConnectionLimits(connections_max, config.max_connections_per_ip)
            for endpoint in config.listeners.endpoints:
                listener = Listener(endpoint.listener, dispatch, flush_queue, pool, _limits(config), connection_limits)
                self._listeners.append(listener)
                port = listener.bind(endpoint.host, endpoint.port, config.socket_listen_backlog_size)
                self.endpoints.append(endpoint._replace(port=port))
            self.advertised = _advertised(config, self.endpoints)
            image = BrokerImage(config.node_id, self.advertised, config.broker_rack)
            await broker.controller.start(image, log_dirs.cluster_id, unclean=log_dirs.may_lack_messages)
            log_dirs.join(broker.image.cluster_id)
            cleaner = LogCleaner(broker)
            broker.open()
            Housekeeping(broker).start()
            cleaner.start()
            Scrub(broker).start()
            self._metrics = await _metrics(broker, self._listeners, busy_poller)
            for listener in self._listeners:
                await listener.serve()
        except BaseException:
            await self.stop()
            raise

    async def opened(self) -> None:
        """Return when all logs are open, or offline."""
        await self.broker.opened()

    @property
    def bootstrap(self) -> str:
        """The advertised addresses, as a client's `bootstrap.servers`; a bound one may be every interface."""
        return ",".join(address_text(endpoint.host, endpoint.port) for endpoint in self.advertised)

    @property
    def metrics_address(self) -> str | None:
        """host:port of /metrics and /healthz."""
        return None if self._metrics is None else self._metrics.address

    @property
    def metrics_port_in_use(self) -> int | None:
        """The default metrics port, if another process has it."""
        return None if self._metrics is None else self._metrics.port_in_use

    async def stop(self) -> None:
        """Hand over leaders and close connections, then close the logs: the next start needs no recovery."""
        if hasattr(self, "broker"):
            await self.broker.controller.shut_down()
        for listener in self._listeners:
            await listener.stop()
        if self._metrics is not None:
            await self._metrics.stop()
        if hasattr(self, "broker"):
            await self.broker.stop()
        elif self._log_dirs is not None:
            await self._log_dirs.close()


def _metadata_store(config: BrokerConfig, log_dirs: LogDirs, clock: Clock) -> MetadataStore:
    """The store that the config selects."""
    settings = config.metadata
    if not settings.zookeeper_connect:
        timeout_s = settings.levada_metadata_session_timeout_ms / 1_000
        return SqliteStore(_metadata_file(settings, log_dirs), clock, timeout_s)
    try:
        from levada.metadata.zookeeper import ZooKeeperSettings, ZooKeeperStore
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "kazoo":
            raise
        raise StoreError(f"zookeeper.connect needs kazoo; install it with: {install_command('zookeeper')}") from error
    session_ms = settings.zookeeper_session_timeout_ms
    where = ZooKeeperSettings(
        settings.zookeeper_hosts,
        settings.zookeeper_root,
        session_ms / 1_000,
        (settings.zookeeper_connection_timeout_ms or session_ms) / 1_000,
        settings.levada_zookeeper_credentials or "",
        settings.zookeeper_set_acl,
        os.path.join(log_dirs.first, SESSION_FILE),
    )
    return ZooKeeperStore(where, clock)


def _metadata_file(settings: MetadataSettings, log_dirs: LogDirs) -> str:
    """The store's file. If it is missing, partitions must not be taken for those of deleted topics."""
    path = settings.levada_metadata_file or os.path.join(log_dirs.first, METADATA_FILE)
    if log_dirs.hold_partitions and not os.path.exists(path):
        raise LogDirError(
            f"{path} is missing, but there are partitions in {', '.join(log_dirs.paths)}: "
            "restore it, or move the partitions away"
        )
    return path


async def _metrics(broker: Broker, listeners: list[Listener], busy_poller: BusyPoller) -> MetricsServer | None:
    try:
        return await MetricsServer.start(broker, listeners, busy_poller)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        where = broker.config.listeners.levada_metrics_listener
        raise OSError(f"cannot serve metrics on {where} (levada.metrics.listener): {why}") from error


def _shares_of_files(config: BrokerConfig) -> tuple[int, int]:
    """How many files logs may have open, and how many connections are accepted.

    A client must not be able to take the descriptor that an append needs.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return config.levada_open_files_max, config.max_connections
    files = min(config.levada_open_files_max, limit // 2)
    return files, min(config.max_connections, limit - files - min(FILES_RESERVED, limit // 8))


def _limits(config: BrokerConfig) -> RequestLimits:
    return RequestLimits(
        frame_bytes_max=config.socket_request_max_bytes,
        requests_in_flight_max=config.levada_connection_requests_in_flight_max,
        queued_bytes_max=config.levada_connection_queued_bytes_max,
        idle_ms_max=config.connections_max_idle_ms,
    )


def _advertised(config: BrokerConfig, bound: list[Endpoint]) -> tuple[Endpoint, ...]:
    """The advertised listeners, with the bound port where they have none."""
    ports = {endpoint.listener: endpoint.port for endpoint in bound}
    return tuple(
        endpoint._replace(port=endpoint.port or ports[endpoint.listener])
        for endpoint in config.listeners.advertised_endpoints
    )


async def _serve_until_signal(config: BrokerConfig) -> None:
    server = Server(config)
    stopping: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _stop_once, stopping, number)
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    await server.start()
    gc.callbacks.append(_freeze_new_partitions(server.broker.log_dirs))
    gc.collect()
    gc.freeze()  # what a broker starts with lives as long as this process
    is_json = config.levada_log_format == logs.JSON
    for line in [_startup_line(server)] if is_json else _startup_lines(server):
        _print(line)
    _log_start(server)
    server.broker.tasks.start("freeze", _freeze_when_opened(server))
    received = await stopping
    log.info("broker stopping", node_id=config.node_id, signal=received.name)
    _print(logs.json_line("stopping") if is_json else "Stopping.")
    await server.stop()
    log.info("broker stopped", node_id=config.node_id)


def _stop_once(stopping: "asyncio.Future[signal.Signals]", number: signal.Signals) -> None:
    if not stopping.done():
        stopping.set_result(number)


def _log_start(server: Server) -> None:
    broker = server.broker
    log.info(
        "broker started",
        node_id=broker.node_id,
        cluster_id=broker.image.cluster_id,
        version=__version__,
        listeners=",".join(map(str, server.endpoints)),
        advertised=",".join(map(str, server.advertised)),
        log_dirs=",".join(broker.config.log_dirs),
        partitions=sum(len(topic.partitions) for topic in broker.image.topics.values()),
    )


def _freeze_new_partitions(log_dirs: LogDirs) -> Callable[[str, Mapping[str, int]], None]:
    """Return a callback of the garbage collector: it freezes the objects of many new partitions.

    A full collection would visit them all, and stop the loop for 200 ms with ten thousand partitions. They are frozen
    when young garbage has just been collected. Cycles that become garbage later are not freed, so it is done only when
    the number of partitions has grown by a thousand.
    """
    frozen = 0

    def collected(phase: str, info: Mapping[str, int]) -> None:
        nonlocal frozen
        partitions = log_dirs.partition_count
        frozen = min(frozen, partitions)  # some were deleted
        if phase == "stop" and info["generation"] > 0 and partitions >= frozen + PARTITIONS_PER_FREEZE:
            gc.freeze()
            frozen = partitions

    return collected


async def _freeze_when_opened(server: Server) -> None:
    await server.opened()
    gc.freeze()  # without a collection, which would stop the loop


def _print(line: str) -> None:
    """Print a line; a closed stdout does not keep the broker from stopping in order."""
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)


def _startup_lines(server: Server) -> list[str]:
    return [f"Levada broker {server.broker.node_id} of cluster {server.broker.image.cluster_id}"] + [
        f"  {name:9} {text}" for name, text in _startup_fields(server).items()
    ]


def _startup_line(server: Server) -> str:
    """The same as one line of JSON."""
    broker = server.broker
    ids: dict[str, object] = {"node_id": broker.node_id, "cluster_id": broker.image.cluster_id}
    return logs.json_line("ready", **ids, **_startup_fields(server))


def _startup_fields(server: Server) -> dict[str, str]:
    broker = server.broker
    own = sum(len(topic.partitions) for name, topic in broker.image.topics.items() if not is_internal(name))
    fields = {
        "data": f"{', '.join(broker.config.log_dirs)} ({own} partitions)",
        "connect": f"bootstrap.servers={server.bootstrap}",
    }
    if server.metrics_address:
        taken = server.metrics_port_in_use
        fields["metrics"] = f"http://{server.metrics_address}/metrics" + (f" ({taken} is in use)" if taken else "")
    return fields


def _raise_open_files_limit() -> None:
    """Raise the soft limit of open files to the hard one: a shell's 1,024 are few for segments and connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(config: BrokerConfig, warnings: Sequence[str] = ()) -> None:
    """Run a broker in this process until SIGTERM or SIGINT; raises CannotStartError. Logs the `warnings` first."""
    _raise_open_files_limit()
    logs.configure(config.levada_log_format, config.levada_log_level)
    for warning in warnings:
        log.warning(warning)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve_until_signal(config))
    except (KafkaError, LogDirError, StoreError, OSError) as error:
        raise CannotStartError(error.detail if isinstance(error, KafkaError) else str(error)) from error
