"""All clients, in the order in which the matrix of docs/compatibility.md shows them."""

from typing import cast

from tests.compat.drivers.aio import Aiokafka
from tests.compat.drivers.base import Driver
from tests.compat.drivers.confluent import Confluent
from tests.compat.drivers.kafka_python import KafkaPython
from tests.compat.drivers.kcat import Kcat
from tests.compat.drivers.program import FranzGo, Java, JavaOfSpark, Kafkajs

# kcat has no method for what it lacks; everybody else has all of them.
DRIVERS: tuple[type[Driver], ...] = (
    Confluent,
    KafkaPython,
    Aiokafka,
    cast("type[Driver]", Kcat),
    Kafkajs,
    FranzGo,
    Java,
    JavaOfSpark,
)


def drivers_with(operations: tuple[str, ...]) -> list[type[Driver]]:
    """The clients that have all of these operations."""
    return [driver for driver in DRIVERS if not driver.lacks.intersection(operations)]
