"""What a user has to know when a query fails: one sentence, and not the way it took through our code.

Spark shows what its Python workers print, which is the whole traceback with the message last. An error of an option, a
topic or a broker explains itself, so its traceback is left out; a bug of ours keeps it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from levada.errors import KafkaError
from levada.spark.options import OptionError
from levada.spark.session.workers import keep_what_is_loaded
from levada.spark.write.commit_protocol import CommitRefused

EXPLAINED = (OptionError, KafkaError, CommitRefused, ConnectionError, TimeoutError)
GOES_ON = "Set option failOnDataLoss to false to go on with what is left, or begin a new query from where records are."


@contextmanager
def told_plainly() -> Iterator[None]:
    """For whatever Spark calls: of an error that explains itself only the message is shown."""
    try:
        yield
        keep_what_is_loaded()
    except EXPLAINED as error:
        # Spark's own switch. A worker ends after an error, so nothing else is hidden by it.
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        from levada.spark.read.fetcher import DataLoss

        if isinstance(error, DataLoss) and GOES_ON not in error.detail:
            raise DataLoss(error.code, f"{error.detail}. {GOES_ON}") from None
        raise
