"""Random ids of topics and clusters."""

import base64
from typing import Final
from uuid import UUID, uuid4

RESERVED_IDS: Final = (UUID(int=0), UUID(int=1))  # Kafka's "no id" and its metadata topic


def new_topic_id() -> UUID:
    """Return a random topic id."""
    while True:
        found = uuid4()
        # Its text form must not start with a dash, which Kafka's tools would parse as an option.
        if found not in RESERVED_IDS and not base64.urlsafe_b64encode(found.bytes).startswith(b"-"):
            return found


def new_cluster_id() -> str:
    """Return a random cluster id in Kafka's form."""
    return base64.urlsafe_b64encode(new_topic_id().bytes).rstrip(b"=").decode()
