"""What Spark tells a sink about its query: in the options, and in the checkpoint if Python can read its directory."""

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

OFFSET_LOG_HEADER_LINES = 2  # its version; when the batch was planned and the session's settings


def checkpoint_location(given: Mapping[str, str]) -> str:
    """The checkpoint directory in the options of a query, without a slash at its end; empty if they do not have it."""
    location = re.sub("^file:(//)?/", "/", spark_option(given, "checkpointLocation"))
    return location.rstrip("/") or location


def has_authority(location: str) -> bool:
    """Whether a location names its file system, as `hdfs://nn:8020/a` and `s3a://bucket/a` do.

    The same path, or `hdfs:///a`, may be another directory for another driver.
    """
    parts = urlsplit(location)
    return bool(parts.scheme and parts.netloc)


def spark_option(given: Mapping[str, str], name: str) -> str:
    """An option that Spark itself adds to those of a stream; empty if it does not."""
    return next((value for key, value in given.items() if key.lower() == name.lower()), "")


def offsets_digest(location: str, batch: int) -> str | None:
    """A digest of the end offsets of a batch in Spark's offset log; None if Python cannot read the checkpoint.

    Spark writes the offset log before it runs a batch, and repeats a batch from it; a batch that is planned again may
    have other offsets.
    """
    try:
        lines = (Path(location) / "offsets" / str(batch)).read_bytes().splitlines() if location else []
    except OSError:
        return None
    offsets = lines[OFFSET_LOG_HEADER_LINES:]
    return sha256(b"\n".join(offsets)).hexdigest()[:32] if offsets else None


def query_id(location: str) -> str:
    """The id of the query of a checkpoint, which Spark writes when it first starts; empty if Python cannot read it."""
    try:
        return str(json.loads((Path(location) / "metadata").read_bytes())["id"]) if location else ""
    except (OSError, ValueError, KeyError, TypeError):  # also a file that is half written
        return ""
