"""`python -m bench profile fetch-64K-1`: where Levada's time goes under the load of one row.

The broker runs under cProfile, which makes it two to three times slower and small functions look dearer than they
are: read the order and the number of calls a request, not the seconds.
"""

import argparse
import io
import pstats
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.brokers import Levada
from bench.rows import ROWS

SHOWN = 45


class ProfiledLevada(Levada):
    """Writes its profile when it stops."""

    @property
    def profile_path(self) -> Path:
        return self.directory / "profile"

    def command(self) -> list[str]:
        python, _, program, *arguments = super().command()
        profiled = f"import cProfile; cProfile.run({program!r}, {str(self.profile_path)!r})"
        return [python, "-c", profiled, *arguments]


def main(arguments: Sequence[str]) -> int:
    """Print the functions that took most time of their own."""
    rows = {row.key: row for row in ROWS}
    parser = argparse.ArgumentParser(prog="python -m bench profile", description=__doc__)
    parser.add_argument("row", choices=sorted(rows))
    parser.add_argument("--data", type=Path, default=Path("/var/tmp"), help="where the broker keeps its data")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="levada-bench-", dir=options.data) as root:
        broker = ProfiledLevada(Path(root))
        try:
            broker.start()
            outcome = rows[options.row].run(broker)
            broker.stop()
            text = io.StringIO()
            profile = pstats.Stats(str(broker.profile_path), stream=text)
            profile.strip_dirs().sort_stats("tottime").print_stats(SHOWN)
        finally:
            broker.remove()
    print(f"{rows[options.row].title}: {outcome.requests} requests under the profiler")
    print(text.getvalue())
    return 0
