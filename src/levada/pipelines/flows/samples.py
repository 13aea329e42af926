"""Generated sample streams for the demo, the examples, the tutorial and tests (pure).

A `Random` and a clock are arguments, so a stream can run live or in simulated time, and repeat.
"""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import count
from random import Random
from typing import Any, NamedTuple

Now = Callable[[], datetime]


class Sample(NamedTuple):
    """A record to produce."""

    topic: str
    key: str
    value: str


PAGES = (
    "/", "/products/levada-jacket", "/products/trail-shoes", "/sale", "/products/rain-poncho", "/cart", "/blog/madeira",
    "/products/head-lamp", "/checkout", "/products/water-bottle", "/about", "/blog/how-channels-share-water",
    "/account", "/products/hiking-poles", "/help/returns", "/products/wool-socks", "/stores", "/jobs",
)  # fmt: skip
QUERIES = ("rain jacket", "trail shoes 42", "head lamp", "wool socks", "poncho", "poles carbon", "returns")
SCREENS = ("phone", "phone", "phone", "laptop", "laptop", "tablet")
COUNTRIES = ("PT", "DE", "US", "GB", "FR", "BR", "JP")
ELEMENTS = ("add-to-cart", "buy-now", "next-picture", "size-guide", "newsletter", "share")
PLACEMENTS = ("top-banner", "sidebar", "between-products", "checkout")
CAMPAIGNS = ("autumn-rain", "two-for-one", "new-trails")
VISITORS_MIN, VISITORS_MAX = 100, 400  # on the site at a time
LEAVES = 0.03  # the probability that a visitor leaves after an event


def website(rng: Random, now: Now) -> Iterator[Sample]:
    """Events of the visitors of a shop, endless. Few pages get most of the views, as on any site."""
    weights = [1 / rank for rank in range(1, len(PAGES) + 1)]
    visitors: list[dict[str, Any]] = []
    for number in count(1):
        if len(visitors) < VISITORS_MAX or rng.random() < LEAVES:
            visitors.append(_visitor(rng, number))
        visitor = rng.choice(visitors)
        if rng.random() < LEAVES and len(visitors) > VISITORS_MIN:
            visitors.remove(visitor)
        topic, more = _action(rng, visitor["page"], weights)
        event = {"at": _iso(now())} | visitor | more
        visitor["page"] = event["page"]
        yield Sample(topic, visitor["visitor"], json.dumps(event))


def _visitor(rng: Random, number: int) -> dict[str, Any]:
    screen, country = rng.choice(SCREENS), rng.choice(COUNTRIES)
    return {"visitor": f"v{number:07d}", "screen": screen, "country": country, "page": None}


def _action(rng: Random, page: str | None, weights: list[float]) -> tuple[str, dict[str, Any]]:
    """A topic, and the fields of its event beside those of the visitor."""
    kind = rng.random()
    if page is None or kind < 0.45:
        return "page-views", {"page": rng.choices(PAGES, weights)[0], "referrer": page}
    if kind < 0.65:
        return "scrolls", {"depth": round(rng.random(), 2)}
    if kind < 0.80:
        position = {"x": rng.randrange(1280), "y": rng.randrange(2400)}
        return "clicks", {"element": rng.choice(ELEMENTS)} | position
    if kind < 0.90:
        return "searches", {"query": rng.choice(QUERIES), "results": rng.randrange(40)}
    fields = {"placement": rng.choice(PLACEMENTS), "campaign": rng.choice(CAMPAIGNS)}
    return "ads", fields | {"clicked": rng.random() < 0.02}


SITES = ("funchal", "porto-moniz", "santana")
MEASURES = {
    "temperature": (19.0, 0.4),
    "humidity": (70.0, 2.0),
    "flow": (12.0, 0.8),
}  # mean and deviation


def devices(rng: Random, now: Now, number: int = 60) -> Iterator[Sample]:
    """Readings of devices along the channels, in turn, endless; one in twenty runs hot."""
    hot = {index for index in range(number) if rng.random() < 0.05} or {0}
    drift = [rng.gauss(0, 1) for _ in range(number)]
    for sequence in count():
        index = sequence % number
        measure = rng.choice(tuple(MEASURES))
        mean, spread = MEASURES[measure]
        drift[index] = drift[index] * 0.9 + rng.gauss(0, 0.3)
        value = mean + spread * drift[index] + (25 if index in hot and measure == "temperature" else 0)
        device = f"device-{index:04d}"
        reading = {"at": _iso(now()), "device": device, "site": SITES[index % len(SITES)]}
        yield Sample("readings", device, json.dumps(reading | {"measure": measure, "value": round(value, 2)}))


SERVICES = ("gateway", "orders", "payments", "search", "mail")
NORMAL = {
    "INFO": ("served {path} in {ms} ms", "order {id} accepted", "cache holds {n} entries"),
    "WARN": ("retry {n} of request {id}", "slow query: {ms} ms"),
}
ERRORS = {
    "gateway": ("upstream {host} timed out after {ms} ms", "cannot parse header of request {id}"),
    "orders": ("order {id} has no customer", "deadlock on table orders, transaction {n}"),
    "payments": ("card service answered 503 to payment {id}", "upstream {host} timed out after {ms} ms"),
    "search": ("index shard {n} is read only", "query of {n} bytes refused"),
    "mail": ("mailbox of customer {n} is full",),
}


def service_logs(rng: Random, now: Now, failing: str = "payments") -> Iterator[Sample]:
    """Lines of several services, each in its own format, endless; one service fails more than the others."""
    while True:
        service = rng.choice(SERVICES)
        wrong = rng.random() < (0.3 if service == failing else 0.02)
        level = "ERROR" if wrong else rng.choices(("INFO", "WARN"), (9, 1))[0]
        message = rng.choice(ERRORS[service] if wrong else NORMAL[level]).format(
            path=rng.choice(PAGES),
            ms=rng.randrange(1, 30_000),
            id=f"{rng.randrange(16**8):08x}",
            n=rng.randrange(1, 5_000),
            host=f"10.0.{rng.randrange(4)}.{rng.randrange(255)}:8443",
        )
        yield Sample("logs", service, _line(service, level, message, now()))


def _line(service: str, level: str, message: str, at: datetime) -> str:
    """A line in the format of the service: JSON, logfmt or plain text."""
    if service in ("orders", "payments"):
        return json.dumps({"time": _iso(at), "level": level.lower(), "service": service, "message": message})
    if service == "search":
        return f'time={_iso(at)} level={level.lower()} service={service} msg="{message}"'
    return f"{_iso(at)} {level} {service}[{len(service) * 100}]: {message}"


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
