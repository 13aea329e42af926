"""Serves group members of Python clients: JSON lines in and out, one thread for each member.

A client is touched only by its own thread: what a member is asked goes through its queue.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol


class Client(Protocol):
    """One consumer of a library."""

    def poll(self) -> list[tuple[int, int]]:
        """(partition, offset) of the records that came within a moment."""
        ...

    def commit(self, positions: dict[int, int], metadata: str) -> None: ...
    def close(self) -> None: ...


class Assignment:
    """What a consumer has told of its assignments."""

    def __init__(self) -> None:
        self.partitions: set[int] = set()
        self.assignments = 0
        self.revoked: list[list[int]] = []

    def assigned(self, partitions: list[int], *, anew: bool = False) -> None:
        if anew:
            self.partitions.clear()
        self.partitions |= set(partitions)
        self.assignments += 1

    def taken(self, partitions: list[int]) -> None:
        if partitions:
            self.revoked.append(sorted(partitions))
        self.partitions -= set(partitions)


class Member:
    """A consumer on a thread."""

    def __init__(self, make: Callable[[Assignment], Client]) -> None:
        self._assignment = Assignment()
        self._records: list[tuple[int, int]] = []
        self._asked: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._done: queue.Queue[Exception | None] = queue.Queue()
        self._error = ""
        threading.Thread(target=self._run, args=(make,), daemon=True).start()

    def _run(self, make: Callable[[Assignment], Client]) -> None:
        try:
            client = make(self._assignment)
            while True:
                self._records += client.poll()
                while not self._asked.empty():
                    what, argument = self._asked.get()
                    if what == "abandon":
                        self._done.put(None)
                        return
                    self._done.put(self._do(client, what, argument))
                    if what == "leave":
                        return
        except Exception as error:
            self._error = repr(error)
            self._done.put(error)

    def _do(self, client: Client, what: str, metadata: str) -> Exception | None:
        try:
            if what == "leave":
                client.close()
            else:
                positions: dict[int, int] = {}
                for partition, offset in self._records:
                    if partition in self._assignment.partitions:
                        positions[partition] = max(positions.get(partition, 0), offset + 1)
                client.commit(positions, metadata)
        except Exception as error:
            return error
        return None

    def ask(self, what: str, argument: Any = None) -> None:
        self._asked.put((what, argument))
        error = self._done.get(timeout=20)
        if error is not None:
            raise error

    def look(self) -> dict[str, Any]:
        return {
            "partitions": sorted(self._assignment.partitions),
            "assignments": self._assignment.assignments,
            "revoked": self._assignment.revoked,
            "records": list(self._records),
            "error": self._error,
        }


def serve(
    version: str,
    join: Callable[[dict[str, Any], Assignment], Client],
    admin: dict[str, Callable[[dict[str, Any]], Any]],
    error_name: Callable[[Exception], str],
) -> None:
    """Answer until the input ends."""
    members: dict[str, Member] = {}

    def run(call: dict[str, Any]) -> Any:
        op = call["op"]
        if op == "version":
            return version
        if op == "join":
            members[call["member"]] = Member(lambda assignment: join(call, assignment))
            return None
        if op == "look":
            return members[call["member"]].look()
        if op in ("commit", "leave", "abandon"):
            return members[call["member"]].ask(op, call.get("metadata"))
        return admin[op](call)

    for line in sys.stdin:
        try:
            reply = {"ok": run(json.loads(line))}
        except Exception as error:
            reply = {"error": error_name(error), "detail": repr(error)}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
    os._exit(0)  # members that were abandoned shall not say goodbye
