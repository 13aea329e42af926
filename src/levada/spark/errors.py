"""Errors and warnings as the user of a query sees them: one sentence, without the traceback through the connector.

Spark shows what its Python workers print: the traceback, with the message last. An error of an option, a topic or a
broker explains itself, so its traceback is hidden. A bug keeps it.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from levada.errors import KafkaError
from levada.spark.worker import freeze_loaded_modules

DATA_LOSS_ADVICE = (
    "Set option failOnDataLoss to false to continue with what is left, or start a new query at offsets that exist."
)

WARNED_MAX = 1000  # after so many a warning may be shown again
_warned: dict[str | tuple[str, type[Warning], int], int] = {}  # Python's registry of warnings that were shown


class OptionError(ValueError):
    """An option is missing, unknown, or has an invalid value."""


class DataLoss(KafkaError):  # noqa: N818
    """OFFSET_OUT_OF_RANGE, or a topic deleted or created again: records that should be read are gone."""


class CommitRefused(RuntimeError):  # noqa: N818
    """A batch cannot be committed; none of its rows is visible."""


class BatchLost(CommitRefused):
    """A batch is in the commit log, and not all of its transactions were committed: rows of it are not visible."""


class SchemaRegistryError(RuntimeError):
    """The schema registry cannot be reached, or refuses a request; the message names its URL."""


class ProtocError(RuntimeError):
    """protoc cannot be run, or fails for a reason that is not in the schema."""


EXPLAINED = (OptionError, KafkaError, CommitRefused, SchemaRegistryError, ProtocError, ConnectionError, TimeoutError)


def warn(message: str) -> None:
    """Warn the user although the query continues: once in a process, and without a line of source code."""
    if len(_warned) > WARNED_MAX:
        _warned.clear()
    warnings.warn_explicit(message, UserWarning, "levada", 0, registry=_warned)


@contextmanager
def spark_callback() -> Iterator[None]:
    """Surrounds each method that Spark calls: hides the traceback of errors that explain themselves."""
    try:
        yield
        freeze_loaded_modules()
    except EXPLAINED as error:
        # Spark's own switch. A worker ends after an error, so it hides nothing else.
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        if isinstance(error, DataLoss) and DATA_LOSS_ADVICE not in error.detail:
            raise DataLoss(error.code, f"{error.detail}. {DATA_LOSS_ADVICE}") from None
        raise
