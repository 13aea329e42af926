"""Checks and repairs the logs of a log dir that no broker uses (`levada log check` and `repair`)."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from levada.model import TopicPartition
from levada.storage.disk import FILE_ERRORS, RESOURCE_ERRORS, OsDisk
from levada.storage.file_names import METADATA_FILE, RepairDirectories
from levada.storage.log.check import CheckedLog, ReadOnlyDisk
from levada.storage.log.damage import Damage
from levada.storage.log.repair import LogRepair, Repaired, costs_records
from levada.storage.log.scan import Progress, unreported
from levada.storage.log_dir import (
    CLEANER_FILE,
    LOG_STARTS_FILE,
    RECOVERY_POINTS_FILE,
    FoundPartition,
    LogDir,
)
from levada.storage.partition_directory import encode_uuid, shared_directories

NOT_POSSIBLE: Final = "not possible"


class Assignment(NamedTuple):
    """What the metadata says about a partition of this broker."""

    topic_id: UUID
    directory_id: UUID | None  # of its log dir; None: it is of a version that did not assign partitions
    compacts: bool  # the cleanup.policy of its topic contains `compact`, as far as the metadata says
    is_replicated: bool = False  # it is one of several replicas


Topics = Mapping[TopicPartition, Assignment]


class Finding(NamedTuple):
    """One line of a check."""

    partition: str
    file: str
    position: int | None
    offset: int | None  # the first one that is lost
    problem: str
    lost: str
    repair: str


class MissingPartitions(NamedTuple):
    """The partitions of the metadata that have no directory in any of the given log dirs."""

    by_path: dict[str, list[TopicPartition]]  # those that were in a given log dir
    not_given: dict[UUID, list[TopicPartition]]  # those of other log dirs, by directory id
    shared: dict[str, str]  # directories that are links to those of other partitions


NONE_MISSING: Final = MissingPartitions({}, {}, {})


def find_missing(log_dirs: Sequence[LogDir], topics: Topics) -> MissingPartitions:
    """Return the partitions without a directory, by the rules of a start."""
    found: dict[TopicPartition, list[tuple[LogDir, UUID | None]]] = {}
    directories = [(log_dir, one) for log_dir in log_dirs for one in log_dir.partitions()]
    links = {path: target for log_dir in log_dirs for path, target in log_dir.links().items()}
    shared = shared_directories(links, (one.directory for _, one in directories))
    for log_dir, one in directories:
        if one.directory not in shared:
            found.setdefault(one.partition, []).append((log_dir, one.topic_id))
    missing = MissingPartitions({log_dir.path: [] for log_dir in log_dirs}, {}, shared)
    for name, (topic_id, assigned, _, _) in sorted(topics.items()):
        if any(
            found_id == topic_id or (found_id is None and assigned in (None, log_dir.directory_id))
            for log_dir, found_id in found.get(name, ())
        ):
            continue
        if assigned is None:
            owners = [log_dir for log_dir in log_dirs if log_dir.has_checkpoint(name)]
        else:
            owners = [log_dir for log_dir in log_dirs if log_dir.directory_id == assigned]
        if owners:
            missing.by_path[owners[0].path].append(name)
        elif assigned is not None:
            missing.not_given.setdefault(assigned, []).append(name)
    return missing


class DamagedLog(NamedTuple):
    """A log with damage."""

    damages: list[Damage]
    checked: CheckedLog | None = None  # None: its directory is missing
    interrupted: RepairDirectories | None = None  # a complete repair; `checked` is the repaired log
    refused: str = ""  # why no repair is possible, and what to do


class LogDirCheck:
    """Checks every partition of a log dir. The log dir is locked until it is closed; a check changes no file."""

    def __init__(self, path: str, disk: OsDisk) -> None:
        self._disk = disk
        self.log_dir = LogDir.open(path, disk, node_id=None)
        self._topics: Topics = {}
        self.damaged: dict[TopicPartition, DamagedLog] = {}

    def run(
        self, topics: Topics, missing: MissingPartitions = NONE_MISSING, progress: Progress = unreported
    ) -> Iterator[Finding]:
        """Check the checkpoints and all logs, also those that are missing in this log dir; yield the findings."""
        self._topics = topics
        for file, reason in self.log_dir.unreadable.items():
            path = os.path.join(self.log_dir.path, file)
            yield Finding("-", path, None, None, reason, "nothing", "the next start writes it again")
        found = {one.partition: one for one in self.log_dir.partitions() if one.directory not in missing.shared}
        absent = missing.by_path.get(self.log_dir.path, ())
        for name, one in found.items():
            if name in absent:
                continue
            self._check(name, one.directory, progress)
            if name in self.damaged:
                damages, refused = self.damaged[name].damages, self.damaged[name].refused
                yield from (_finding(name, damage, refused) for damage in damages)
        for name in absent:
            yield self._check_foreign(found[name]) if name in found else self._check_missing(name, missing.shared)

    def repair(self, accept_loss: bool) -> Iterator[tuple[TopicPartition, Repaired | str]]:
        """Repair the damaged logs after a check; yield each one, or why it is not repaired."""
        self.log_dir.rename_irregular()
        if any(name in self.log_dir.unreadable for name in (RECOVERY_POINTS_FILE, LOG_STARTS_FILE)):
            self.log_dir.write_recovery_points(self.log_dir.recovery_points)
            self.log_dir.write_log_start_offsets(self.log_dir.log_start_offsets)
        if CLEANER_FILE in self.log_dir.unreadable:
            self.log_dir.write_cleaner_offsets(self.log_dir.cleaner_offsets)
        for name, (damages, checked, interrupted, refused) in self.damaged.items():
            repair = LogRepair(self.log_dir, name, self._disk)
            if refused:
                yield name, refused
            elif interrupted is not None and checked is not None:
                yield name, repair.complete(interrupted, checked.end_offset)
            elif any(costs_records(damage) for damage in damages) and not accept_loss:
                yield name, "records are lost; try: --accept-loss"
            else:
                yield name, self._repair(repair, name, checked)

    def _repair(self, repair: LogRepair, name: TopicPartition, checked: CheckedLog | None) -> Repaired | str:
        """Repair one log; an error of a file concerns only this log."""
        try:
            return repair.run(checked, self._topics[name].topic_id if checked is None else None)
        except OSError as error:
            if error.errno not in FILE_ERRORS - RESOURCE_ERRORS:
                raise
            return f"{error.filename}: {error.strerror}"

    def _check(self, name: TopicPartition, directory: str, progress: Progress) -> None:
        """Check the files of a log; an error of one of them is damage of this log only."""
        checked = self._checked_log(name, directory, progress)
        try:
            if damages := checked.check():
                refused = LogRepair(self.log_dir, name, self._disk).implausible_offset(checked)
                self.damaged[name] = DamagedLog(damages, checked, refused=refused)
        except OSError as error:
            if error.errno not in FILE_ERRORS - RESOURCE_ERRORS:
                raise
            damage = Damage(error.filename or directory, error.strerror or str(error))
            self.damaged[name] = DamagedLog([damage], checked, refused=f"{damage}; make it readable, and check again")

    def _checked_log(self, name: TopicPartition, directory: str, progress: Progress = unreported) -> CheckedLog:
        checkpoint, assignment = self.log_dir.checkpoint_of(name), self._topics.get(name)
        compacted = assignment is None or assignment.compacts or self.log_dir.may_be_compacted(name)
        if compacted and assignment is not None and assignment.is_replicated:
            checkpoint = checkpoint._replace(may_have_gaps=True)
        return CheckedLog(ReadOnlyDisk(), directory, checkpoint, compacted=compacted, progress=progress)

    def _check_foreign(self, found: FoundPartition) -> Finding:
        """Describe a directory that has the name of a partition, and the topic id of another topic."""
        name, topic_id = found.partition, found.topic_id or UUID(int=0)
        file = os.path.join(found.directory, METADATA_FILE)
        owners = [f"topic {one.topic!r}" for one, known in self._topics.items() if known.topic_id == topic_id]
        owner, expected = (owners or ["no topic"])[0], encode_uuid(self._topics[name].topic_id)
        problem = f"topic id {encode_uuid(topic_id)} is that of {owner}, but {name.topic!r} has {expected}"
        remedy = f"delete the file if only it is wrong; otherwise rename the directory and restore that of {name}"
        damage = Damage(file, problem)
        self.damaged[name] = DamagedLog([damage], refused=remedy)
        return _finding(name, damage, remedy)

    def _check_missing(self, name: TopicPartition, shared: Mapping[str, str]) -> Finding:
        """Check a partition without a directory, which an interrupted repair may have left complete under its name."""
        checkpoint = self.log_dir.checkpoint_of(name)
        interrupted = self.log_dir.interrupted_repair(name, self._topics[name].topic_id)
        if interrupted is not None:
            checked = self._checked_log(name, interrupted.repaired)
            if not any(map(costs_records, checked.check())):  # otherwise the repair was of an older log
                self.damaged[name] = DamagedLog([], checked, interrupted)
                problem = "the repair of the partition was interrupted when this directory was complete"
                return Finding(str(name), interrupted.repaired, None, None, problem, "nothing", f"rename it to {name}")
        repair = LogRepair(self.log_dir, name, self._disk)
        known, refused = (
            range(checkpoint.log_start_offset or 0, repair.known_end(None)),
            repair.implausible_offset(None),
        )
        path = os.path.join(self.log_dir.path, str(name))
        problem = self.log_dir.why_not_a_directory(name) or "the directory is missing"
        if path in shared:
            problem = f"it is a link to {shared[path]}, the directory of another partition"
        damage = Damage(path, problem, lost=known)
        self.damaged[name] = DamagedLog([damage], refused=refused)
        finding = _finding(name, damage, refused)
        if refused:
            return finding
        lost = f"offsets {known.start} to {known.stop - 1}" if known else "nothing"
        if not checkpoint.clean:
            lost = f"unknown, at least {lost}" if known else "unknown"
        return finding._replace(lost=lost, repair=f"with --accept-loss: create an empty log at offset {known.stop}")

    def close(self) -> None:
        """Unlock the log dir; the marker of a clean shutdown stays as it is."""
        self.log_dir.close(clean=False)


def not_given(directory_id: UUID, partitions: Sequence[TopicPartition]) -> Finding:
    """Describe a log dir that the metadata knows, but that is not checked."""
    problem = f"the log dir of {len(partitions)} partitions, the first is {partitions[0]}, is not given"
    remedy = f"{NOT_POSSIBLE}: give all of log.dirs"
    return Finding("-", f"directory.id={encode_uuid(directory_id)}", None, None, problem, "unknown", remedy)


def no_metadata(path: str, found: Sequence[str]) -> Finding:
    """Describe that the first log dir has no metadata; `found` are the files of the others."""
    problem = "it is missing, but there are partitions: the broker does not start"
    remedy = "restore it, or move the partitions away"
    if found:
        problem = f"it is missing, but {found[0]} is there: the first of log.dirs holds the metadata"
        remedy = "give the directories in the order of log.dirs; if this is their order, they were exchanged"
    else:
        remedy += "; give all of log.dirs, the first of them first"
    return Finding("-", path, None, None, problem, "unknown", f"{NOT_POSSIBLE}: {remedy}")


def _finding(name: TopicPartition, damage: Damage, refused: str) -> Finding:
    lost = f"offsets {damage.lost.start} to {damage.lost.stop - 1}" if damage.lost else "nothing"
    if refused:
        repair, lost = f"{NOT_POSSIBLE}: {refused}", "unknown"
    elif damage.in_checkpoint:
        repair = "remove the entry of the checkpoint"
    elif damage.in_index:
        repair = "rebuild the file"
    elif damage.in_batch:
        repair, lost = "with --accept-loss: remove the batches that fit no offset", "unknown"
    elif not damage.lost and damage.position is not None:
        repair = "remove the invalid bytes"
    elif damage.lost:
        repair = "with --accept-loss: replace the offsets by empty batches"
    else:
        repair, lost = "with --accept-loss: go on without the file", "unknown"
    offset = damage.lost.start if damage.lost else None
    return Finding(str(name), damage.file, damage.position, offset, damage.problem, lost, repair)
