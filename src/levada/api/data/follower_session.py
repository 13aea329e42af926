"""Marks the partitions of a follower's fetch session that are due, so that a fetch costs what has changed.

A partition is due when its leader has written to it, or when its high watermark or its role has changed. Each has two
watchers here, at its log end and at its high watermark; only the first ends the wait of a delayed fetch. With a replica
selector both do, because consumers of the follower wait for the high watermark.
"""

from levada.broker.partition.partition import Partition
from levada.broker.purgatory import DelayedFetch
from levada.core.partition.fetch_sessions import FetchSession, TopicKey
from levada.net.connection import Connection

Key = tuple[TopicKey, int]


class FollowerSession:
    """The watchers of one fetch session."""

    __slots__ = ("_connection", "_subscriptions", "_wakes_at_watermark", "delayed", "session")

    def __init__(self, session: FetchSession, connection: Connection, wakes_at_watermark: bool) -> None:
        self.session = session
        self.delayed: DelayedFetch | None = None
        self._connection = connection
        self._wakes_at_watermark = wakes_at_watermark
        self._subscriptions: dict[Key, tuple[Partition, _Watch, _Watch]] = {}

    def subscribe(self, key: Key, partition: Partition) -> None:
        """Watch a partition, which may be another one of the same name than before."""
        known = self._subscriptions.get(key)
        if known is not None:
            if known[0] is partition:
                return
            self.unsubscribe(key)
        end, watermark = _Watch(self, key, True), _Watch(self, key, self._wakes_at_watermark)
        partition.log_end_watch.watchers.add(end)
        partition.watchers.add(watermark)
        self._subscriptions[key] = partition, end, watermark

    def unsubscribe(self, key: Key) -> None:
        """Watch a partition no longer."""
        known = self._subscriptions.pop(key, None)
        if known is not None:
            partition, end, watermark = known
            partition.log_end_watch.watchers.discard(end)
            partition.watchers.discard(watermark)

    def forget_missing(self) -> None:
        """Unsubscribe from partitions that are not in the session any more."""
        if len(self._subscriptions) > len(self.session.partitions):
            for key in [key for key in self._subscriptions if key not in self.session.partitions]:
                self.unsubscribe(key)

    def close(self) -> None:
        """Unsubscribe from all: the session or its connection has ended."""
        for key in list(self._subscriptions):
            self.unsubscribe(key)

    def changed(self, key: Key, published_bytes: int, wakes: bool) -> None:
        """A partition is due; a delayed fetch may have enough now."""
        if self._connection.closed:
            self.close()
            return
        self.session.due[key] = None
        if wakes and self.delayed is not None:
            self.delayed.try_complete(published_bytes)


class _Watch:
    """A watcher of one partition."""

    __slots__ = ("_key", "_owner", "_wakes")

    def __init__(self, owner: FollowerSession, key: Key, wakes: bool) -> None:
        self._owner = owner
        self._key = key
        self._wakes = wakes

    def try_complete(self, published_bytes: int) -> None:
        self._owner.changed(self._key, published_bytes, self._wakes or not published_bytes)
