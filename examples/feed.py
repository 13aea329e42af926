"""Produces generated streams, as input for the pipelines.

python examples/feed.py activity --seconds 30     # events of website visitors, to five topics
python examples/feed.py devices --count 20000     # at once, with the timestamps of this rate until now
python examples/feed.py logs --rate 200           # log lines of services, until Ctrl-C
"""

import argparse
import asyncio
import itertools
import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import levada
from levada.pipelines.flows import samples

STREAMS = {"activity": samples.website, "devices": samples.devices, "logs": samples.service_logs}
RATES = {"activity": 500.0, "devices": 100.0, "logs": 100.0}  # a few thousand span several windows
TICK_S = 0.05


def clock(count: int, rate: float) -> Callable[[], datetime]:
    """The times of events: the current time, or with a count past times at this rate."""
    if not count:
        return lambda: datetime.now(UTC)
    start = datetime.now(UTC) - timedelta(seconds=count / rate)
    past = (start + timedelta(seconds=number / rate) for number in itertools.count())
    return lambda: next(past)


async def feed(arguments: argparse.Namespace) -> int:
    """Send events until the count or time is reached; return their number."""
    rate = arguments.rate or RATES[arguments.stream]
    now = clock(arguments.count, rate)
    stream = STREAMS[arguments.stream](random.Random(arguments.seed), now)
    if arguments.count:
        stream = itertools.islice(stream, arguments.count)
    started, sent = time.monotonic(), 0
    async with levada.Client(arguments.bootstrap) as client, client.producer() as producer:
        for sample in stream:
            await producer.send(sample.topic, sample.value.encode(), key=sample.key.encode())
            sent += 1
            elapsed_s = time.monotonic() - started
            if arguments.seconds and elapsed_s >= arguments.seconds:
                break
            if not arguments.count and sent >= elapsed_s * rate:
                await asyncio.sleep(TICK_S)
        await producer.flush()
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream", choices=STREAMS)
    parser.add_argument("-b", "--bootstrap", default=os.environ.get("LEVADA_BOOTSTRAP", "127.0.0.1:9092"))
    parser.add_argument(
        "--rate",
        type=float,
        default=0,
        help="events per second; by default 500 for activity, 100 for the others",
    )
    parser.add_argument("--seconds", type=float, default=0, help="end after this time")
    parser.add_argument("--count", type=int, default=0, help="send so many at once, then end")
    parser.add_argument("--seed", type=int, default=2026, help="the seed of the random generator")
    try:
        print(f"{asyncio.run(feed(parser.parse_args())):,} events sent")
    except KeyboardInterrupt:
        print("ended")


if __name__ == "__main__":
    main()
