"""`levada cluster describe|health|log-dirs`."""

import time
from typing import TYPE_CHECKING, Any

import click

from levada.cli.errors import EXIT_FAILED
from levada.cli.options import connection_options, output_option, with_client
from levada.cli.output import Output, Row, emit, emit_each, emit_one, size_text, table, wants_color
from levada.cli.settings import ClientProperties
from levada.errors import ErrorCode

if TYPE_CHECKING:
    from levada.client.admin.logs import LogDir
    from levada.client.client import Client
    from levada.client.metadata import ClusterMetadata

WAIT_INTERVAL_S = 0.3


@click.group()
def cluster() -> None:
    """Describe the cluster: its brokers, its health and its log dirs.

    \b
    Examples:
      levada cluster describe
      levada cluster describe -b broker-1:9092,broker-2:9092 -o json
      levada cluster health
      levada cluster log-dirs
    """


@cluster.command()
@output_option
@connection_options
def describe(output: Output, properties: ClientProperties) -> None:
    """Show the cluster's id and its brokers.

    \b
    Examples:
      levada cluster describe
      levada cluster describe -o json
    """
    metadata = with_client(properties, lambda client: client.metadata())
    partitions = [part for info in metadata.topics.values() for part in info.partitions]
    brokers: list[dict[str, Any]] = [
        {
            "node": broker.node_id,
            "host": broker.host,
            "port": broker.port,
            "rack": broker.rack,
            "controller": broker.node_id == metadata.controller_id,
            "leads": sum(part.leader == broker.node_id for part in partitions),
            "replicas": sum(broker.node_id in part.replicas for part in partitions),
        }
        for broker in sorted(metadata.brokers.values())
    ]
    if output == "jsonl":
        emit(brokers, output)
        return
    described = {
        "cluster_id": metadata.cluster_id,
        "controller": metadata.controller_id,
        "topics": len(metadata.topics),
        "partitions": len(partitions),
        "offline_partitions": sum(part.leader < 0 for part in partitions),
        "under_replicated_partitions": sum(len(part.isr) < len(part.replicas) for part in partitions),
        "brokers": brokers,
    }
    if output == "json":
        emit_one(described, output)
        return
    click.echo(click.style(f"cluster {metadata.cluster_id}", bold=True), color=wants_color())
    for key in ("topics", "partitions", "offline_partitions", "under_replicated_partitions"):
        click.echo(f"  {key.replace('_', ' ')}: {described[key]}")
    columns = ("node", "host", "port", "rack", "controller", "leads", "replicas")
    click.echo(table(brokers, columns), nl=False, color=wants_color())


@cluster.command(short_help="Check partitions, log dirs and brokers.")
@click.option("--wait", "wait_s", metavar="SECONDS", type=click.FloatRange(min=0), default=0.0,
              help="Wait until a broker responds and nothing is wrong, at most so long.")  # fmt: skip
@output_option
@connection_options
def health(wait_s: float, output: Output, properties: ClientProperties) -> None:
    """List what is wrong: offline and under-replicated partitions, offline log dirs, brokers that do not respond.

    A recovering partition has no leader although its replicas are online: its log is not open yet.

    The exit code is 0 if nothing is wrong, and 1 otherwise. With --wait the command repeats the check until then, also
    while no broker accepts connections.

    \b
    Examples:
      levada cluster health
      levada cluster health -o json
      levada cluster health --wait 30 && levada topic create orders
      levada cluster health || mail -s 'unhealthy' ops@example.com
    """
    found, brokers = _checked(properties, wait_s)
    if output == "json":
        emit_one({"healthy": not found, "brokers": brokers, "problems": found}, output)
    elif output == "jsonl" or found:
        emit(found, output)
    else:
        click.echo(f"healthy: {brokers} broker{'' if brokers == 1 else 's'}, nothing offline")
    if found:
        raise click.exceptions.Exit(EXIT_FAILED)


