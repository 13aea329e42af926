"""`levada txn list|describe|abort|commit`."""

from typing import TYPE_CHECKING, Any

import click

from levada.cli.errors import CommandError, not_found
from levada.cli.options import confirm, connection_options, notice, output_option, require_topic, with_client
from levada.cli.output import Output, emit, emit_one, table
from levada.cli.settings import ClientProperties
from levada.clock import SystemClock
from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.client.admin.transactions import OpenTransaction, TransactionState
    from levada.client.client import Client
    from levada.spark.write.owners import Owner

COLUMNS = (
    "transactional_id",
    "state",
    "producer_id",
    "epoch",
    "open_seconds",
    "timeout_seconds",
    "owner",
    "partitions",
)
COLUMNS_WITHOUT_OWNER = tuple(name for name in COLUMNS if name != "owner")
HANGING_COLUMNS = ("topic", "partition", "producer_id", "epoch", "start_offset", "silent_seconds")
ENDING = ("PrepareCommit", "PrepareAbort")
TWO_PHASE_TIMEOUT = "levada.transaction.two.phase.commit.timeout.ms"


@click.group()
def txn() -> None:
    """List and describe transactions; abort or commit hanging and prepared ones.

    \b
    Examples:
      levada txn list --open
      levada txn list --hanging
      levada txn describe billing-7
      levada txn abort billing-7
    """


@txn.command("list")
@click.option("--open", "only_open", is_flag=True, help="Only open transactions.")
@click.option(
    "--longer-than",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="Only transactions open for longer.",
)
@click.option(
    "--hanging",
    is_flag=True,
    help="Transactions that block read_committed consumers and that no coordinator will end.",
)
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="With --hanging: only in this topic.")
@output_option
@connection_options
def list_transactions(
    only_open: bool,
    longer_than: float | None,
    hanging: bool,
    topics: tuple[str, ...],
    output: Output,
    properties: ClientProperties,
) -> None:
    """List transactional ids and their open or last transactions.

    A transaction of two-phase commit has the timeout of its broker, which counts from its last renewal; until then
    only its owner or you can end it. The owner of a transaction of the Spark sink is its query or job; one that is
    "committed, not ended yet" belongs to a batch in the commit log: commit it, do not abort it.

    \b
    Examples:
      levada txn list
      levada txn list --longer-than 600
      levada txn list --hanging --topic orders
    """
    _check_topics(topics, hanging)
    if hanging and (only_open or longer_than is not None):
        raise click.UsageError(
            "--hanging lists transactions that coordinators do not know; omit --open and --longer-than"
        )
    if hanging:
        found = with_client(properties, lambda client: _hanging(client, topics))
        if not found and output == "table":
            notice("no hanging transactions")
        else:
            emit([_hanging_row(one) for one in found], output, HANGING_COLUMNS)
        return
    from levada.client.admin.transactions import ACTIVE_STATES, TransactionAdmin

    states = ACTIVE_STATES if only_open or longer_than is not None else ()

    async def work(client: "Client") -> list[dict[str, Any]]:
        return await _rows(client, await TransactionAdmin(client).list_transactions(states))

    rows = with_client(properties, work)
    if longer_than is not None:
        rows = [row for row in rows if (row["open_seconds"] or 0) > longer_than]
    if not rows and output == "table":
        notice(_none_listed(only_open, longer_than))
    elif output == "table":
        _emit_table(rows)
    else:
        emit(rows, output)


def _none_listed(only_open: bool, longer_than: float | None) -> str:
    if longer_than is not None:
        return f"no transaction has been open for more than {longer_than:g} s"
    return (
        "no open transactions" if only_open else "no transactional ids; a producer with a transactional.id creates one"
    )


