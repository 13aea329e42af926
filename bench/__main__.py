"""The commands `python -m bench [quick | profile ROW | spark | chart]`; without a command it compares with Kafka."""

import signal
import sys
from collections.abc import Sequence
from types import FrameType

from bench import profiling, quick, report, results, run
from bench.generator.wire import BrokerError


def _spark(arguments: Sequence[str]) -> int:
    """Imports the Spark benchmark only when it runs: the others need no Spark."""
    from bench.spark import run as spark

    return spark.main(arguments)


def _chart(_arguments: Sequence[str]) -> int:
    """Draws the chart from the recorded results, without a run."""
    found = results.load_results(results.LATEST)
    if found is None:
        print(f"{results.LATEST} is missing: make bench records it", file=sys.stderr)
        return 1
    report.CHART.write_text(report.picture(found))
    return 0


COMMANDS = {"quick": quick.main, "profile": profiling.main, "spark": _spark, "chart": _chart}


def _stop(_number: int, _frame: FrameType | None) -> None:
    """Exits on SIGTERM, so that context managers stop the brokers."""
    sys.exit(143)


def main() -> int:
    """Runs the command of the command line."""
    signal.signal(signal.SIGTERM, _stop)
    command = COMMANDS.get(sys.argv[1]) if len(sys.argv) > 1 else None
    try:
        return command(sys.argv[2:]) if command else run.main(sys.argv[1:])
    except BrokerError as problem:
        print(problem, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
