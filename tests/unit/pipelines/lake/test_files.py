"""Files on object stores: what a failed write leaves."""

from typing import Any

import pytest

from levada.pipelines.lake.files import Files


class Stream:
    """An output stream of Hadoop on a disk that is full; to close it would create the object."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def write(self, data: bytearray) -> None:
        raise OSError("No space left on device")

    def abort(self) -> None:
        self.calls.append("abort")

    def close(self) -> None:
        self.calls.append("close")


class Store:
    """Hadoop's file system and builder of files."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def createFile(self, path: str) -> "Store":
        return self

    def overwrite(self, replaces: bool) -> "Store":
        return self

    def must(self, option: str, value: bool) -> "Store":
        return self

    def build(self) -> Stream:
        return self.stream


class FilesOf(Files):
    """Files of a store."""

    def __init__(self, store: Store) -> None:
        self._system = store

    def _path(self, name: str) -> Any:
        return name


def test_a_conditional_write_that_fails_creates_nothing() -> None:
    stream = Stream()
    with pytest.raises(OSError, match="No space"):
        FilesOf(Store(stream))._create_conditionally("0000000001.json", "{}")
    assert stream.calls == ["abort"]
