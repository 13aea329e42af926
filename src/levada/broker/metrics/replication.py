"""Reads the state of replication as metrics, under Kafka's names."""

from collections.abc import Callable, Iterator

from levada.broker.broker import Broker
from levada.broker.metrics.family import COUNTER, GAUGE, Family


def replication_families(broker: Broker, includes: Callable[[str], bool]) -> Iterator[Family]:
    """Yield the families of replicas, ISRs and lags; `includes` tells of which topics."""
    replication, here = broker.replication, "kafka_server_replicamanager"
    led = [one for one in broker.partitions.values() if one.is_leader and not one.offline]
    replicated = [(one, one.replicas) for one in led if one.replicas is not None]
    lacking = sum(replicas.is_under_replicated for _, replicas in replicated)
    below = sum(len(replicas.isr) < one.min_insync_replicas for one, replicas in replicated)
    at_limit = sum(len(replicas.isr) == one.min_insync_replicas for one, replicas in replicated)
    gauges = (
        (f"{here}_leadercount", len(led), "Partitions led here"),
        (f"{here}_underreplicatedpartitions", lacking, "Partitions led here that lack a replica"),
        (f"{here}_underminisrpartitioncount", below, "Partitions led here whose ISR is below min.insync.replicas"),
        (f"{here}_atminisrpartitioncount", at_limit, "Partitions led here whose ISR is min.insync.replicas"),
        ("kafka_server_replicafetchermanager_maxlag", replication.lag_max, "The largest lag of a follower here"),
    )
    for name, value, description in gauges:
        yield Family(name, GAUGE, description, [("", value)])
    isr, every = replication.isr, broker.partitions.values()
    counters = (
        (f"{here}_isrshrinks_total", isr.shrinks, "ISRs that have shrunk"),
        (f"{here}_isrexpands_total", isr.expands, "ISRs that have expanded"),
        (f"{here}_failedisrupdates_total", isr.failed, "ISR changes that were refused"),
        (
            "kafka_server_brokertopicmetrics_replicationbytesin_total",
            sum([one.replication_bytes_in for one in every]),
            "Bytes fetched from leaders",
        ),
        (
            "kafka_server_brokertopicmetrics_replicationbytesout_total",
            sum([one.replication_bytes_out for one in every]),
            "Bytes fetched by followers",
        ),
    )
    for name, value, description in counters:
        yield Family(name, COUNTER, description, [("", value)])
    lags: list[tuple[str, float]] = [
        (f'{{topic="{one.topic}",partition="{one.index}"}}', lag)
        for one, lag in replication.lags()
        if includes(one.topic)
    ]
    yield Family("kafka_server_fetcherlagmetrics_consumerlag", GAUGE, "Records that a follower here lacks", lags)
