"""Where in a partition a time is: the ends of the log, and the first record from a time on (R5)."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from levada.client.bootstrap import error_code
from levada.client.connection import ConnectionFailed, RequestTimedOut
from levada.client.data import LIST_OFFSETS, FoundOffset, read_list_offsets, write_list_offsets
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition

if TYPE_CHECKING:
    from levada.client.client import Client

Answers = dict[TopicPartition, FoundOffset]


async def list_offsets(
    client: "Client", times: Mapping[TopicPartition, int], isolation_level: int
) -> Answers:
    """Ask each leader about its partitions, again where one has moved, until the request timeout."""
    from levada.client.client import MOVED

    deadline = asyncio.get_running_loop().time() + client.request_timeout_ms / 1000
    found: Answers = {}
    missing = dict(times)
    while missing:
        failure: Exception | None = None
        try:
            answers = await _ask_leaders(client, missing, isolation_level)
        except (ConnectionFailed, RequestTimedOut) as error:
            answers, failure = {}, error
        for partition, answer in answers.items():
            code = error_code(answer.error)
            if code is ErrorCode.NONE:
                found[partition] = answer
                missing.pop(partition, None)
            elif code in MOVED or code is ErrorCode.OFFSET_NOT_AVAILABLE:
                failure = KafkaError(code, f"offsets of {partition}")
            else:
                raise KafkaError(code, f"offsets of {partition}")
        if missing:
            if asyncio.get_running_loop().time() > deadline:
                raise failure or KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a partition was left out")
            for partition in missing:
                client.forget(partition.topic)
            await asyncio.sleep(client.retry_backoff_s)
    return found


async def _ask_leaders(
    client: "Client", times: Mapping[TopicPartition, int], isolation_level: int
) -> Answers:
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for partition, time in times.items():
        by_leader.setdefault(await client.leader(partition), {})[partition] = time
    answers = await asyncio.gather(
        *(_ask(client, leader, part, isolation_level) for leader, part in by_leader.items())
    )
    return {partition: answer for part in answers for partition, answer in part.items()}


async def _ask(
    client: "Client", leader: int, times: Mapping[TopicPartition, int], isolation_level: int
) -> Answers:
    connection = await client.connection(leader)
    version = connection.version(LIST_OFFSETS)
    body = await connection.send(
        LIST_OFFSETS.key,
        version,
        write_list_offsets(version, times, isolation_level=isolation_level),
        timeout_s=client.request_timeout_ms / 1000,
    )
    return connection.parse(read_list_offsets, body)
