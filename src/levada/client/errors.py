"""The exceptions of the client, beside KafkaError for the errors in responses."""

from levada.errors import ErrorCode, KafkaError


class ConnectionFailed(ConnectionError):  # noqa: N818
    """A broker cannot be reached, closed the connection, or does not speak Kafka's protocol."""


class BrokerNotResponding(ConnectionFailed):
    """A server accepts connections and does not respond: a broker that is suspended, or no broker."""


class RequestTimedOut(TimeoutError):  # noqa: N818
    """A broker received a request and did not respond in time."""


class MemberFenced(KafkaError):  # noqa: N818
    """This consumer is not a member of its group any more: other members own its partitions, and it cannot commit."""


class ProducerFenced(KafkaError):  # noqa: N818
    """Another producer has taken over the transactional id, or the transaction has timed out."""


Failure = ConnectionFailed | RequestTimedOut | KafkaError
FAILURES = (ConnectionFailed, RequestTimedOut, KafkaError)  # of a request

# The coordinator knows a newer epoch, or has ended the transaction by itself.
_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE})


def as_fenced(failure: Exception) -> Exception:
    """The failure of a request in a transaction; ProducerFenced in place of the error codes that mean it."""
    if isinstance(failure, KafkaError) and failure.code in _FENCED:
        why = "another producer has taken the transactional id, or the transaction was open for too long"
        return ProducerFenced(failure.code, f"{why}: {failure.detail}")
    return failure


def error_code(number: int) -> ErrorCode:
    """The code by its number; one that Levada does not know becomes UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def raise_for_code(number: int, detail: str) -> None:
    """KafkaError unless the code is NONE."""
    code = error_code(int(number))
    if code:
        raise KafkaError(code, detail)
