"""Checks and repairs the logs of a log dir that no broker uses (`levada log check` and `repair`)."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from levada.model import TopicPartition
from levada.storage.disk import FILE_ERRORS, RESOURCE_ERRORS, OsDisk
from levada.storage.file_names import METADATA_FILE, RepairDirectories
from levada.storage.log.check import CheckedLog, ReadOnlyDisk
from levada.storage.log.damage import Damage
from levada.storage.log.repair import LogRepair, Repaired, costs_records
from levada.storage.log.scan import Progress, unreported
from levada.storage.log_dir import LOG_STARTS_FILE, RECOVERY_POINTS_FILE, FoundPartition, LogDir, encode_uuid


class Assignment(NamedTuple):
    """What the metadata says about a partition of this broker."""

    topic_id: UUID
    directory_id: UUID | None  # of its log dir; None: it is of a version that did not assign partitions


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


def find_missing(log_dirs: Sequence[LogDir], topics: Topics) -> MissingPartitions:
    """Return the partitions without a directory, by the rules of a start."""
    found: dict[TopicPartition, list[tuple[LogDir, UUID | None]]] = {}
    for log_dir in log_dirs:
        for one in log_dir.partitions():
            found.setdefault(one.partition, []).append((log_dir, one.topic_id))
    missing = MissingPartitions({log_dir.path: [] for log_dir in log_dirs}, {})
    for name, (topic_id, assigned) in sorted(topics.items()):
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
        self, topics: Topics, missing: Collection[TopicPartition] = (), progress: Progress = unreported
    ) -> Iterator[Finding]:
        """Check the checkpoints and all logs, also those that are `missing` in this log dir; yield the findings."""
        self._topics = topics
        for file, reason in self.log_dir.unreadable.items():
            path = os.path.join(self.log_dir.path, file)
            yield Finding("-", path, None, None, reason, "nothing", "the next start reads all logs and writes it again")
        found = {one.partition: one for one in self.log_dir.partitions()}
        for name, one in found.items():
            if name in missing:
                continue
            self._check(name, one.directory, progress)
            if name in self.damaged:
                damages, refused = self.damaged[name].damages, self.damaged[name].refused
                yield from (_finding(name, damage, refused) for damage in damages)
        for name in missing:
            yield self._check_foreign(found[name]) if name in found else self._check_missing(name)

    def repair(self, accept_loss: bool) -> Iterator[tuple[TopicPartition, Repaired | str]]:
        """Repair the damaged logs after a check; yield each one, or why it is not repaired."""
        if any(name in self.log_dir.unreadable for name in (RECOVERY_POINTS_FILE, LOG_STARTS_FILE)):
            self.log_dir.write_recovery_points(self.log_dir.recovery_points)
            self.log_dir.write_log_start_offsets(self.log_dir.log_start_offsets)
        for name, (damages, checked, interrupted, refused) in self.damaged.items():
            repair = LogRepair(self.log_dir, name, self._disk)
            if refused:
                yield name, refused
            elif interrupted is not None and checked is not None:
                yield name, repair.complete(interrupted, checked.end_offset)
            elif any(costs_records(damage) for damage in damages) and not accept_loss:
                yield name, "records are lost; try: --accept-loss"
            else:
                yield name, repair.run(checked, self._topics[name].topic_id if checked is None else None)

    def _check(self, name: TopicPartition, directory: str, progress: Progress) -> None:
        """Check the files of a log; an error of one of them is damage of this log only."""
        checked = CheckedLog(ReadOnlyDisk(), directory, self.log_dir.checkpoint_of(name), progress)
        try:
            if damages := checked.check():
                refused = LogRepair(self.log_dir, name, self._disk).implausible_offset(checked)
                self.damaged[name] = DamagedLog(damages, checked, refused=refused)
        except OSError as error:
            if error.errno not in FILE_ERRORS - RESOURCE_ERRORS:
                raise
            damage = Damage(error.filename or directory, error.strerror or str(error))
            self.damaged[name] = DamagedLog([damage], checked, refused=f"{damage}; make it readable, and check again")

    def _check_foreign(self, found: FoundPartition) -> Finding:
        """Describe a directory that has the name of a partition, and the topic id of another topic."""
        name, topic_id = found.partition, found.topic_id or UUID(int=0)
        file = os.path.join(found.directory, METADATA_FILE)
        owners = [f"topic {one.topic!r}" for one, (one_id, _) in self._topics.items() if one_id == topic_id]
        owner, expected = (owners or ["no topic"])[0], encode_uuid(self._topics[name].topic_id)
        problem = f"topic id {encode_uuid(topic_id)} is that of {owner}, but {name.topic!r} has {expected}"
        remedy = f"delete the file if only it is wrong; otherwise rename the directory and restore that of {name}"
        damage = Damage(file, problem)
        self.damaged[name] = DamagedLog([damage], refused=remedy)
        return _finding(name, damage, remedy)

    def _check_missing(self, name: TopicPartition) -> Finding:
        """Check a partition without a directory, which an interrupted repair may have left complete under its name."""
        checkpoint = self.log_dir.checkpoint_of(name)
        interrupted = self.log_dir.interrupted_repair(name, self._topics[name].topic_id)
        if interrupted is not None:
            checked = CheckedLog(ReadOnlyDisk(), interrupted.repaired, checkpoint)
            if not any(map(costs_records, checked.check())):  # otherwise the repair was of an older log
                self.damaged[name] = DamagedLog([], checked, interrupted)
                problem = "the repair of the partition was interrupted when this directory was complete"
                return Finding(str(name), interrupted.repaired, None, None, problem, "nothing", f"rename it to {name}")
        repair = LogRepair(self.log_dir, name, self._disk)
        known, refused = (
            range(checkpoint.log_start_offset or 0, repair.known_end(None)),
            repair.implausible_offset(None),
        )
        damage = Damage(os.path.join(self.log_dir.path, str(name)), "the directory is missing", lost=known)
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
    remedy = "not possible: give all of log.dirs"
    return Finding("-", f"directory.id={encode_uuid(directory_id)}", None, None, problem, "unknown", remedy)


def _finding(name: TopicPartition, damage: Damage, refused: str) -> Finding:
    lost = f"offsets {damage.lost.start} to {damage.lost.stop - 1}" if damage.lost else "nothing"
    if refused:
        repair, lost = f"not possible: {refused}", "unknown"
    elif damage.in_checkpoint:
        repair = "remove the entry of the checkpoint"
    elif damage.in_index:
        repair = "rebuild the file"
    elif not damage.lost and damage.position is not None:
        repair = "remove the invalid bytes"
    elif damage.lost:
        repair = "with --accept-loss: replace the offsets by empty batches"
    else:
        repair, lost = "with --accept-loss: go on without the file", "unknown"
    offset = damage.lost.start if damage.lost else None
    return Finding(str(name), damage.file, damage.position, offset, damage.problem, lost, repair)
