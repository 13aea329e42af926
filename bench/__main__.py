"""`python -m bench [options]` compares with Kafka; `python -m bench quick [options]` compares with the last record."""

import sys

from bench import quick, run

if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(quick.main(arguments[1:]) if arguments[:1] == ["quick"] else run.main(arguments))
