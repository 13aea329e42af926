"""`levada log check` and `levada log repair`: the data directories of a broker that does not run."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from levada.cli.errors import CommandError
from levada.cli.options import output_option
from levada.cli.output import Output, emit, printable

if TYPE_CHECKING:
    from levada.core.cluster.image import ClusterImage
    from levada.storage.disk import OsDisk
    from levada.storage.log_check import Finding, LogDirCheck, Topics

METADATA_FILE = "levada-metadata.db"
PROGRESS_S = 2.0
UNKNOWN_END = (
    "lost: unknown; no checkpoint has the end of the old log, and offsets from {offset} on may be given out again"
)
HANGING = (
    "the end of a transaction may be lost, and read_committed consumers stop there; start the broker, then see: "
    "levada txn list --hanging --topic {topic}, and: levada txn abort --hanging --topic {topic}"
)

directories = click.argument(
    "directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False)
)


@click.group()
def log() -> None:
    """Check and repair the data directories of a stopped broker.

    \b
    Examples:
      levada log check /var/lib/levada
      levada log repair /var/lib/levada --accept-loss
    """


@log.command()
@directories
@output_option
def check(directories: tuple[str, ...], output: Output) -> None:
    """Read all logs of the data directories (log.dirs) and list all damage; nothing is changed.

    Each line names the partition, the file, the position of the first invalid byte, what is wrong, what is lost and
    what `levada log repair` would do. The exit code is 1 if there is damage.

    \b
    Examples:
      levada log check /var/lib/levada
      levada log check /data/1 /data/2 -o json
    """
    from levada.storage.log.check import ReadOnlyDisk

    with ExitStack() as stack:
        checks = _open(directories, ReadOnlyDisk(), stack)
        findings = [finding for one in _run(checks) for finding in one]
    _print(findings, output)
    if findings:
        raise click.exceptions.Exit(1)


@log.command()
@directories
@click.option("--accept-loss", is_flag=True, help="Also repair what gives up records; lists what is lost.")
@output_option
def repair(directories: tuple[str, ...], accept_loss: bool, output: Output) -> None:
    """Repair the damage that `levada log check` lists.

    Without --accept-loss only what costs no record is repaired: indexes, entries of checkpoints, invalid bytes after
    the end. With it empty batches, which consumers skip, take the place of lost offsets, so that no offset is given
    out twice. The damaged files are kept in a directory beside, which the broker ignores. The exit code is 1 if
    damage remains.

    \b
    Examples:
      levada log repair /var/lib/levada
      levada log repair /var/lib/levada --accept-loss
    """
    from levada.storage.disk import OsDisk
    from levada.storage.log_check import NOT_POSSIBLE

    with ExitStack() as stack:
        checks = _open(directories, OsDisk(), stack)
        findings = [finding for one in _run(checks) for finding in one]
        _print(findings, output)
        remaining = any(finding.partition == "-" and finding.repair.startswith(NOT_POSSIBLE) for finding in findings)
        for one in checks:
            for name, repaired in one.repair(accept_loss):
                if isinstance(repaired, str):
                    remaining = True
                    click.echo(f"{name}: not repaired: {repaired}", err=True)
                    continue
                lost = "".join(
                    f", offsets {one.start} to {one.stop - 1} replaced by empty batches" for one in repaired.lost
                )
                kept = f", damaged files kept in {repaired.kept}" if repaired.kept else ""
                click.echo(f"{name}: repaired up to offset {repaired.end_offset}{lost}{kept}", err=True)
                if not repaired.end_is_known:
                    click.echo(f"{name}: {UNKNOWN_END.format(offset=repaired.end_offset)}", err=True)
                if repaired.hanging:
                    click.echo(f"{name}: {HANGING.format(topic=name.topic)}", err=True)
    if remaining:
        raise click.exceptions.Exit(1)


def _open(paths: tuple[str, ...], disk: "OsDisk", stack: ExitStack) -> "list[LogDirCheck]":
    """Lock the data directories."""
    from levada.storage.log_check import LogDirCheck
    from levada.storage.log_dir import LogDirError

    checks = []
    for path in paths:
        try:
            checks.append(LogDirCheck(path, disk))
        except LogDirError as error:
            raise CommandError(str(error)) from error
        except FileNotFoundError as error:
            raise CommandError(f"{path} is no data directory of a broker: {error.filename} is missing") from error
        stack.callback(checks[-1].close)
    return checks


def _run(checks: "list[LogDirCheck]") -> "Iterator[Iterator[Finding]]":
    """Check one data directory after the other."""
    from levada.storage.log_check import find_missing, not_given

    topics = _partitions(checks)
    yield _metadata_findings(checks)
    missing = find_missing([one.log_dir for one in checks], topics)
    yield (not_given(*each) for each in missing.not_given.items())
    progress = _Progress()
    for one in checks:
        yield one.run(topics, missing, progress)


def _metadata_findings(checks: "list[LogDirCheck]") -> "Iterator[Finding]":
    """Yield the metadata if it is not in the first data directory: a broker with partitions does not start then."""
    from levada.storage.log_check import no_metadata

    paths = [os.path.join(one.log_dir.path, METADATA_FILE) for one in checks]
    found = [path for path in paths if os.path.exists(path)]
    if found[:1] != paths[:1] and any(one.log_dir.partitions() for one in checks):
        yield no_metadata(paths[0], found)


def _partitions(checks: "list[LogDirCheck]") -> "Topics":
    """The partitions that the broker has in log dirs, from the metadata in the first data directory that has some."""
    from levada.core.cluster.image import UNASSIGNED, ClusterImage
    from levada.core.cluster.metadata_records import decode
    from levada.core.cluster.topic_names import is_internal
    from levada.metadata.sqlite import read_closed_store
    from levada.metadata.store import StoreError
    from levada.model import TopicPartition
    from levada.storage.log_check import Assignment

    for one in checks:
        path = os.path.join(one.log_dir.path, METADATA_FILE)
        if os.path.exists(path):
            try:
                changes = [decode(record.key, record.value) for record in read_closed_store(path)]
            except (StoreError, ValueError) as error:
                raise CommandError(f"{path} cannot be read: {error}") from error
            image = ClusterImage().apply([change for change in changes if change is not None])
            node_id = int(one.log_dir.owner or -1)
            default = _default_cleanup_policy(image, node_id)
            return {
                TopicPartition(name, index): Assignment(
                    topic.id,
                    assigned,
                    is_internal(name) or "compact" in topic.configs.get("cleanup.policy", default),
                )
                for name, topic in image.topics.items()
                for index, state in enumerate(topic.partitions)
                if node_id in state.replicas and (assigned := state.directory_of(node_id)) != UNASSIGNED
            }
    return {}


def _default_cleanup_policy(image: "ClusterImage", node_id: int) -> str:
    """The cleanup.policy of topics without their own, as far as the metadata has it: the dynamic broker settings.

    A setting of the broker's start is not in there; the cleaner's checkpoint has the logs that were compacted by it.
    """
    from levada.core.cluster.image import CLUSTER_DEFAULT

    stored = image.broker_configs
    policies = [stored.get(name, {}).get("log.cleanup.policy") for name in (str(node_id), CLUSTER_DEFAULT)]
    return next(filter(None, policies), "")


class _Progress:
    """Prints how much is read, on standard error, when it takes long."""

    def __init__(self) -> None:
        self._bytes = 0
        self._next = time.monotonic() + PROGRESS_S

    def __call__(self, size: int) -> None:
        self._bytes += size
        if time.monotonic() > self._next:
            self._next += PROGRESS_S
            click.echo(f"{self._bytes / 1e6:,.0f} MB read", err=True)


def _print(findings: "list[Finding]", output: Output) -> None:
    if output != "table":
        emit([finding._asdict() for finding in findings], output)
        return
    for finding in findings:
        at = "" if finding.position is None else f" at byte {finding.position}"
        offset = "" if finding.offset is None else f" (offset {finding.offset})"
        place = f"{finding.partition}: {finding.file}{at}{offset}"
        click.echo(printable(f"{place}: {finding.problem}; lost: {finding.lost}; repair: {finding.repair}"))
    if not findings:
        click.echo("no damage found", err=not sys.stdout.isatty())
