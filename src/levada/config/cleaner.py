"""Settings of the log cleaner, under Kafka's names with Kafka's defaults; `BrokerConfig` inherits them."""

from dataclasses import dataclass

from levada.config.coordinators import CoordinatorSettings
from levada.config.settings import Long, setting


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CleanerSettings(CoordinatorSettings):
    """How compacted topics are cleaned."""

    log_cleaner_enable: bool = setting(True, "Compact the topics that ask for it.")
    log_cleaner_threads: int = setting(1, "Processes that clean logs, one log each at a time.", minimum=0)
    log_cleaner_dedupe_buffer_size: Long = setting(
        128 << 20,
        "Memory for keys over all cleaner processes: 24 bytes a key.",
        minimum=1 << 20,
        dynamic=True,
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        1.7976931348623157e308,
        "How much all cleaner processes together read and write in a second.",
        minimum=1,
        dynamic=True,
    )
    log_cleaner_backoff_ms: Long = setting(
        15_000, "How long the cleaner waits when there is nothing to clean.", minimum=0, dynamic=True
    )
