"""Decides which log dir holds the log of a partition, and opens logs in threads.

The metadata assigns each partition to a log dir (KIP-858). An assigned partition whose directory is missing is offline:
an empty log in its place would hide the loss and assign its offsets again. Only a partition that is not assigned is
created. A directory that an operator has moved to another log dir is accepted by its topic id.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from levada.broker.partition.transactions import load_producers
from levada.clock import Clock
from levada.config.topic import TopicConfig
from levada.core.cluster.image import UNASSIGNED, TopicImage
from levada.core.partition.producer_state import ProducerStates
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.storage.checkpoints import NEW_LOG
from levada.storage.disk import Disk
from levada.storage.file_names import METADATA_FILE
from levada.storage.handles import FileHandleCache
from levada.storage.log.log import Log
from levada.storage.log.scan import Progress
from levada.storage.log_dir import FoundPartition, LogDir
from levada.storage.partition_directory import encode_uuid, shared_directories

Candidate = tuple[LogDir, FoundPartition]


class LogToOpen(NamedTuple):
    """A log that a thread opens, or creates unless it existed."""

    partition: TopicPartition
    topic_id: UUID
    leader_epoch: int
    config: TopicConfig
    log_dir: LogDir
    existed: bool
    is_assigned: bool  # whether the metadata assigns it to this log dir
    strays: Sequence[Candidate]  # directories of the same name that belong to other topics
    is_replicated: bool = False  # this is one of several replicas


class OpenedLog(NamedTuple):
    """A log that was opened, and its producer states."""

    log: Log
    producers: ProducerStates


class LogLocator:
    """The directories of partitions on disk that are not opened yet, and the use of each log dir."""

    def __init__(self, node_id: int, dirs: Sequence[LogDir], unopened: Sequence[str]) -> None:
        self._node_id = node_id
        self._dirs = dirs
        self._unopened = unopened  # log dirs that failed at the start: what they hold is unknown
        self._shared: dict[str, str] = {}  # directories that are links to those of other partitions
        self.found: dict[TopicPartition, list[Candidate]] = {}
        self.logs = Counter[str]()  # in each log dir, by path

    def find(self) -> None:
        """Find the partitions of all log dirs."""
        for log_dir in self._dirs:
            for found in log_dir.partitions():
                self.found.setdefault(found.partition, []).append((log_dir, found))
        directories = (found.directory for candidates in self.found.values() for _, found in candidates)
        links = {path: target for log_dir in self._dirs for path, target in log_dir.links().items()}
        self._shared = shared_directories(links, directories)

    def locate(self, topic: TopicImage, index: int, config: TopicConfig) -> LogToOpen:
        """Return where the log of a partition is, or where it is created. Raises KAFKA_STORAGE_ERROR."""
        state, name = topic.partitions[index], TopicPartition(topic.name, index)
        assigned = state.directory_of(self._node_id)
        candidates = self.found.pop(name, [])
        own = _own_candidates(candidates, topic.id, assigned)
        own.sort(key=lambda candidate: candidate[1].directory in self._shared)
        if own:
            log_dir, directory = own[0][0], own[0][1].directory
            if directory in self._shared:
                raise _storage_error(_linked(log_dir, directory, self._shared[directory]))
        else:
            self._check_new(name, topic.id, assigned, candidates)
            log_dir = self._least_used()
        strays = [candidate for candidate in candidates if candidate not in own[:1]]
        if log_dir.offline:
            raise _storage_error(f"its log dir {log_dir.path} is offline")
        self.logs[log_dir.path] += 1
        is_assigned = assigned == log_dir.directory_id
        is_replicated = len(state.replicas) > 1
        return LogToOpen(
            *(name, topic.id, state.leader_epoch, config, log_dir, bool(own), is_assigned, strays, is_replicated)
        )

    def strays(self) -> list[Candidate]:
        """Take the directories of partitions that are not in the metadata, once all others are located."""
        found, self.found = self.found, {}
        return [candidate for candidates in found.values() for candidate in candidates]

    def _check_new(
        self, name: TopicPartition, topic_id: UUID, assigned: UUID | None, others: Sequence[Candidate]
    ) -> None:
        """Raise KAFKA_STORAGE_ERROR if the log of a partition without a directory must not be created.

        `others` are directories of its name with the ids of other topics.
        """
        if assigned == UNASSIGNED:
            return
        if assigned is None:  # of a version that did not assign partitions
            former = next((log_dir for log_dir in self._dirs if log_dir.has_checkpoint(name)), None)
            if former is None and not self._unopened:
                return
            if former is None:
                raise _storage_error(f"it may be in a log dir that is offline: {', '.join(self._unopened)}")
        else:
            former = next((log_dir for log_dir in self._dirs if log_dir.directory_id == assigned), None)
            if former is None:
                paths = ", ".join(log_dir.path for log_dir in self._dirs)
                where = f" ({', '.join(self._unopened)} is offline)" if self._unopened else f" ({paths})"
                detail = f"its log dir with directory.id={encode_uuid(assigned)} is offline or not in log.dirs{where}"
                raise _storage_error(detail)
        for found in [found for log_dir, found in others if log_dir is former]:
            raise _storage_error(_foreign(former, found, topic_id))
        raise _storage_error(_missing(former, name, topic_id))

    def _least_used(self) -> LogDir:
        usable = [log_dir for log_dir in self._dirs if not log_dir.offline]
        if not usable:
            raise _storage_error("all log dirs are offline")
        return min(usable, key=lambda log_dir: self.logs[log_dir.path])


def _foreign(log_dir: LogDir, found: FoundPartition, topic_id: UUID) -> str:
    """Return why a directory is not that of the partition whose name it has, and what to do."""
    found_id, expected = encode_uuid(found.topic_id or UNASSIGNED), encode_uuid(topic_id)
    problem = f"{os.path.join(found.directory, METADATA_FILE)} has topic id {found_id}, but the topic has {expected}"
    remedy = "delete the file if only it is wrong; otherwise restore the directory of the partition"
    return f"{problem}: {remedy}, or see: levada log check {log_dir.path}"


def _linked(log_dir: LogDir, directory: str, other: str) -> str:
    """Return why a directory is not that of its partition, and what to do."""
    remedy = f"restore the directory of the partition, or see: levada log check {log_dir.path}"
    return f"{directory} is a link to {other}, the directory of another partition: {remedy}"


def _missing(log_dir: LogDir, name: TopicPartition, topic_id: UUID) -> str:
    """Return why a partition has no directory in its log dir, and what to do."""
    path = os.path.join(log_dir.path, str(name))
    if log_dir.interrupted_repair(name, topic_id):
        return f"{path} is missing: its repair was interrupted; complete it with: levada log repair {log_dir.path}"
    remedy = f"restore it, delete the topic, or see: levada log check {log_dir.path}"
    if reason := log_dir.why_not_a_directory(name):
        return f"{path}, the directory of the partition: {reason}; {remedy}"
    return f"{path} is missing, but the partition was in this log dir: {remedy}"


def _own_candidates(candidates: Iterable[Candidate], topic_id: UUID, assigned: UUID | None) -> list[Candidate]:
    """The directories that belong to a partition, the best first; a directory of its name may be a deleted topic's."""

    def is_own(candidate: Candidate) -> bool:
        log_dir, found = candidate
        is_here = assigned in (None, UNASSIGNED, log_dir.directory_id)
        return found.topic_id == topic_id or (found.topic_id is None and is_here)

    def rank(candidate: Candidate) -> tuple[bool, bool]:
        return candidate[1].topic_id != topic_id, candidate[0].directory_id != assigned

    return sorted(filter(is_own, candidates), key=rank)


def open_log(request: LogToOpen, disk: Disk, clock: Clock, handles: FileHandleCache, progress: Progress) -> OpenedLog:
    """Open or create a log. Runs in a thread, with handles of its own until it returns.

    An exception of `progress` ends the scan of the log, before a segment has changed.
    """
    name, log_dir, existed = request.partition, request.log_dir, request.existed
    for owner, stray in request.strays:
        owner.mark_stray(stray)
    if not existed:
        log_dir.rename_as_stray(name, unless=request.topic_id)
    checkpoint = log_dir.checkpoint_of(name) if existed else NEW_LOG
    if request.is_replicated:
        compacts = "compact" in request.config.cleanup_policy
        checkpoint = checkpoint._replace(may_have_gaps=compacts or log_dir.may_be_compacted(name))
    directory, now_ms = log_dir.create_partition(name, request.topic_id), clock.now_ms()
    log = Log.open(directory, request.config, disk, now_ms=now_ms, progress=progress, **checkpoint._asdict())
    producers = load_producers(log)
    if not request.is_replicated:
        log.assign_epoch(request.leader_epoch)  # here, since it writes a file
    log.use(handles)
    return OpenedLog(log, producers)


def _storage_error(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, detail)
