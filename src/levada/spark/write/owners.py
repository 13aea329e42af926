"""Tells which query or job a transaction belongs to: by its transactional id, and by the commit log.

Used by `levada txn`, so it loads neither Spark nor pyarrow.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from levada.spark.write.commit_log import find_commits
from levada.spark.write.commit_protocol import NO_COMMIT, CommitRecord
from levada.spark.write.transactions import APP_PREFIX

if TYPE_CHECKING:
    from levada.client.admin.transactions import TransactionState
    from levada.client.client import Client

UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
TRANSACTIONAL_ID = re.compile(rf"spark-({UUID}|[0-9a-f]{{32}}|{re.escape(APP_PREFIX)}[^-]+)(?:-([0-9]+)-[0-9]+)?")


class Owner(NamedTuple):
    """The owner of a transactional id of the Spark sink; None is unknown."""

    kind: str  # query, txnAppId or job
    id: str  # of the query or job, or the txnAppId
    name: str | None  # of the query, if it has one and has committed a batch
    run: str | None  # the query's run that committed last
    checkpoint: str | None
    task: int | None  # the task's partition; None for the driver
    last_batch: int | None
    is_committed: bool | None  # whether the commit log has its open transaction; never that of a driver or unnamed job

    @property
    def text(self) -> str:
        """The owner in a table."""
        task = "driver" if self.task is None else f"task {self.task}"
        state = ", committed, not ended yet" if self.is_committed else ""
        return f"spark {self.kind} {self.name or self.id}, {task}{state}"


async def find_owners(client: "Client", states: Iterable["TransactionState"]) -> dict[str, Owner]:
    """The owners of transactions by transactional id; those that are not of the Spark sink are left out.

    Where the commit log cannot be read, an owner has only what the transactional id tells.
    """
    matches = {state: found for state in states if (found := TRANSACTIONAL_ID.fullmatch(state.transactional_id))}
    commits = await find_commits(client, {found[1] for found in matches.values()}) if matches else {}
    return {state.transactional_id: _owner(state, found, commits[found[1]]) for state, found in matches.items()}


def _owner(state: "TransactionState", found: re.Match[str], commit: CommitRecord | None) -> Owner:
    query, task = found.groups()
    last = commit or NO_COMMIT
    transaction = (state.transactional_id, state.producer_id, state.producer_epoch)
    is_app = query.startswith(APP_PREFIX)
    kind = "txnAppId" if is_app else ("query" if "-" in query else "job")
    is_logged = task is not None and kind != "job"
    return Owner(
        kind,
        unquote(query.removeprefix(APP_PREFIX)) if is_app else query,
        last.run.name or None,
        last.run.id or None,
        last.run.checkpoint or None,
        None if task is None else int(task),
        None if last.batch < 0 else last.batch,
        None if commit is None and is_logged else state.state == "Ongoing" and transaction in last.prepared,
    )
