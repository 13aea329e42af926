"""Handlers of UnregisterBroker and DescribeQuorum."""

from typing import Any

from levada.api.registry import handles
from levada.api.request import UNTHROTTLED, RequestContext
from levada.core.cluster.image import ClusterImage
from levada.core.cluster.registration import UnregisterBroker
from levada.core.cluster.topic_names import KAFKA_METADATA
from levada.errors import ErrorCode
from levada.model import NO_LEADER
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.describe_quorum.v2 as describe_quorum_v2
    import kio.schema.unregister_broker.v0 as unregister_broker_v0


@handles("unregister_broker", versions=range(1))
async def unregister_broker(
    context: RequestContext, request: "unregister_broker_v0.UnregisterBrokerRequest"
) -> "unregister_broker_v0.UnregisterBrokerResponse":
    """Remove a broker that has stopped for good. A broker that is running is refused."""
    decision = await context.broker.controller.submit_all(
        [UnregisterBroker(request.broker_id)], requester=context.requester
    )
    error = decision.errors[0]
    return unregister_broker_v0.response.UnregisterBrokerResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.detail,
    )


@handles("describe_quorum", versions=range(3))
def describe_quorum(
    context: RequestContext, request: "describe_quorum_v2.DescribeQuorumRequest"
) -> "describe_quorum_v2.DescribeQuorumResponse":
    """Return the controller as the leader and only voter of Kafka's metadata topic: the metadata store needs no quorum.

    The leader epoch is the controller epoch, the high watermark the revision of the metadata here. v1 adds timestamps,
    v2 listeners (KIP-853).
    """
    response = describe_quorum_v2.response
    image = context.broker.image
    return response.DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        topics=tuple(
            response.TopicData(
                topic_name=topic.topic_name,
                partitions=tuple(
                    _quorum(image, topic.topic_name, partition.partition_index) for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
        nodes=tuple(
            response.Node(
                node_id=broker.id,
                listeners=tuple(
                    response.Listener(name=endpoint.listener, host=endpoint.host, port=endpoint.port)
                    for endpoint in broker.endpoints
                ),
            )
            for broker in image.brokers.values()
            if broker.id == image.controller_id
        ),
    )


def _quorum(image: ClusterImage, topic: str, index: int) -> Any:
    response = describe_quorum_v2.response
    if (topic, index) != (KAFKA_METADATA, 0):
        return response.PartitionData(
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message="This server does not host this topic-partition.",
            leader_id=NO_LEADER,
            leader_epoch=0,
            high_watermark=-1,
            current_voters=(),
            observers=(),
        )
    leader, revision = image.controller_id, image.revision
    voter = response.ReplicaState(replica_id=leader, replica_directory_id=None, log_end_offset=revision)
    return response.PartitionData(
        partition_index=index,
        error_code=ErrorCode.NONE,
        error_message=None,
        leader_id=leader,
        leader_epoch=image.controller_epoch,
        high_watermark=revision,
        current_voters=() if leader == NO_LEADER else (voter,),
        observers=(),
    )
