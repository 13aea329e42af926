"""Declares dynamic broker settings of Kafka without effect in Levada: stored and described, so that tools work."""

from collections.abc import Mapping
from typing import Final

from levada.config.properties import ignored_because
from levada.config.settings import ConfigType, Setting

_TYPES: Final = {
    ConfigType.INT: (
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "background.threads",
        "log.cleaner.io.buffer.size",
        "max.connection.creation.rate",
        "remote.fetch.max.wait.ms",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.reader.threads",
    ),
    ConfigType.LONG: (
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "log.local.retention.bytes",
        "log.local.retention.ms",
        "remote.list.offsets.request.timeout.ms",
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.fetch.max.bytes.per.second",
    ),
    ConfigType.DOUBLE: ("log.cleaner.io.buffer.load.factor",),
    ConfigType.STRING: ("max.connections.per.ip.overrides",),
    ConfigType.LIST: ("metric.reporters",),
}

UNUSED_SETTINGS: Final[Mapping[str, Setting]] = {
    name: Setting(name, type_, None, f"No effect: {ignored_because(name)}.", dynamic=True)
    for type_, names in _TYPES.items()
    for name in names
}
