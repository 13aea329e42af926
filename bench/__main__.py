"""`python -m bench` compares with Kafka, `... spark` on Spark, `... quick` with the last record.

`... profile ROW` shows where time goes.
"""

import signal
import sys
from collections.abc import Sequence
from types import FrameType

from bench import profiling, quick, run
from bench.wire import BrokerError


def _spark(arguments: Sequence[str]) -> int:
    """Imported when it is asked for: the others need no Spark."""
    from bench import spark

    return spark.main(arguments)


COMMANDS = {"quick": quick.main, "profile": profiling.main, "spark": _spark}


def _stop(_number: int, _frame: FrameType | None) -> None:
    """A benchmark that is told to stop takes its brokers with it."""
    sys.exit(143)


def main() -> int:
    """Run the command that was asked for."""
    signal.signal(signal.SIGTERM, _stop)
    command = COMMANDS.get(sys.argv[1]) if len(sys.argv) > 1 else None
    try:
        return command(sys.argv[2:]) if command else run.main(sys.argv[1:])
    except BrokerError as problem:
        print(problem, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