def _checked(properties: ClientProperties, wait_s: float) -> tuple[list[dict[str, Any]], int]:
    """What is wrong in the cluster and the number of its brokers, again until nothing is wrong or the time is over."""
    from levada.client.errors import ConnectionFailed, RequestTimedOut

    deadline = time.monotonic() + wait_s
    while True:
        is_last = time.monotonic() >= deadline
        try:
            found, brokers = with_client(properties, _problems)
            if not found or is_last:
                return found, brokers
        except (ConnectionFailed, RequestTimedOut):
            if is_last:
                raise
        time.sleep(min(WAIT_INTERVAL_S, max(0.0, deadline - time.monotonic())))


async def _problems(client: "Client") -> tuple[list[dict[str, Any]], int]:
    """What is wrong in the cluster, and the number of its brokers."""
    from levada.client.admin.logs import LogAdmin
    from levada.client.errors import ConnectionFailed, RequestTimedOut

    metadata = await client.metadata()
    found = _partition_problems(metadata)
    for node, broker in sorted(metadata.brokers.items()):
        try:
            log_dirs = await LogAdmin(client).log_dirs(node, ())
        except (ConnectionFailed, RequestTimedOut) as failure:
            where = f"broker {node} ({broker.host}:{broker.port})"
            found.append({"problem": "broker does not respond", "where": where, "detail": str(failure)})
            continue
        found += [
            {"problem": "offline log dir", "where": f"{one.path} of broker {node}", "detail": one.error.name}
            for one in log_dirs
            if one.error is not ErrorCode.NONE
        ]
    return found, len(metadata.brokers)


def _partition_problems(metadata: "ClusterMetadata") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, info in sorted(metadata.topics.items()):
        for part in info.partitions:
            where = f"{name}-{part.partition}"
            missing = ", ".join(str(node) for node in part.replicas if node not in part.isr)
            if part.leader < 0:
                replicas = ", ".join(map(str, part.replicas))
                problem = "offline partition" if part.offline_replicas else "recovering partition"
                found.append({"problem": problem, "where": where, "detail": f"no leader of {replicas}"})
            elif missing:
                detail = f"not in sync: {missing}"
                found.append({"problem": "under-replicated partition", "where": where, "detail": detail})
    return found


@cluster.command("log-dirs", short_help="Show log dirs, and the sizes of the topics in them.")
@output_option
@connection_options
def list_log_dirs(output: Output, properties: ClientProperties) -> None:
    """Show the log dirs of all brokers, the space on their volumes, and the sizes of their topics, largest first.

    \b
    Examples:
      levada cluster log-dirs
      levada cluster log-dirs -o jsonl
    """
    from levada.client.admin.logs import LogAdmin

    async def work(client: "Client") -> list[dict[str, Any]]:
        nodes = sorted((await client.metadata(())).brokers)
        return [_log_dir_row(one) for node in nodes for one in await LogAdmin(client).log_dirs(node)]

    found = with_client(properties, work)
    if output == "json":
        emit(found, output)
    else:
        emit_each(found, output, _print_log_dir)


def _log_dir_row(found: "LogDir") -> dict[str, Any]:
    sizes: dict[str, list[int]] = {}
    for partition, size in found.sizes.items():
        sizes.setdefault(partition.topic, []).append(size)
    topics = [{"topic": name, "partitions": len(some), "bytes": sum(some)} for name, some in sizes.items()]
    return {
        "node": found.node,
        "log_dir": found.path,
        "offline": found.error is not ErrorCode.NONE,
        "bytes": sum(found.sizes.values()),
        "usable_bytes": found.usable_bytes,
        "total_bytes": found.total_bytes,
        "topics": sorted(topics, key=lambda row: (-row["bytes"], row["topic"])),
    }


def _print_log_dir(info: Row) -> None:
    space = f"{size_text(info['usable_bytes'])} of {size_text(info['total_bytes'])} free"
    state = "offline" if info["offline"] else f"{size_text(info['bytes'])}, {space}"
    title = click.style(info["log_dir"], bold=True)
    click.echo(f"{title}   broker {info['node']}   {state}", color=wants_color())
    if info["topics"]:
        rows = [{**row, "size": size_text(row["bytes"])} for row in info["topics"]]
        click.echo(table(rows, ("topic", "partitions", "size")), nl=False, color=wants_color())
