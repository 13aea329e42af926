"""A leader's view of the replicas of one partition: their offsets, the high watermark, and changes of the ISR.

The high watermark is the smallest log end of the *maximal* ISR: the committed ISR and the members that are being added.
A member that is removed counts until its removal is committed, one that is added counts at once. So every ISR that may
be committed holds all records below the high watermark, and any of its members can be elected. It never steps back.

An ISR change is a proposal. It is pending until the metadata store has committed or definitely refused it; whoever
submits a change must try again when the result is unknown, because it may have been committed.

A machine belongs to one leader epoch: a later one starts anew. Times are those of a monotonic clock.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from levada.errors import ErrorCode, KafkaError

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1
NEVER_MS = -(1 << 62)
NO_FOLLOWERS = 1 << 62


class LiveBrokers:
    """The registered brokers, which the owner keeps current; all partitions share it."""

    __slots__ = ("epochs", "fenced", "fetch_ms")

    def __init__(self) -> None:
        self.fetch_ms: dict[int, int] = {}  # the last fetch of each follower, of any partition
        self.epochs: dict[int, int] = {}  # the broker epoch of each
        self.fenced: set[int] = set()  # those that may not join an ISR, because they are shutting down

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        """Whether a broker with this epoch may join an ISR."""
        return self.epochs.get(broker) == broker_epoch and broker not in self.fenced


class IsrChange(NamedTuple):
    """A new ISR, decided on one state of the partition, which its epochs name."""

    leader_epoch: int
    partition_epoch: int
    isr: Mapping[int, int]  # the broker epoch of each member (KIP-903)


class Replica:
    """What the leader knows of one follower."""

    __slots__ = (
        "_fetch_ms",
        "_leader_end_at_fetch",
        "broker",
        "broker_epoch",
        "last_caught_up_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker: int, last_caught_up_ms: int) -> None:
        self.broker = broker
        self.broker_epoch = UNKNOWN_EPOCH
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_caught_up_ms = last_caught_up_ms
        self._fetch_ms = NEVER_MS  # of the last fetch, and the leader's log end at that time
        self._leader_end_at_fetch = UNKNOWN_OFFSET

    def fetched(self, broker_epoch: int, offset: int, start_offset: int, leader_end: int, now_ms: int) -> None:
        """The follower fetches from an offset, so it has everything below.

        It has caught up now if that is the leader's log end. If it is the log end of the last fetch, it had caught up
        then: a follower that always lags by one response is in sync.
        """
        if offset >= leader_end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif offset >= self._leader_end_at_fetch >= 0:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self._fetch_ms)
        self.broker_epoch, self.log_end_offset, self.log_start_offset = broker_epoch, offset, start_offset
        self._fetch_ms, self._leader_end_at_fetch = now_ms, leader_end


class LeaderReplicas:
    """The replicas of a partition in one leader epoch."""

    __slots__ = (
        "_followers",
        "_lag_max_ms",
        "_live",
        "_pending",
        "epoch_start_offset",
        "high_watermark",
        "isr",
        "leader",
        "leader_epoch",
        "log_end_offset",
        "partition_epoch",
    )

    def __init__(
        self,
        leader: int,
        leader_epoch: int,
        log_end_offset: int,
        high_watermark: int,
        live: LiveBrokers,
        lag_max_ms: int,
    ) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.partition_epoch = UNKNOWN_EPOCH
        self.epoch_start_offset = self.log_end_offset = log_end_offset
        self.high_watermark = high_watermark
        self.isr: Mapping[int, int] = {leader: UNKNOWN_EPOCH}  # as committed, with broker epochs
        self._live = live
        self._lag_max_ms = lag_max_ms
        self._pending: IsrChange | None = None
        self._followers: dict[int, Replica] = {}

    # The state of the partition in the metadata.

    def update(self, replicas: Iterable[int], isr: Mapping[int, int], partition_epoch: int, now_ms: int) -> None:
        """Take over a newer committed state; a pending change is committed with it, or refused by it.

        `isr` maps its members to the broker epochs in which they joined.
        """
        if partition_epoch <= self.partition_epoch:
            return
        is_first = self.partition_epoch == UNKNOWN_EPOCH
        self.isr, self.partition_epoch, self._pending = isr, partition_epoch, None
        former = self._followers
        self._followers = {
            broker: former.get(broker) or Replica(broker, now_ms if is_first and broker in self.isr else NEVER_MS)
            for broker in replicas
            if broker != self.leader
        }
        self.advance(now_ms)

    def refused(self, change: IsrChange) -> None:
        """A pending change was definitely not committed."""
        if self._pending == change:
            self._pending = None

    @property
    def pending(self) -> IsrChange | None:
        """The change that is proposed and neither committed nor refused."""
        return self._pending

    @property
    def maximal_isr(self) -> Collection[int]:
        """All brokers that are in the ISR, or may be by now."""
        pending = self._pending
        return self.isr if pending is None else {*self.isr, *pending.isr}

    # Offsets.

    def appended(self, log_end_offset: int, now_ms: int) -> bool:
        """The leader has written up to an offset; return whether the high watermark has advanced.

        A follower that had everything need not say so again: it has caught up as long as it fetched from this broker.
        """
        former, fetch_ms = self.log_end_offset, self._live.fetch_ms
        for broker, replica in self._followers.items():
            if replica.log_end_offset >= former:
                replica.last_caught_up_ms = max(replica.last_caught_up_ms, fetch_ms.get(broker, NEVER_MS))
        self.log_end_offset = log_end_offset
        return self.advance(now_ms)

    def fetched(self, broker: int, broker_epoch: int, offset: int, start_offset: int, now_ms: int) -> bool:
        """A follower fetches from an offset; return whether the high watermark has advanced.

        Raises NOT_LEADER_OR_FOLLOWER for a broker that is no replica, and for a broker epoch that is not registered:
        that is a process which ended, or a client that only claims to be a broker.
        """
        replica = self.check(broker, broker_epoch)
        replica.fetched(broker_epoch, offset, start_offset, self.log_end_offset, now_ms)
        return self.advance(now_ms)

    def check(self, broker: int, broker_epoch: int) -> Replica:
        """Return the replica of a broker. Raises NOT_LEADER_OR_FOLLOWER, as `fetched` says."""
        replica = self._followers.get(broker)
        if replica is None or self._live.epochs.get(broker) != broker_epoch:
            why = "is not a replica" if replica is None else f"is not registered with epoch {broker_epoch}"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {broker} {why}")
        return replica

    def advance(self, now_ms: int) -> bool:
        """Advance the high watermark as far as possible; return whether it has advanced.

        It also waits for followers outside of the ISR that have just caught up, so that they can join while records
        keep coming: not for one whose broker is gone.
        """
        isr, lowest = self.maximal_isr, self.log_end_offset
        caught_up_since = now_ms - self._lag_max_ms
        for broker, replica in self._followers.items():
            if replica.log_end_offset < lowest and (
                broker in isr or (replica.last_caught_up_ms >= caught_up_since and self._is_eligible(replica))
            ):
                lowest = replica.log_end_offset
        if lowest <= self.high_watermark:
            return False
        self.high_watermark = lowest
        return True

    def _is_eligible(self, replica: Replica) -> bool:
        return self._live.may_join(replica.broker, replica.broker_epoch)

    # Changes of the ISR.

    def propose_isr(self, now_ms: int) -> IsrChange | None:
        """Return the change that the ISR needs, which is pending from now on; None if there is none, or one is pending.

        A follower joins when it has reached the high watermark and the start of this leader epoch: then its log is a
        prefix of the leader's. It leaves when it has not caught up for replica.lag.time.max.ms.
        """
        if self._pending is not None or self.partition_epoch == UNKNOWN_EPOCH:
            return None
        joining = [replica.broker for replica in self._followers.values() if self._may_join(replica)]
        leaving = {broker for broker in self.isr if self._must_leave(broker, now_ms)}
        if not joining and not leaving:
            return None
        isr = {broker: epoch for broker, epoch in self.isr.items() if broker not in leaving}
        isr |= {broker: self._followers[broker].broker_epoch for broker in joining}
        self._pending = IsrChange(self.leader_epoch, self.partition_epoch, isr)
        return self._pending

    def _may_join(self, replica: Replica) -> bool:
        end = replica.log_end_offset
        is_in_sync = end >= self.high_watermark and end >= self.epoch_start_offset
        return replica.broker not in self.isr and is_in_sync and self._is_eligible(replica)

    def _must_leave(self, broker: int, now_ms: int) -> bool:
        replica = self._followers.get(broker)
        if replica is None or replica.log_end_offset >= self.log_end_offset:
            return False
        return now_ms - replica.last_caught_up_ms > self._lag_max_ms

    # What others want to know of followers.

    @property
    def followers(self) -> Mapping[int, Replica]:
        """The followers by their broker."""
        return self._followers

    @property
    def low_watermark(self) -> int:
        """The smallest log start offset of the followers in the ISR; a large number without any."""
        starts = [replica.log_start_offset for broker, replica in self._followers.items() if broker in self.isr]
        return min(starts, default=NO_FOLLOWERS)

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self._followers) + 1

    def preferred_read_replica(self, rack: str, racks: Mapping[int, str | None], fetch_offset: int) -> int:
        """Return the replica from which a consumer in a rack should read an offset (KIP-392).

        It is a member of the ISR in that rack that has the offset: the leader if it is one, else the one with the
        highest log end. Without any it is the leader.
        """
        if racks.get(self.leader) == rack:
            return self.leader
        candidates = [
            replica
            for broker, replica in self._followers.items()
            if racks.get(broker) == rack
            and broker in self.isr
            and replica.log_start_offset <= fetch_offset <= replica.log_end_offset
        ]
        best = max(candidates, key=lambda one: (one.log_end_offset, one.last_caught_up_ms, -one.broker), default=None)
        return self.leader if best is None else best.broker
