"""`python -m tests.damage --starts 2000 --seed 1`: damages data directories at random and starts brokers on them."""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench import fault_runs
from tests.damage.prepared import prepare
from tests.damage.world import Start, ViolationError

STARTS = 2_000


def main() -> int:
    """Run the starts; 1 if one breaks the rule. A whole run without a failure is recorded."""
    parser = argparse.ArgumentParser(prog="python -m tests.damage")
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first start, to replay one")
    arguments = parser.parse_args()
    outcomes: Counter[str] = Counter()
    failures, began = 0, time.monotonic()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        prepared = prepare(Path(folder))
        for number in range(arguments.first, arguments.first + arguments.starts):
            start = Start(prepared[number % 2], Path(folder), f"{arguments.seed} {number}")
            try:
                outcomes[start.run()] += 1
            except (ViolationError, Exception) as error:
                failures += 1
                stop = "clean stop" if start.prepared.clean else "kill"
                what = "; ".join(f"{path.relative_to(folder)}: {how}" for path, how in start.damaged)
                print(f"start {number} after a {stop}: {what}\n  {type(error).__name__}: {error}", flush=True)
            if number % 100 == 99:
                print(f"{number + 1} starts, {failures} failures, {time.monotonic() - began:.0f} s", file=sys.stderr)
    for outcome, count in outcomes.most_common():
        print(f"{count:6} {outcome}")
    print(f"{arguments.starts} starts, {failures} failures, seed {arguments.seed}")
    if not failures and not arguments.first and arguments.starts >= STARTS:
        seconds = time.monotonic() - began
        fault_runs.record("make damage", arguments.seed, seconds, f"all {arguments.starts:,} starts")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
