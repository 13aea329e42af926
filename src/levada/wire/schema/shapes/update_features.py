"""UpdateFeatures: v2 has one result for all features, older versions one for each."""

from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode
from kio.schema.update_features.v2 import request, response
from kio.schema.update_features.v2.request import UpdateFeaturesRequest

__all__ = ["UpdatableFeatureResult", "UpdateFeaturesRequest", "UpdateFeaturesResponse", "request", "response"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatableFeatureResult:
    __flexible__ = True
    feature: str = field(metadata={"kafka_type": "string"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesResponse(response.UpdateFeaturesResponse):
    results: tuple[UpdatableFeatureResult, ...] = ()
