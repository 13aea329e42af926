"""`levada txn`: list, describe, abort, commit."""

from typing import TYPE_CHECKING, Any

import click

from levada.cli.errors import EXIT_NOT_FOUND, Failure, did_you_mean
from levada.cli.options import confirm, connects, existing_topic, prints, say, with_client
from levada.cli.output import Output, emit, emit_one, table
from levada.clock import SystemClock
from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.client.admin.transactions import OpenTransaction, TransactionState
    from levada.client.client import Client

COLUMNS = (
    "transactional_id",
    "state",
    "producer_id",
    "epoch",
    "open_seconds",
    "timeout_seconds",
    "partitions",
)
HANGING_COLUMNS = ("topic", "partition", "producer_id", "epoch", "start_offset", "silent_seconds")
ENDING = ("PrepareCommit", "PrepareAbort")


@click.group()
def txn() -> None:
    """List and describe transactions, and end those that hang or were prepared and left.

    \b
    Examples:
      levada txn list --open
      levada txn list --hanging
      levada txn describe billing-7
      levada txn abort billing-7
    """


@txn.command("list")
@click.option("--open", "only_open", is_flag=True, help="Only those that have begun and are not over.")
@click.option(
    "--longer-than", metavar="SECONDS", type=click.FloatRange(min=0), help="Only those open for longer."
)
@click.option(
    "--hanging", is_flag=True, help="Those that hold up readers, and that no coordinator will ever end."
)
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="With --hanging: look only there.")
@prints
@connects
def list_transactions(
    only_open: bool,
    longer_than: float | None,
    hanging: bool,
    topics: tuple[str, ...],
    output: Output,
    bootstrap: str,
    timeout: float,
) -> None:
    """List transactional ids and their open or last transactions.

    Without a timeout a transaction is one of two-phase commit: prepared, and ended only by its owner or by you.

    \b
    Examples:
      levada txn list
      levada txn list --longer-than 600
      levada txn list --hanging --topic orders
    """
    _check_topics(topics, hanging)
    if hanging and (only_open or longer_than is not None):
        raise click.UsageError(
            "--hanging lists what coordinators do not know; leave out --open and --longer-than"
        )
    if hanging:
        found = with_client(bootstrap, timeout, lambda client: _hanging(client, topics))
        if not found and output == "table":
            say("no transaction hangs")
        else:
            emit([_hanging_row(one) for one in found], output, HANGING_COLUMNS)
        return
    from levada.client.admin.transactions import UNDER_WAY, TransactionAdmin

    states = UNDER_WAY if only_open or longer_than is not None else ()
    known = with_client(bootstrap, timeout, lambda client: TransactionAdmin(client).known(states))
    rows = [_row(state) for state in known]
    if longer_than is not None:
        rows = [row for row in rows if (row["open_seconds"] or 0) > longer_than]
    if not rows and output == "table":
        say(
            "no such transactions"
            if states
            else "no transactional ids; a producer with a transactional.id makes one"
        )
    else:
        emit(rows, output, COLUMNS)


