"""What pipelines ask brokers themselves, beside what Spark reads and writes."""

from collections.abc import Mapping, Sequence

from levada.model import TopicPartition
from levada.spark.logs import Logs
from levada.spark.read_options import read_options


def beginnings(
    bootstrap: str, topics: Sequence[str], options: Mapping[str, str]
) -> dict[TopicPartition, int]:
    """Where the logs of topics begin; `options` are those of `format("levada")`."""
    asked = {"kafka.bootstrap.servers": bootstrap, "subscribe": ",".join(topics)}
    asked |= {name.lower(): value for name, value in options.items() if name.lower().startswith("kafka.")}
    logs = Logs(read_options(asked))
    return logs.earliest(list(logs.partitions(missing_is_wrong=True)))
