"""What becomes of the transactions of a streaming batch: committed together, once, whoever died on the way. Pure.

Tasks leave their transactions open; only a driver ends any, in these steps:

1. it takes the query's *lock*, a transactional id of its own: a driver that had it before can decide nothing more;
2. it reads the last decision;
3. it *holds* every open transaction of the query: takes over its transactional id and keeps the transaction
   (KIP-939), so that whoever held it before cannot end it any more. Those of the last decision and of its own batch
   it holds by name, for a list of what is open may be silent about coordinators that are on their way;
4. it writes the decision that `judge` gives, under the lock: this is the moment at which the batch is committed;
5. it ends what it holds, as decided.

Why nothing decided is ever aborted: an abort needs a hold (3), then a write under the lock (4), then the end (5). A
decision of another driver was either made before that lock was taken, then step 2 saw it; or by a driver that took the
lock after the write (4), then it held all of its transactions after our hold (3), which is worth nothing since. To see
the last decision is enough: it names all that was ever decided and is still open, because a driver that follows a
decision which was not carried out takes over what is open of it into its own. What a list does not tell and nobody has
decided stays open until a list does. Why nothing is committed twice: a batch has one decision, which names a
transaction by producer id and epoch, a pair that no other transaction ever has; and it is committed only while that
pair is open.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from levada.client.producer.transactions import PreparedTransaction


class CommitRefused(RuntimeError):  # noqa: N818
    """A batch cannot be committed; nothing of it is visible."""


class Content(NamedTuple):
    """What tells a batch that is repeated from one that has its id and other rows; None is not compared."""

    rows: int | None = None
    plan: str | None = None  # a digest of its offsets, as far as the checkpoint can be looked into


UNKNOWN = Content()

PUT_BACK = (
    "Nothing of it was written again. If the checkpoint was put back or has lost its last batch, some of these rows "
    "are not in the topics yet: begin with a new checkpoint, from the offsets up to which the topics have them"
)
BY_CHANCE = (
    "If the query gives another number of rows whenever it is computed (rand, a clock, tables that change), what was "
    "committed counts: start it once with option repeatedBatch=skip"
)


class Decision(NamedTuple):
    """The last batch that a query committed, and its output; with what was open of the output before it."""

    batch: int
    prepared: tuple[PreparedTransaction, ...]
    content: Content = UNKNOWN


NOTHING = Decision(-1, ())


class Verdict(NamedTuple):
    """What a driver has to do now: write the decision, then end transactions; `refusal` is why a batch failed."""

    decision: Decision
    commit: tuple[str, ...]
    abort: tuple[str, ...]
    refusal: str | None = None


def judge(
    last: Decision,
    batch: int,
    written: Iterable[PreparedTransaction],
    held: Mapping[str, PreparedTransaction],
    *,
    content: Content = UNKNOWN,
    failed: bool = False,
) -> Verdict:
    """The verdict over a batch of this `content`, which tasks have written (or have `failed` to).

    `held` is what is open, by its id.
    """
    wanted = set(written)
    decision, why = last, None
    if last.batch > batch:
        why = (
            f"batch {last.batch} of this query is committed already. Either another driver runs the same checkpoint, "
            "or the checkpoint was put back to an older state; to write this data again begin with a new checkpoint"
        )
    elif last.batch < batch and not failed:
        lost = sorted(wanted.difference(held.values()))
        if lost:
            why = (
                f"the transaction {lost[0].transactional_id} of this batch was ended by somebody else: another driver "
                "of this checkpoint, or an operator. Nothing of the batch is visible; start the query again"
            )
        else:
            unfinished = set(last.prepared).intersection(held.values())
            decision = Decision(batch, tuple(sorted(wanted | unfinished)), content)
    elif last.batch == batch and not failed:
        why = _other(content, last.content)
    output = set(decision.prepared)
    commit = tuple(name for name, one in held.items() if one in output)
    left = (wanted if last.batch > batch else set(held.values())) - output
    abort = tuple(name for name, one in held.items() if one in left)
    return Verdict(decision, commit, abort, why)


def _other(now: Content, before: Content) -> str | None:
    """Why a batch that is committed already cannot be the same again, if it cannot."""
    if None not in (now.plan, before.plan) and now.plan != before.plan:
        differs = f"ends at other offsets now than it did. {PUT_BACK}"
    elif None not in (now.rows, before.rows) and now.rows != before.rows:
        differs = f"has {now.rows} rows now and had {before.rows}. {PUT_BACK}. {BY_CHANCE}"
    else:
        return None
    return f"it is committed already, but {differs}"
