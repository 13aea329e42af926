"""Declares the settings of the log cleaner, under Kafka's names and with Kafka's defaults."""

from dataclasses import dataclass

from levada.config.settings import Long, setting


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CleanerSettings:
    """The log cleaner: the section `cleaner` of `BrokerConfig`."""

    log_cleaner_enable: bool = setting(True, "Whether topics with cleanup.policy=compact are compacted.")
    log_cleaner_threads: int = setting(1, "The number of cleaner processes; each cleans one log at a time.", minimum=0)
    log_cleaner_dedupe_buffer_size: Long = setting(
        128 << 20,
        "Memory for deduplication of all cleaner processes: 24 bytes per key.",
        minimum=1 << 20,
        dynamic=True,
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        1.7976931348623157e308,
        "The I/O rate limit of all cleaner processes together.",
        minimum=1,
        dynamic=True,
    )
    log_cleaner_backoff_ms: Long = setting(
        15_000, "The pause of the cleaner when no log is cleanable.", minimum=0, dynamic=True
    )
