"""Sample streams are repeatable and complete."""

import random
from datetime import UTC, datetime
from itertools import islice

from levada.pipelines.flows import samples

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def test_a_made_up_stream_is_the_same_twice() -> None:
    for stream in (samples.website, samples.devices, samples.service_logs):
        first, second = (list(islice(stream(random.Random(3), lambda: NOON), 500)) for _ in range(2))
        assert first == second
        assert list(islice(stream(random.Random(4), lambda: NOON), 500)) != first


def test_a_website_has_every_kind_of_event() -> None:
    made = list(islice(samples.website(random.Random(3), lambda: NOON), 2000))
    assert {sample.topic for sample in made} == {"page-views", "searches", "clicks", "scrolls", "ads"}
    seen: set[str] = set()
    for sample in made:
        assert sample.topic == "page-views" or sample.key in seen  # nobody acts on a page he has not opened
        seen.add(sample.key)
