"""ApiVersions: what this broker can be asked, derived from the handlers themselves."""

from functools import cache

from levada.api.registry import handlers, handles
from levada.api.request import API_VERSIONS_KEY, RequestContext
from levada.api.throttling import UNTHROTTLED
from levada.errors import ErrorCode
from levada.wire.schema.lazy_imports import lazy_imports

# Features by name: the levels that are known, and the one that is in force.
FEATURES = {
    "group.version": (0, 1, 1),  # 1 has groups of the consumer protocol (KIP-848)
    # 2 lets a Produce add its partition to the transaction, and gives a new epoch with each end (KIP-890).
    "transaction.version": (0, 2, 2),
}
OMIT_FROM_ZERO_UNTIL = 3  # versions in which a feature whose levels begin at 0 cannot be told

with lazy_imports():
    import kio.schema.api_versions.v4 as shapes


@handles("api_versions", versions=range(5))
def api_versions(
    context: RequestContext, request: "shapes.ApiVersionsRequest | None"
) -> "shapes.ApiVersionsResponse":
    """Tell the range of each API. v3 adds the client's name (KIP-511) and features (KIP-584).

    Without a request the client spoke a version that is not known here: it gets the error and the range to try.
    """
    return _told(request is None, context.api_version)


@cache
def _told(refused: bool, version: int) -> "shapes.ApiVersionsResponse":
    """Made once: every client asks, on each of its connections."""
    return shapes.ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION if refused else ErrorCode.NONE,
        api_keys=_ranges(refused),
        throttle_time=UNTHROTTLED,
        supported_features=tuple(
            shapes.response.SupportedFeatureKey(name=name, min_version=first, max_version=last)
            for name, (first, last, _) in FEATURES.items()
            if first > 0 or version > OMIT_FROM_ZERO_UNTIL
        ),
        finalized_features_epoch=0,
        finalized_features=tuple(
            shapes.response.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, (_, _, level) in FEATURES.items()
        ),
    )


def _ranges(refused: bool) -> "tuple[shapes.response.ApiVersion, ...]":
    return tuple(
        shapes.response.ApiVersion(
            api_key=handler.api_key, min_version=handler.advertised_from, max_version=handler.versions[-1]
        )
        for handler in sorted(handlers().values())
        if not refused or handler.api_key == API_VERSIONS_KEY
    )
