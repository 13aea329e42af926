"""Recompresses batches that have another codec than their topic (compression.type).

Records are not decoded: they are decompressed and compressed as one block of bytes. Small batches are recompressed on
the event loop, large ones in a thread (`levada.api.data.large_batches`).
"""

from dataclasses import dataclass
from typing import Final

from levada.broker.partition.record_validation import LOOP_BYTES_MAX, LargeBatchError
from levada.config.topic import TopicConfig
from levada.errors import ErrorCode, KafkaError
from levada.model import Codec
from levada.wire.batches import recompress

LOOP_ZSTD_LEVEL_MAX: Final = 6  # those with a higher level are recompressed in a thread


@dataclass(frozen=True, slots=True)
class Recompression:
    """The codec that the batches of a topic have (compression.type), and its level."""

    codec: Codec
    level: int | None
    message_bytes_max: int

    @staticmethod
    def of(config: TopicConfig) -> "Recompression | None":
        """The codec of a topic; None if batches keep the codec of the producer."""
        if config.compression_type == "producer":
            return None
        codec = Codec["NONE" if config.compression_type == "uncompressed" else config.compression_type.upper()]
        levels = {
            Codec.GZIP: config.compression_gzip_level,
            Codec.LZ4: config.compression_lz4_level,
            Codec.ZSTD: config.compression_zstd_level,
        }
        return Recompression(codec, levels.get(codec), config.max_message_bytes)

    def on_loop(self, batch: memoryview) -> memoryview:
        """Recompress a small valid batch. LargeBatchError if it is large, or cannot be decompressed."""
        if len(batch) <= LOOP_BYTES_MAX and (self.codec is not Codec.ZSTD or (self.level or 0) <= LOOP_ZSTD_LEVEL_MAX):
            try:
                return memoryview(recompress(batch, self.codec, self.level, LOOP_BYTES_MAX))
            except KafkaError:  # it is larger than it looks
                pass
        raise LargeBatchError

    def in_thread(self, batch: memoryview, limit_bytes: int) -> memoryview:
        """Recompress any valid batch.

        Raises CORRUPT_MESSAGE, and MESSAGE_TOO_LARGE at once: a small batch may decompress to a large one.
        """
        if self.codec is Codec.NONE:
            limit_bytes = min(limit_bytes, self.message_bytes_max)
        recompressed = recompress(batch, self.codec, self.level, limit_bytes)
        if len(recompressed) > self.message_bytes_max:
            detail = f"a batch of {len(recompressed)} bytes as {self.codec.name.lower()}, the codec of the topic; "
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{detail}its max.message.bytes is {self.message_bytes_max}")
        return memoryview(recompressed)
