"""Where in a partition a time is: the ends of the log, and the first record from a time on (R5)."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from levada.client.data import LIST_OFFSETS, FoundOffset, read_list_offsets, write_list_offsets
from levada.client.errors import ConnectionFailed, Failure, RequestTimedOut, error_code
from levada.client.retry import PARTITION_RETRIABLE, Retries, RetryPolicy, is_retriable
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition

if TYPE_CHECKING:
    from levada.client.client import Client

Answers = dict[TopicPartition, FoundOffset]


async def list_offsets(
    client: "Client", times: Mapping[TopicPartition, int], isolation_level: int
) -> Answers:
    """Send ListOffsets to each leader, again where it has moved, until the request timeout."""
    retries = Retries(client, RetryPolicy(PARTITION_RETRIABLE, client.request_timeout_ms))
    found: Answers = {}
    while missing := {partition: time for partition, time in times.items() if partition not in found}:
        failure: Failure = KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "the response lacks a partition")
        try:
            responses = await _ask_leaders(client, missing, isolation_level)
        except (ConnectionFailed, RequestTimedOut) as error:
            responses, failure = {}, error
        for partition, response in responses.items():
            code = error_code(response.error)
            if code is ErrorCode.NONE:
                found[partition] = response
                continue
            failure = KafkaError(code, f"offsets of {partition}")
            if not is_retriable(failure, PARTITION_RETRIABLE):
                raise failure
        if missing.keys() <= found.keys():
            break
        pause_s = retries.pause_s(failure, asyncio.get_running_loop().time())
        if pause_s is None or client.closed:
            raise failure
        for partition in missing.keys() - found.keys():
            client.forget(partition.topic)
        await asyncio.sleep(pause_s)
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
