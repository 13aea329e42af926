"""kio's codec, the reference implementation of ours."""

import io
from typing import Any

from kio.serial import entity_writer
from tests.support.random_messages import MESSAGES

from levada.wire.schema import messages


def kio_bytes(message: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


IDS = [f"{api.name}-{kind}" for api, kind in MESSAGES]


READ = {"request": messages.read_request, "response": messages.read_response}


HEADER_TAGS = b"\x00"
