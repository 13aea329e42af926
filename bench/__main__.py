"""`python -m bench` compares with Kafka, `... quick` with the last record, `... profile ROW` shows where time goes."""

import sys

from bench import profiling, quick, run

COMMANDS = {"quick": quick.main, "profile": profiling.main}

if __name__ == "__main__":
    command = COMMANDS.get(sys.argv[1]) if len(sys.argv) > 1 else None
    sys.exit(command(sys.argv[2:]) if command else run.main(sys.argv[1:]))
