"""Handler of ApiVersions: the APIs and versions, derived from the declarations of the handlers."""

from functools import cache

from levada.api.registry import handlers, handles
from levada.api.request import API_VERSIONS_KEY, UNTHROTTLED, RequestContext
from levada.errors import ErrorCode
from levada.wire.schema.lazy_imports import lazy_imports

# Features by name: the lowest and highest supported level, and the finalized one.
FEATURES = {
    "group.version": (0, 1, 1),  # 1: consumer groups (KIP-848)
    # 2: a Produce adds its partition to the transaction, and each end of a transaction bumps the epoch (KIP-890).
    "transaction.version": (0, 2, 2),
}
LEVEL_ZERO_FROM = 4  # older versions cannot express features whose levels begin at 0

with lazy_imports():
    import kio.schema.api_versions.v4 as api_versions_v4


@handles("api_versions", versions=range(5))
def api_versions(
    context: RequestContext, request: "api_versions_v4.ApiVersionsRequest | None"
) -> "api_versions_v4.ApiVersionsResponse":
    """Return the versions of each API. v3 adds the client's name (KIP-511) and features (KIP-584).

    v4 adds features whose levels begin at 0. `request` is None if the client sent an unknown version: the response is
    UNSUPPORTED_VERSION and the versions of ApiVersions itself.
    """
    return _response(request is None, context.api_version)


@cache
def _response(unsupported: bool, version: int) -> "api_versions_v4.ApiVersionsResponse":
    """Cached: every client sends ApiVersions on each of its connections."""
    return api_versions_v4.ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION if unsupported else ErrorCode.NONE,
        api_keys=_ranges(unsupported),
        throttle_time=UNTHROTTLED,
        supported_features=tuple(
            api_versions_v4.response.SupportedFeatureKey(name=name, min_version=first, max_version=last)
            for name, (first, last, _) in FEATURES.items()
            if first > 0 or version >= LEVEL_ZERO_FROM
        ),
        finalized_features_epoch=0,
        finalized_features=tuple(
            api_versions_v4.response.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, (_, _, level) in FEATURES.items()
        ),
    )


def _ranges(unsupported: bool) -> "tuple[api_versions_v4.response.ApiVersion, ...]":
    return tuple(
        api_versions_v4.response.ApiVersion(
            api_key=handler.api_key, min_version=handler.advertised_from, max_version=handler.versions[-1]
        )
        for handler in sorted(handlers().values())
        if not unsupported or handler.api_key == API_VERSIONS_KEY
    )
