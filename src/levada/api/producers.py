"""InitProducerId: an id for a producer that wants its retries stored once (R25)."""

from levada.api.registry import Call, handles
from levada.api.throttling import UNTHROTTLED
from levada.errors import ErrorCode, KafkaError
from levada.wire.lazy import kio_modules

with kio_modules():
    import kio.schema.init_producer_id.v6 as shapes


@handles("init_producer_id", versions=range(7))
async def init_producer_id(
    call: Call, request: "shapes.InitProducerIdRequest"
) -> "shapes.InitProducerIdResponse":
    """Give out an id that nobody had before, with epoch 0. v3 lets a producer name its old id."""
    if request.transactional_id is not None:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "transactions are not available in this version of Levada; unset transactional.id",
        )
    return shapes.InitProducerIdResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        producer_id=await call.broker.next_producer_id(),
        producer_epoch=0,
    )
