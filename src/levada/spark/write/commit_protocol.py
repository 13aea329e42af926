"""The commit protocol of a streaming query: which transactions of a micro-batch are committed. Pure.

Tasks leave their transactions open. Only a driver ends transactions, in these steps:

1. It initialises the query's *driver transactional id*, which fences an older driver: that one cannot commit any
   more.
2. It reads the query's last record in the commit log.
3. It *fences* every open transaction of the query: it takes over the transactional id and keeps the transaction open
   (KIP-939), so that its former owner cannot end it and it does not time out any more. The transactions of the last
   commit record and of its own batch it fences by name, because ListTransactions leaves out coordinators that move.
4. It appends the record that `plan_commit` returns to the commit log, in a transaction of the driver transactional
   id. With this append the batch is committed.
5. It ends the fenced transactions, according to that record.

A driver that has committed the batch before keeps its producer and that record, and leaves out steps 1 and 2: if
another driver has come since, the append (4) fails, and the driver begins with step 1. Until the append succeeds it has
ended nothing.

Why a committed transaction is never aborted: a driver that aborts has fenced the transaction (3), then appended to
the commit log (4), and then aborts (5). Another driver's commit record was either written before this driver took
over the driver transactional id, and step 2 has read it; or by a driver that took it over after the append (4), and
then that driver has fenced all transactions after this one (3), which can end none of them any more. The last record
is enough: it names all transactions that were ever committed and are still open, because a driver that finds
unfinished transactions in the last record carries them over into its own. Transactions that no list shows and no
record names stay open until a list shows them.

Why nothing is committed twice: a batch has one commit record, which names a transaction by producer id and epoch, a
pair that no other transaction ever has; and it is committed only while that pair is open.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from levada.client.producer.transactions import PreparedTransaction


class BatchContent(NamedTuple):
    """Tells a repeated batch from another one with the same id; None is not compared."""

    rows: int | None = None
    offsets_digest: str | None = None  # if the driver can read the checkpoint
    rows_digest: int | None = None  # of a batch job with plain columns


UNKNOWN_CONTENT = BatchContent()


class QueryRun(NamedTuple):
    """The run of a query that committed a batch, for operators; empty if it is unknown."""

    name: str = ""  # the query's name
    id: str = ""
    checkpoint: str = ""


UNKNOWN_RUN = QueryRun()

CHECKPOINT_RESTORED = (
    "Nothing of it was written again. If the checkpoint was restored from a backup or has lost its last batch, some of "
    "these rows are not in the topics yet: start with a new checkpoint, from the offsets that the topics have reached"
)
ROWS_VARY = (
    "If the query gives another number of rows whenever it is computed (rand, a clock, tables that change), the "
    "committed rows are complete: start it once with option repeatedBatch=skip"
)


class CommitRecord(NamedTuple):
    """The last committed batch of a query and its transactions; with unfinished ones of the batch before."""

    batch: int
    prepared: tuple[PreparedTransaction, ...]
    content: BatchContent = UNKNOWN_CONTENT
    run: QueryRun = UNKNOWN_RUN


NO_COMMIT = CommitRecord(-1, ())


class CommitPlan(NamedTuple):
    """What a driver does next: append the record, then end transactions; `conflict` is why the batch fails."""

    record: CommitRecord
    commit: tuple[str, ...]
    abort: tuple[str, ...]
    conflict: str | None = None


def plan_commit(
    last: CommitRecord,
    batch: int,
    written: Iterable[PreparedTransaction],
    fenced: Mapping[str, PreparedTransaction],
    *,
    content: BatchContent = UNKNOWN_CONTENT,
    run: QueryRun = UNKNOWN_RUN,
    failed: bool = False,
) -> CommitPlan:
    """The plan for a batch that tasks have written, or have `failed` to.

    `fenced` are the open transactions by transactional id.
    """
    wanted = set(written)
    record, conflict = last, None
    if last.batch > batch:
        conflict = (
            f"batch {last.batch} of this query is committed already. Either another driver runs with the same "
            "checkpoint, or the checkpoint was restored to an older state; to write this data again start with a new "
            "checkpoint"
        )
    elif last.batch < batch and not failed:
        ended = sorted(wanted.difference(fenced.values()))
        if ended:
            conflict = (
                f"the transaction {ended[0].transactional_id} of this batch was ended by another driver of this "
                "checkpoint, or by an operator. Nothing of the batch is visible; start the query again"
            )
        else:
            unfinished = set(last.prepared).intersection(fenced.values())
            record = CommitRecord(batch, tuple(sorted(wanted | unfinished)), content, run)
    elif last.batch == batch and not failed:
        conflict = _difference(content, last.content)
    committed = set(record.prepared)
    commit = tuple(name for name, one in fenced.items() if one in committed)
    left = (wanted if last.batch > batch else set(fenced.values())) - committed
    abort = tuple(name for name, one in fenced.items() if one in left)
    return CommitPlan(record, commit, abort, conflict)


def _difference(now: BatchContent, before: BatchContent) -> str | None:
    """Why a batch with a committed id is another batch, if it is."""
    if None not in (now.offsets_digest, before.offsets_digest) and now.offsets_digest != before.offsets_digest:
        differs = f"ends at other offsets now than it did. {CHECKPOINT_RESTORED}"
    elif None not in (now.rows, before.rows) and now.rows != before.rows:
        differs = f"has {now.rows} rows now and had {before.rows}. {CHECKPOINT_RESTORED}. {ROWS_VARY}"
    else:
        return None
    return f"it is committed already, but {differs}"
