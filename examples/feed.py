"""Feeds a broker with made-up streams, for the examples of pipelines.

python examples/feed.py activity --seconds 30     # a website's visitors, into five topics
python examples/feed.py devices --count 20000     # at once, as if they had come until now at this rate
python examples/feed.py logs --rate 200           # lines of services, until Ctrl-C
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
RATES = {
    "activity": 500.0,
    "devices": 100.0,
    "logs": 100.0,
}  # so that a few thousand outlast the pipelines' windows
TICK_S = 0.05


def moments(count: int, rate: float) -> Callable[[], datetime]:
    """When events happen: now, as they are sent; so many at once have happened before, one after the other."""
    if not count:
        return lambda: datetime.now(UTC)
    began = datetime.now(UTC) - timedelta(seconds=count / rate)
    past = (began + timedelta(seconds=number / rate) for number in itertools.count())
    return lambda: next(past)


async def feed(arguments: argparse.Namespace) -> int:
    """Send until it is enough; how many were sent."""
    rate = arguments.rate or RATES[arguments.stream]
    now = moments(arguments.count, rate)
    stream = STREAMS[arguments.stream](random.Random(arguments.seed), now)
    if arguments.count:
        stream = itertools.islice(stream, arguments.count)
    began, sent = time.monotonic(), 0
    async with levada.Client(arguments.bootstrap) as client, client.producer() as producer:
        for sample in stream:
            await producer.send(sample.topic, sample.value.encode(), key=sample.key.encode())
            sent += 1
            passed = time.monotonic() - began
            if arguments.seconds and passed >= arguments.seconds:
                break
            if not arguments.count and sent >= passed * rate:
                await asyncio.sleep(TICK_S)
        await producer.flush()
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stream", choices=STREAMS)
    parser.add_argument("-b", "--bootstrap", default=os.environ.get("LEVADA_BOOTSTRAP", "127.0.0.1:9092"))
    parser.add_argument(
        "--rate", type=float, default=0, help="events a second; 500 of activity, 100 of others"
    )
    parser.add_argument("--seconds", type=float, default=0, help="end after this time")
    parser.add_argument("--count", type=int, default=0, help="send so many at once, and end")
    parser.add_argument("--seed", type=int, default=2026, help="another one makes up other events")
    try:
        print(f"{asyncio.run(feed(parser.parse_args())):,} events sent")
    except KeyboardInterrupt:
        print("ended")


if __name__ == "__main__":
    main()
