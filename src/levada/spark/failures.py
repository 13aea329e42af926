"""Errors of a query as its user sees them: one sentence, without the traceback through the connector.

Spark shows what its Python workers print: the traceback, with the message last. An error of an option, a topic or a
broker explains itself, so its traceback is hidden. A bug keeps it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from levada.errors import KafkaError
from levada.spark.options import OptionError
from levada.spark.worker import freeze_loaded_modules
from levada.spark.write.commit_protocol import CommitRefused

EXPLAINED = (OptionError, KafkaError, CommitRefused, ConnectionError, TimeoutError)
DATA_LOSS_ADVICE = (
    "Set option failOnDataLoss to false to continue with what is left, "
    "or start a new query at offsets that exist."
)


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
        from levada.spark.read.fetcher import DataLoss

        if isinstance(error, DataLoss) and DATA_LOSS_ADVICE not in error.detail:
            raise DataLoss(error.code, f"{error.detail}. {DATA_LOSS_ADVICE}") from None
        raise
