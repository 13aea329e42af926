"""Handlers of client metrics (KIP-714): the broker subscribes to none.

An error would make clients retry or log; an empty subscription makes them push nothing.
"""

from datetime import timedelta
from uuid import uuid4

from levada.api.registry import handles
from levada.api.request import UNTHROTTLED, RequestContext
from levada.errors import ErrorCode
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.get_telemetry_subscriptions.v0 as get_telemetry_subscriptions_v0
    import kio.schema.push_telemetry.v0 as push_telemetry_v0

PUSH_INTERVAL = timedelta(minutes=20)  # librdkafka keeps it, and a jitter of 20 %, as 32 bits of microseconds
TELEMETRY_BYTES_MAX = 1 << 20
ALL_CODECS = (4, 3, 1, 2)  # zstd, lz4, gzip, snappy, as Kafka lists them


@handles("get_telemetry_subscriptions", versions=range(1))
def get_telemetry_subscriptions(
    context: RequestContext, request: "get_telemetry_subscriptions_v0.GetTelemetrySubscriptionsRequest"
) -> "get_telemetry_subscriptions_v0.GetTelemetrySubscriptionsResponse":
    """Return an empty subscription, and a client instance id for a client that has none."""
    return get_telemetry_subscriptions_v0.GetTelemetrySubscriptionsResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        client_instance_id=request.client_instance_id or uuid4(),
        subscription_id=0,
        accepted_compression_types=ALL_CODECS,
        push_interval=PUSH_INTERVAL,
        telemetry_max_bytes=TELEMETRY_BYTES_MAX,
        delta_temporality=True,
        requested_metrics=(),
    )


@handles("push_telemetry", versions=range(1))
def push_telemetry(
    context: RequestContext, request: "push_telemetry_v0.PushTelemetryRequest"
) -> "push_telemetry_v0.PushTelemetryResponse":
    """Accept and discard metrics."""
    return push_telemetry_v0.PushTelemetryResponse(throttle_time=UNTHROTTLED, error_code=ErrorCode.NONE)
