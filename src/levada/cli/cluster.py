"""`levada cluster describe`."""

from typing import Any

import click

from levada.cli.options import connection_options, output_option, with_client
from levada.cli.output import Output, emit, emit_one, table, wants_color
from levada.cli.settings import ClientProperties


@click.group()
def cluster() -> None:
    """Describe the cluster and its brokers.

    \b
    Examples:
      levada cluster describe
      levada cluster describe -b broker-1:9092,broker-2:9092 -o json
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
