"""Files and directories of the simulated disk: what a running process reads, and what a power cut leaves.

A written byte is safe only after `fsync` of its file, a name only after `fsync_dir` of its directory. Of the
rest a cut keeps any part: nothing, all, a prefix torn at any byte, or any subset of the sectors with zeros or
garbage between. Changes of names survive in order, as file systems with a journal keep them, up to any one.
"""

from collections.abc import Iterator
from random import Random

SECTOR_BYTES = 512


class SimFile:
    """The content of a file, in the page cache and on the device."""

    __slots__ = ("_dirty", "_durable", "data", "modified_ms")

    def __init__(self, modified_ms: int) -> None:
        self.data = bytearray()  # what a process reads
        self.modified_ms = modified_ms
        self._durable = b""  # what a power cut leaves for certain
        self._dirty: set[int] = set()  # the sectors that `fsync` will write

    def write(self, data: bytes, position: int) -> None:
        end = position + len(data)
        if end > len(self.data):
            self.data.extend(bytes(end - len(self.data)))
        self.data[position:end] = data
        self._dirty.update(range(position // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def fsync(self) -> None:
        self._durable = self._on_device(self._dirty, len(self.data))
        self._dirty.clear()

    def fsync_fails(self, random: Random) -> None:
        """Some of the sectors are written, none of them is dirty any more."""
        self._durable = self._survivor(random)
        self._dirty.clear()

    def drop_clean_pages(self) -> None:
        """Drop clean pages, which are then read from the device again."""
        self.data = bytearray(self._on_device(self._dirty, len(self.data)))

    def cut_power(self, random: Random) -> None:
        self.settle(self._survivor(random))

    def settle(self, content: bytes) -> None:
        self._durable = content
        self.data = bytearray(content)
        self._dirty.clear()

    def _survivor(self, random: Random) -> bytes:
        """What the device holds when only some of the dirty sectors reached it."""
        durable_size, size = len(self._durable), len(self.data)
        kind = random.choice(("nothing", "all", "torn", "holes", "garbage")) if self._dirty else "nothing"
        if kind == "nothing":
            return self._durable
        if kind != "all" and durable_size < size:
            size = random.choice((size, random.randint(durable_size, size)))
        if kind in ("all", "torn"):
            return self._on_device(self._dirty, size)
        kept = {sector for sector in sorted(self._dirty) if random.random() < 0.5}
        content = bytearray(self._on_device(kept, size))
        if kind == "garbage":  # blocks given to the file and never written show what was there before
            for sector in sorted(self._dirty - kept):
                start = max(sector * SECTOR_BYTES, durable_size)
                end = min((sector + 1) * SECTOR_BYTES, size)
                if start < end:
                    content[start:end] = random.randbytes(end - start)
        return bytes(content)

    def _on_device(self, sectors: set[int], size: int) -> bytes:
        """The durable bytes with some sectors written over them; what is missing of `size` is zeros."""
        content = bytearray(max(size, len(self._durable)))
        content[: len(self._durable)] = self._durable
        for sector in sectors:
            start, end = sector * SECTOR_BYTES, min((sector + 1) * SECTOR_BYTES, len(self.data), len(content))
            if start < end:
                content[start:end] = self.data[start:end]
        return bytes(content)


class SimDirectory:
    """Names, as a process sees them and as the device has them."""

    __slots__ = ("_durable", "_pending", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, SimNode] = {}
        self._durable: dict[str, SimNode] = {}
        self._pending: list[dict[str, SimNode | None]] = []  # since the last fsync; each change is atomic

    def change(self, names: "dict[str, SimNode | None]") -> None:
        """Give names new nodes, or take them away with None, in one step."""
        _apply(self.entries, names)
        self._pending.append(names)

    def fsync(self) -> None:
        self._durable = dict(self.entries)
        self._pending.clear()

    def cut_power(self, random: Random) -> None:
        self.entries = dict(self._durable)
        for names in self._pending[: random.randint(0, len(self._pending))]:
            _apply(self.entries, names)
        self.fsync()
        for name in sorted(self.entries):
            self.entries[name].cut_power(random)

    def files(self, prefix: str = "") -> Iterator[tuple[str, SimFile]]:
        """Every file below, by its path, in order."""
        for name in sorted(self.entries):
            node = self.entries[name]
            if isinstance(node, SimFile):
                yield f"{prefix}/{name}", node
            else:
                yield from node.files(f"{prefix}/{name}")


SimNode = SimFile | SimDirectory


def _apply(entries: dict[str, SimNode], names: dict[str, SimNode | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node
