"""What becomes of the transactions of a streaming batch: committed together, once, whoever died on the way. Pure.

Tasks leave their transactions open; only a driver ends any, in these steps:

1. it takes the query's *lock*, a transactional id of its own: a driver that had it before can decide nothing more;
2. it reads the last decision;
3. it *holds* every open transaction of the query: takes over its transactional id and keeps the transaction
   (KIP-939), so that whoever held it before cannot end it any more;
4. it writes the decision that `judge` gives, under the lock: this is the moment at which the batch is committed;
5. it ends what it holds, as decided.

Why nothing decided is ever aborted: an abort needs a hold (3), then a write under the lock (4), then the end (5). A
decision of another driver was either made before that lock was taken, then step 2 saw it; or by a driver that took the
lock after the write (4), then it held all of its transactions after our hold (3), which is worth nothing since. Why
nothing is committed twice: a batch has one decision, which names a transaction by producer id and epoch, a pair that
no other transaction ever has; and it is committed only while that pair is open.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from levada.net.prepared import PreparedTransaction


class CommitRefused(RuntimeError):  # noqa: N818
    """A batch cannot be committed; nothing of it is visible."""


class Decision(NamedTuple):
    """The last batch that a query committed, and the transactions that are its output."""

    batch: int
    prepared: tuple[PreparedTransaction, ...]


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
    failed: bool = False,
) -> Verdict:
    """The verdict over a batch whose tasks have written, or have `failed`; `held` is all that is open, by its id."""
    wanted = tuple(sorted(written))
    if last.batch > batch:
        refusal = (
            f"batch {last.batch} of this query is committed already. Either another driver runs the same checkpoint, "
            "or the checkpoint was put back to an older state; to write this data again begin with a new checkpoint"
        )
        own = [one.transactional_id for one in wanted if held.get(one.transactional_id) == one]
        return Verdict(last, (), tuple(own), refusal)
    decision, why = last, None
    if last.batch < batch and not failed:
        lost = [one for one in wanted if held.get(one.transactional_id) != one]
        if lost:
            why = (
                f"the transaction {lost[0].transactional_id} of this batch was ended by somebody else: another driver "
                "of this checkpoint, or an operator. Nothing of the batch is visible; start the query again"
            )
        else:
            decision = Decision(batch, wanted)
    output = {one.transactional_id: one for one in decision.prepared}
    commit = tuple(name for name, one in held.items() if output.get(name) == one)
    abort = tuple(name for name, one in held.items() if output.get(name) != one)
    return Verdict(decision, commit, abort, why)
