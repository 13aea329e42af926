"""Metadata: v8 to v10 carry the cluster's authorized operations; later DescribeCluster does."""

from dataclasses import dataclass, field

from kio.schema.metadata.v13 import request, response

__all__ = ["MetadataRequest", "MetadataResponse", "request", "response"]

OPERATIONS_NOT_REQUESTED = -(2**31)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(request.MetadataRequest):
    include_cluster_authorized_operations: bool = field(metadata={"kafka_type": "bool"}, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse(response.MetadataResponse):
    cluster_authorized_operations: int = field(metadata={"kafka_type": "int32"}, default=OPERATIONS_NOT_REQUESTED)
