"""The outbox sends responses in the order of the requests."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.errors import KafkaError
from levada.wire.frames import Outbox, Response, frame_end

AT_ONCE_MAX = 1000


class Place:
    """An answer that becomes known when the test says so."""

    def __init__(self) -> None:
        self.reply: Response | None = None
        self.cancelled = False

    def collect(self) -> Response | None:
        return self.reply

    def cancel(self) -> None:
        self.cancelled = True


def everything(outbox: Outbox) -> bytes:
    """What a connection sends: it collects until nothing is left that can go."""
    sent = b"".join(outbox.collect())
    while outbox.more:
        sent += b"".join(outbox.collect())
    return sent


def test_an_unknown_answer_holds_back_the_ones_behind_it() -> None:
    outbox, slow = Outbox(AT_ONCE_MAX), Place()
    outbox.add(b"a", 1)
    outbox.add(slow)
    outbox.add(b"c", 1)
    assert everything(outbox) == b"a"
    assert everything(outbox) == b""
    slow.reply = b"b"
    assert everything(outbox) == b"bc"
    assert not outbox.slots


def test_an_answer_may_be_many_buffers() -> None:
    outbox = Outbox(AT_ONCE_MAX)
    outbox.add([b"a", memoryview(b"b")], 2)
    outbox.add(b"c", 1)
    assert [bytes(buffer) for buffer in outbox.collect()] == [b"a", b"b", b"c"]


def test_one_large_answer_at_a_time() -> None:
    """The next is collected when the client has taken the first: no more than one lies with the socket."""
    outbox = Outbox(AT_ONCE_MAX)
    for letter in (b"a", b"b", b"c"):
        outbox.add([letter * AT_ONCE_MAX], AT_ONCE_MAX)
    sizes = []
    while outbox.slots:
        sizes.append(sum(map(len, outbox.collect())))
        assert outbox.more == bool(outbox.slots)
    assert sizes == [AT_ONCE_MAX] * 3


def test_known_answers_are_counted_until_the_outbox_is_empty() -> None:
    outbox, slow = Outbox(AT_ONCE_MAX), Place()
    outbox.add(slow)
    for _ in range(5):
        outbox.add(b"0123456789", 10)
    assert outbox.collect() == [] and outbox.queued_bytes == 50
    slow.reply = b"x"
    assert len(outbox.collect()) == 6 and outbox.queued_bytes == 0


def test_pending_responses_are_cancelled_with_their_connection() -> None:
    outbox, places = Outbox(AT_ONCE_MAX), [Place(), Place()]
    outbox.add(places[0])
    outbox.add(b"known")
    outbox.add(places[1])
    outbox.cancel()
    assert all(place.cancelled for place in places)
    assert not outbox.slots and everything(outbox) == b""


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=300), st.booleans())), st.randoms())
def test_any_order_of_knowing_is_sent_in_the_order_of_asking(
    requests: list[tuple[bool, bytes, bool]], random: object
) -> None:
    """Pipelined requests of one client are answered in their order, whatever waits for what."""
    outbox, unknown, sent = Outbox(AT_ONCE_MAX), [], b""
    for known, reply, in_pieces in requests:
        answer: Response = [reply[:10], memoryview(reply)[10:]] if in_pieces else reply
        if known:
            outbox.add(answer, len(reply))
        else:
            place = Place()
            outbox.add(place)
            unknown.append((place, answer))
    random.shuffle(unknown)  # type: ignore[attr-defined]
    sent += everything(outbox)
    for place, answer in unknown:
        place.reply = answer
        sent += everything(outbox)
    assert sent == b"".join(reply for _, reply, _ in requests)
    assert not outbox.slots and outbox.queued_bytes == 0


@pytest.mark.parametrize("size", [8, 9, 1000, 4096])
def test_a_frame_ends_where_its_size_says(size: int) -> None:
    view = memoryview(b"xx" + struct.pack(">i", size))
    assert frame_end(view, 2, 4096) == 2 + 4 + size


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7, 4097, 2**31 - 1])
def test_a_frame_without_room_for_a_header_or_beyond_the_limit_is_refused(size: int) -> None:
    with pytest.raises(KafkaError, match=r"socket\.request\.max\.bytes"):
        frame_end(memoryview(struct.pack(">i", size)), 0, 4096)