@txn.command()
@click.argument("names", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@output_option
@connection_options
def describe(names: tuple[str, ...], output: Output, properties: ClientProperties) -> None:
    """Show transactions and the partitions they have written to.

    \b
    Examples:
      levada txn describe billing-7
      levada txn describe billing-7 -o json
    """

    async def work(client: "Client") -> list[dict[str, Any]]:
        return await _rows(client, [await _find(client, name) for name in names])

    rows = with_client(properties, work)
    if output == "json" and len(rows) == 1:
        emit_one(rows[0], output)
    elif output != "table":
        emit(rows, output)
    else:
        for row in rows:
            click.echo(table([row], COLUMNS_WITHOUT_OWNER[:-1]), nl=False)
            for partition in row["partitions"]:
                click.echo(f"  {partition}")
            for field, value in (row["owner"] or {}).items():
                if field != "text" and value is not None:
                    click.echo(f"  {field}: {value}")


@txn.command(short_help="Abort open transactions.")
@click.argument("names", metavar="[TRANSACTIONAL_ID...]", nargs=-1)
@click.option("--hanging", is_flag=True, help="Abort all hanging transactions.")
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="With --hanging: only in this topic.")
@click.option(
    "--force", is_flag=True, help="Also transactions that the commit log of the Spark sink has committed, or may have."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@connection_options
def abort(
    names: tuple[str, ...], hanging: bool, topics: tuple[str, ...], force: bool, yes: bool, properties: ClientProperties
) -> None:
    """Abort open and prepared transactions; their producers are fenced.

    A transaction of the Spark sink that is "committed, not ended yet" is refused, since its rows would be lost: commit
    it, or give --force. So is one of which the commit log cannot tell now. Nothing is aborted then.

    \b
    Examples:
      levada txn abort billing-7
      levada txn abort --hanging --topic orders
    """
    if bool(names) == hanging:
        raise click.UsageError("give transactional ids or --hanging")
    _check_topics(topics, hanging)
    if hanging:
        _abort_hanging(topics, yes, properties)
        return
    from levada.client.admin.transactions import TransactionAdmin

    with_client(properties, lambda client: _check_abortable(client, names, force))
    confirm(f"abort {', '.join(names)}?", yes)

    async def work(client: "Client") -> None:
        for name in names:
            await TransactionAdmin(client).abort(name)
            notice(f"aborted {name}")

    with_client(properties, work)


@txn.command(short_help="Commit prepared transactions.")
@click.argument("names", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@connection_options
def commit(names: tuple[str, ...], yes: bool, properties: ClientProperties) -> None:
    """Commit prepared transactions of two-phase commit in place of their owners.

    \b
    Examples:
      levada txn commit spark-orders-3
    """
    from levada.client.admin.transactions import TransactionAdmin

    async def check(client: "Client") -> None:
        for name in names:
            state = await _find(client, name)
            _check_open(state)
            if not state.is_two_phase:
                raise CommandError(
                    f"{name} does not use two-phase commit: only its producer knows whether all records were written",
                    hint=f"try: levada txn abort {name}",
                )

    with_client(properties, check)
    confirm(f"commit {', '.join(names)}?", yes)

    async def work(client: "Client") -> None:
        for name in names:
            await TransactionAdmin(client).commit(name)
            notice(f"committed {name}")

    with_client(properties, work)


async def _check_abortable(client: "Client", names: tuple[str, ...], force: bool) -> None:
    """Check that the transactions are open, and unless `force` that the commit log has committed none of them."""
    from levada.spark.write.owners import find_owners

    states = [await _find(client, name) for name in names]
    for state in states:
        _check_open(state)
    owners = await find_owners(client, states)
    if force:
        return
    committed = [name for name, owner in owners.items() if owner.is_committed]
    if committed:
        raise CommandError(
            f"batch {owners[committed[0]].last_batch} of the query of {committed[0]} is committed, not ended yet, "
            "and an abort loses its rows",
            hint=f"try: levada txn commit {' '.join(committed)}, or --force",
        )
    unknown = [name for name, owner in owners.items() if owner.is_committed is None]
    if unknown:
        raise CommandError(
            f"commit log not readable: the batch of {unknown[0]} may be committed, not ended yet, and an abort loses "
            "its rows",
            hint="try again later: a partition is offline, or a transaction is open in it; or --force",
        )


def _check_topics(topics: tuple[str, ...], hanging: bool) -> None:
    if topics and not hanging:
        raise click.UsageError("--topic needs --hanging")


def _abort_hanging(topics: tuple[str, ...], yes: bool, properties: ClientProperties) -> None:
    from levada.client.admin.transactions import TransactionAdmin

    found = with_client(properties, lambda client: _hanging(client, topics))
    if not found:
        notice("no hanging transactions")
        return
    emit([_hanging_row(one) for one in found], "table", HANGING_COLUMNS)
    confirm(f"abort these {len(found)}?", yes)

    async def work(client: "Client") -> None:
        shown = {one.identity for one in found}
        for one in await _hanging(client, topics):  # list again: the confirmation may have taken long
            if one.identity not in shown:
                continue
            await TransactionAdmin(client).abort_hanging(one)
            notice(f"aborted the transaction of producer {one.producer_id} in {one.partition}")

    with_client(properties, work)


async def _hanging(client: "Client", topics: tuple[str, ...]) -> "list[OpenTransaction]":
    from levada.client.admin.transactions import TransactionAdmin

    for topic in topics:
        await require_topic(client, topic)
    return await TransactionAdmin(client).find_hanging(topics)


async def _find(client: "Client", name: str) -> "TransactionState":
    """The transaction; ends the command with exit code 4 if its id does not exist."""
    from levada.client.admin.transactions import TransactionAdmin

    try:
        return await TransactionAdmin(client).describe(name)
    except KafkaError as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
    known = [state.transactional_id for state in await TransactionAdmin(client).list_transactions()]
    raise not_found("transactional id", name, known, "try: levada txn list")


def _check_open(state: "TransactionState") -> None:
    if state.state in ENDING:
        raise CommandError(f"{state.transactional_id} is ending ({state.state})", hint="try: levada txn describe")
    if state.state != "Ongoing":
        raise CommandError(f"{state.transactional_id} has no open transaction ({state.state})")


async def _rows(client: "Client", states: "list[TransactionState]") -> list[dict[str, Any]]:
    from levada.spark.write.owners import find_owners

    is_needed = any(state.is_two_phase for state in states)
    two_phase_timeout_ms = await _two_phase_timeout_ms(client) if is_needed else None
    owners = await find_owners(client, states)
    if any(owner.is_committed is None for owner in owners.values()):
        notice("commit log not readable: owners are incomplete")
    return [_row(state, two_phase_timeout_ms, owners.get(state.transactional_id)) for state in states]


def _emit_table(rows: list[dict[str, Any]]) -> None:
    """Print a table with the owners of transactions, if one is known."""
    shown = [row | {"owner": row["owner"] and row["owner"]["text"]} for row in rows]
    emit(shown, "table", COLUMNS if any(row["owner"] for row in rows) else COLUMNS_WITHOUT_OWNER)


async def _two_phase_timeout_ms(client: "Client") -> int | None:
    """The timeout of two-phase transactions; None if they never time out, as with brokers other than Levada."""
    node = next(iter((await client.metadata(())).brokers))
    for entry in await client.admin.describe_configs("broker", str(node), [TWO_PHASE_TIMEOUT]):
        if entry.value is not None and int(entry.value) >= 0:
            return int(entry.value)
    return None


def _row(state: "TransactionState", two_phase_timeout_ms: int | None, owner: "Owner | None") -> dict[str, Any]:
    from levada.client.admin.transactions import ACTIVE_STATES

    timeout_ms = two_phase_timeout_ms if state.is_two_phase else state.timeout_ms
    open_seconds = None
    if state.state in ACTIVE_STATES and state.started_ms is not None:
        open_seconds = _seconds_since(state.started_ms)
    return {
        "transactional_id": state.transactional_id,
        "state": state.state,
        "producer_id": state.producer_id,
        "epoch": state.producer_epoch,
        "open_seconds": open_seconds,
        "timeout_seconds": None if timeout_ms is None else timeout_ms / 1000,
        "two_phase": state.is_two_phase,
        "owner": None if owner is None else owner._asdict() | {"text": owner.text},
        "partitions": [str(partition) for partition in sorted(state.partitions)],
    }


def _hanging_row(one: "OpenTransaction") -> dict[str, Any]:
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "producer_id": one.producer_id,
        "epoch": one.producer_epoch,
        "start_offset": one.start_offset,
        "silent_seconds": _seconds_since(one.last_timestamp_ms),
    }


def _seconds_since(time_ms: int) -> float:
    return round(max(0, SystemClock().now_ms() - time_ms) / 1000, 1)
