"""Ways in which a file of a data directory can be damaged, chosen at random."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.damage.directories import Damage, damage_directories
from tests.damage.metadata import damage_metadata

from levada.wire.batches import iterate_headers

Act = Callable[[Path, Random], str]  # damages a file; says how


def truncate(path: Path, random: Random) -> str:
    size = random.randrange(path.stat().st_size or 1)
    os.truncate(path, size)
    return f"truncated to {size} bytes"


def truncate_at_a_batch(path: Path, random: Random) -> str:
    positions = [position for position, _ in iterate_headers(memoryview(path.read_bytes()))]
    size = random.choice(positions or [0])
    os.truncate(path, size)
    return f"truncated to {size} bytes, the end of a batch"


def cut_out_a_batch(path: Path, random: Random) -> str:
    data = path.read_bytes()
    batches = list(iterate_headers(memoryview(data)))
    if not batches:
        return flip_a_bit(path, random)
    position, header = random.choice(batches)
    path.write_bytes(data[:position] + data[position + header.size :])
    return f"the batch with offset {header.base_offset} cut out"


def flip_a_bit_of_an_offset(path: Path, random: Random) -> str:
    """No CRC covers the base offset of a batch."""
    data = bytearray(path.read_bytes())
    positions = [position for position, _ in iterate_headers(memoryview(bytes(data)))]
    if not positions:
        return flip_a_bit(path, random)
    position, bit = random.choice(positions), random.randrange(64)
    data[position + 7 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return f"bit {bit} of the offset at byte {position} flipped"


def flip_a_bit(path: Path, random: Random) -> str:
    data = bytearray(path.read_bytes())
    bit = random.randrange(8 * len(data) or 1)
    if data:
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
    return f"bit {bit} flipped"


def overwrite(path: Path, random: Random) -> str:
    data = bytearray(path.read_bytes())
    start = random.randrange(len(data) or 1)
    end = min(len(data), start + random.randrange(1, 300))
    data[start:end] = bytes(end - start) if random.random() < 0.5 else random.randbytes(end - start)
    path.write_bytes(data)
    return f"bytes {start} to {end} overwritten"


def delete(path: Path, random: Random) -> str:
    path.unlink()
    return "deleted"


def empty(path: Path, random: Random) -> str:
    os.truncate(path, 0)
    return "emptied"


def replace_by_a_directory(path: Path, random: Random) -> str:
    path.unlink()
    path.mkdir()
    return "replaced by a directory"


def replace_by_a_loop(path: Path, random: Random) -> str:
    path.unlink()
    path.symlink_to(path)
    return "replaced by a link to itself"


def replace_by_a_fifo(path: Path, random: Random) -> str:
    path.unlink()
    os.mkfifo(path)
    return "replaced by a fifo"


def double(path: Path, random: Random) -> str:
    path.write_bytes(path.read_bytes() * 2)
    return "its content doubled"


def append_garbage(path: Path, random: Random) -> str:
    size = random.randrange(1, 500)
    with path.open("ab") as file:
        file.write(bytes(size) if random.random() < 0.3 else random.randbytes(size))
    return f"{size} bytes of garbage appended"


def swap_with_a_neighbour(path: Path, random: Random) -> str:
    """Exchange the content with another file of its kind in the same directory."""
    others = [one for one in sorted(path.parent.iterdir()) if kind_of(one) == kind_of(path) and one != path]
    if not others:
        return flip_a_bit(path, random)
    other = random.choice(others)
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return f"exchanged with {other.name}"


def copy_to_another_name(path: Path, random: Random) -> str:
    """Duplicate the file under a name of its kind that does not exist."""
    if path.suffix not in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
        return double(path, random)
    other = path.with_name(f"{int(path.stem) + random.randrange(1, 50):020d}{path.suffix}")
    if not other.exists():
        shutil.copyfile(path, other)
    return f"copied to {other.name}"


def leave_a_swap(path: Path, random: Random) -> str:
    """Put a file beside the segment whose name says that compaction has cleaned it."""
    content = random.choice([b"", *[one.read_bytes() for one in sorted(path.parent.glob("*.log"))]])
    path.with_name(f"{path.name}.swap").write_bytes(content)
    return f"a swap of {len(content)} bytes left beside it"


ACTS: list[Act] = [
    truncate,
    flip_a_bit,
    overwrite,
    delete,
    empty,
    replace_by_a_directory,
    replace_by_a_loop,
    replace_by_a_fifo,
    double,
    append_garbage,
    swap_with_a_neighbour,
    copy_to_another_name,
]

LOG_ACTS: list[Act] = [
    truncate_at_a_batch,
    truncate_at_a_batch,
    cut_out_a_batch,
    flip_a_bit_of_an_offset,
    leave_a_swap,
]


def kind_of(path: Path) -> str:
    """The kind of a file, of which each is damaged as often as the others."""
    return path.suffix if path.suffix and path.stem.isdigit() else path.name


def damage_file(data: Path, random: Random) -> Damage:
    """Damage one file of a data directory."""
    files = [path for path in sorted(data.rglob("*")) if path.is_file()]
    kind = random.choice(sorted({kind_of(path) for path in files} | {".log"}))
    path = random.choice([path for path in files if kind_of(path) == kind])
    act = random.choice([*ACTS, *LOG_ACTS] if kind == ".log" else ACTS)
    return [(path, act(path, random))]


def damage(data: Path, random: Random) -> Damage:
    """Damage one file, directory or record of the metadata; what and how."""
    kinds = (damage_file, damage_directories, damage_metadata)
    (act,) = random.choices(kinds, weights=(80, 12, 8))
    return act(data, random)