@txn.command()
@click.argument("names", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@prints
@connects
def describe(names: tuple[str, ...], output: Output, bootstrap: str, timeout: float) -> None:
    """Show transactions and the partitions they have written to.

    \b
    Examples:
      levada txn describe billing-7
      levada txn describe billing-7 -o json
    """

    async def work(client: "Client") -> "list[TransactionState]":
        return [await _find(client, name) for name in names]

    rows = [_row(state) for state in with_client(bootstrap, timeout, work)]
    if output == "json" and len(rows) == 1:
        emit_one(rows[0], output)
    elif output != "table":
        emit(rows, output)
    else:
        for row in rows:
            click.echo(table([row], COLUMNS[:-1]), nl=False)
            for place in row["partitions"]:
                click.echo(f"  {place}")


@txn.command(short_help="Abort open transactions.")
@click.argument("names", metavar="[TRANSACTIONAL_ID...]", nargs=-1)
@click.option("--hanging", is_flag=True, help="End all that hang.")
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="With --hanging: only there.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@connects
def abort(
    names: tuple[str, ...], hanging: bool, topics: tuple[str, ...], yes: bool, bootstrap: str, timeout: float
) -> None:
    """Abort open transactions, prepared ones too; whoever writes in them is fenced.

    \b
    Examples:
      levada txn abort billing-7
      levada txn abort --hanging --topic orders
    """
    if bool(names) == hanging:
        raise click.UsageError("name transactional ids, or give --hanging")
    _check_topics(topics, hanging)
    if hanging:
        _abort_hanging(topics, yes, bootstrap, timeout)
        return
    from levada.client.admin.transactions import TransactionAdmin

    async def check(client: "Client") -> None:
        for name in names:
            _check_open(await _find(client, name))

    with_client(bootstrap, timeout, check)
    confirm(f"abort {', '.join(names)}?", yes)

    async def work(client: "Client") -> None:
        for name in names:
            await TransactionAdmin(client).abort(name)
            say(f"aborted {name}")

    with_client(bootstrap, timeout, work)


@txn.command(short_help="Commit prepared transactions whose owners are gone.")
@click.argument("names", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@connects
def commit(names: tuple[str, ...], yes: bool, bootstrap: str, timeout: float) -> None:
    """Commit transactions of two-phase commit whose owners are gone: you know that all was prepared.

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
                raise Failure(
                    f"{name} is not of two-phase commit: only its producer knows whether all was written",
                    hint=f"try: levada txn abort {name}",
                )

    with_client(bootstrap, timeout, check)
    confirm(f"commit {', '.join(names)}?", yes)

    async def work(client: "Client") -> None:
        for name in names:
            await TransactionAdmin(client).commit(name)
            say(f"committed {name}")

    with_client(bootstrap, timeout, work)


def _check_topics(topics: tuple[str, ...], hanging: bool) -> None:
    if topics and not hanging:
        raise click.UsageError("--topic goes with --hanging; give both, or leave --topic out")


def _abort_hanging(topics: tuple[str, ...], yes: bool, bootstrap: str, timeout: float) -> None:
    from levada.client.admin.transactions import TransactionAdmin

    found = with_client(bootstrap, timeout, lambda client: _hanging(client, topics))
    if not found:
        say("no transaction hangs")
        return
    emit([_hanging_row(one) for one in found], "table", HANGING_COLUMNS)
    confirm(f"abort these {len(found)}?", yes)

    async def work(client: "Client") -> None:
        shown = {one.identity for one in found}
        for one in await _hanging(client, topics):  # again, since who was asked may have taken their time
            if one.identity not in shown:
                continue
            await TransactionAdmin(client).abort_hanging(one)
            say(
                f"aborted that of producer {one.producer_id} in {one.partition.topic}-{one.partition.partition}"
            )

    with_client(bootstrap, timeout, work)


async def _hanging(client: "Client", topics: tuple[str, ...]) -> "list[OpenTransaction]":
    from levada.client.admin.transactions import TransactionAdmin

    for topic in topics:
        await existing_topic(client, topic)
    return await TransactionAdmin(client).hanging(topics)


async def _find(client: "Client", name: str) -> "TransactionState":
    """The transactional id; ends the command with code 4 if nobody has it."""
    from levada.client.admin.transactions import TransactionAdmin

    try:
        return await TransactionAdmin(client).describe(name)
    except KafkaError as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
    known = [state.transactional_id for state in await TransactionAdmin(client).known()]
    raise Failure(
        f"no such transactional id: {name}{did_you_mean(name, known)}", EXIT_NOT_FOUND, "try: levada txn list"
    )


def _check_open(state: "TransactionState") -> None:
    if state.state in ENDING:
        raise Failure(
            f"{state.transactional_id} is being ended ({state.state})", hint="try: levada txn describe"
        )
    if state.state != "Ongoing":
        raise Failure(f"{state.transactional_id} has no open transaction ({state.state})")


def _row(state: "TransactionState") -> dict[str, Any]:
    from levada.client.admin.transactions import UNDER_WAY

    open_seconds = None
    if state.state in UNDER_WAY and state.started_ms is not None:
        open_seconds = _seconds_since(state.started_ms)
    return {
        "transactional_id": state.transactional_id,
        "state": state.state,
        "producer_id": state.producer_id,
        "epoch": state.producer_epoch,
        "open_seconds": open_seconds,
        "timeout_seconds": None if state.timeout_ms is None else state.timeout_ms / 1000,
        "two_phase": state.is_two_phase,
        "partitions": [f"{place.topic}-{place.partition}" for place in sorted(state.partitions)],
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
