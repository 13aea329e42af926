"""Allocates producer ids: blocks from the metadata store, without the ids that logs already have.

A metadata store that was restored from an older copy would allocate ids again. The batches of a new producer would then
be taken for duplicates of those of an older one, acknowledged and not stored.
"""

from collections.abc import Awaitable, Callable, Iterable

from levada.core.cluster.controller import PRODUCER_ID_BLOCK, AllocateProducerIds
from levada.core.cluster.image import ClusterImage
from levada.logs import EventLog

log = EventLog(__name__)


class ProducerIds:
    """The producer ids of a broker."""

    __slots__ = ("_block", "_in_use", "_submit")

    def __init__(self, submit: Callable[[AllocateProducerIds], Awaitable[ClusterImage]]) -> None:
        self._submit = submit
        self._block = range(0)  # allocated to this broker and not given to producers yet
        self._in_use: set[int] = set()  # ids in the logs that the metadata may allocate

    def exclude(self, log_name: str, producer_ids: Iterable[int], image: ClusterImage) -> None:
        """Never return ids that a log has although no producer was given them: the metadata is older than the log."""
        unknown = {one for one in producer_ids if one >= image.next_producer_id or one in self._block} - self._in_use
        if unknown:
            log.error(
                "producer ids are in use that the metadata has not allocated; it may be older than the log",
                log=log_name,
                producer_ids=len(unknown),
                greatest=max(unknown),
            )
            self._in_use |= unknown

    async def next(self) -> int:
        """Return a new producer id."""
        while True:
            if not self._block:
                image = await self._submit(AllocateProducerIds())
                if not self._block:
                    self._block = range(image.next_producer_id - PRODUCER_ID_BLOCK, image.next_producer_id)
            taken, self._block = self._block[0], self._block[1:]
            if taken not in self._in_use:
                return taken
