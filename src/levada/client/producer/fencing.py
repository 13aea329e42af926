"""What a client is told when others took its place: it must not go on as if nothing had happened (R26)."""

from levada.errors import ErrorCode, KafkaError

ENDING_S = 0.005  # how long a transaction takes to be ended, about


class MemberFenced(KafkaError):  # noqa: N818
    """This consumer is no member of its group any more: what it had was given to others, and it cannot commit."""


class ProducerFenced(KafkaError):  # noqa: N818
    """Another producer took over the transactional id, or the transaction was open for too long."""


# The coordinator knows a newer epoch, or has ended the transaction by itself.
FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE})


def as_fenced(failure: Exception) -> Exception:
    """The failure of something in a transaction, by its clearest name."""
    if isinstance(failure, KafkaError) and failure.code in FENCED:
        why = "another producer has taken the transactional id, or the transaction was open for too long"
        return ProducerFenced(failure.code, f"{why}: {failure.detail}")
    return failure
