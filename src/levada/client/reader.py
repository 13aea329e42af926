"""Reads the fields of flexible messages, for the responses that the client decodes by hand."""

import struct

from levada.wire.primitives import read_uvarint, skip_tagged_fields

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class MessageReader:
    """Reads field after field; IndexError or struct.error where the bytes end early."""

    __slots__ = ("_stop", "_view", "position")

    def __init__(self, view: memoryview, position: int = 0) -> None:
        self._view = view
        self._stop = len(view)
        self.position = position

    def take(self, size: int) -> memoryview:
        """The next `size` bytes, without a copy."""
        end = self.position + size
        if size < 0 or end > self._stop:
            raise IndexError("the message ends early")
        taken = self._view[self.position : end]
        self.position = end
        return taken

    def _fixed(self, layout: struct.Struct) -> int:
        value: int = layout.unpack_from(self._view, self.position)[0]
        self.position += layout.size
        return value

    def int8(self) -> int:
        return self._fixed(_INT8)

    def int16(self) -> int:
        return self._fixed(_INT16)

    def int32(self) -> int:
        return self._fixed(_INT32)

    def int64(self) -> int:
        return self._fixed(_INT64)

    def _unsigned(self) -> int:
        value, self.position = read_uvarint(self._view, self.position)
        return value

    def count(self) -> int:
        """The length of an array (null counts as empty); each element takes at least one byte."""
        count = self._unsigned() - 1
        if count > self._stop - self.position:
            raise IndexError("an array is longer than its message")
        return max(count, 0)

    def string(self) -> str | None:
        length = self._unsigned() - 1
        return None if length < 0 else str(self.take(length), "utf-8")

    def blob(self) -> memoryview | None:
        length = self._unsigned() - 1
        return None if length < 0 else self.take(length)

    def int32s(self) -> tuple[int, ...]:
        count = self.count()
        return struct.unpack(f">{count}i", self.take(4 * count))

    def tagged(self) -> dict[int, memoryview]:
        """Tagged fields by their numbers, undecoded."""
        fields: dict[int, memoryview] = {}
        for _ in range(self._unsigned()):
            tag = self._unsigned()
            fields[tag] = self.take(self._unsigned())
        return fields

    def tags(self) -> None:
        """Skip tagged fields."""
        self.position = skip_tagged_fields(self._view, self.position, self._stop)
