"""Ways in which the directory of a partition can be damaged or moved, chosen at random."""

import shutil
from pathlib import Path
from random import Random

Damage = list[tuple[Path, str]]  # what, and how


def damage_directories(data: Path, random: Random) -> Damage:
    """Damage one directory of a partition, or exchange two."""
    found = partition_directories(data)
    act = random.choice((delete, replace, move, copy, exchange, exchange, exchange_with_a_sibling))
    return act(data, random.choice(found), random)


def partition_directories(data: Path) -> list[Path]:
    """The directories of partitions in all log dirs."""
    return sorted(path for path in data.glob("*/*-[0-9]*") if path.is_dir())


def delete(data: Path, path: Path, random: Random) -> Damage:
    shutil.rmtree(path)
    return [(path, "directory deleted")]


def replace(data: Path, path: Path, random: Random) -> Damage:
    """Replace the directory by a file, or by a link to itself, to nothing or to another partition's."""
    shutil.rmtree(path)
    targets = [None, path, path.with_name("nothing"), *[one for one in partition_directories(data) if one != path]]
    target = random.choice(targets)
    if target is None:
        path.write_bytes(b"a file")
    else:
        path.symlink_to(target)
    return [(path, f"directory replaced by {'a file' if target is None else f'a link to {target}'}")]


def move(data: Path, path: Path, random: Random) -> Damage:
    """Move the directory to the other log dir, as an operator may."""
    (other,) = [one for one in data.iterdir() if one != path.parent]
    if (other / path.name).exists():
        return exchange(data, path, random)
    path.rename(other / path.name)
    return [(path, f"moved to {other}")]


def copy(data: Path, path: Path, random: Random) -> Damage:
    """Copy the directory to the name of a partition that does not exist."""
    copied = path.with_name(f"{path.name.rpartition('-')[0]}-{random.randrange(7, 9)}")
    if copied.exists():
        return delete(data, path, random)
    shutil.copytree(path, copied, symlinks=True)
    return [(path, f"copied to {copied}")]


def exchange(data: Path, path: Path, random: Random) -> Damage:
    return _exchange(path, random.choice([one for one in partition_directories(data) if one != path]))


def exchange_with_a_sibling(data: Path, path: Path, random: Random) -> Damage:
    """Exchange the directories of two partitions of one topic."""
    topic = path.name.rpartition("-")[0]
    siblings = [one for one in partition_directories(data) if one != path and one.name.rpartition("-")[0] == topic]
    return _exchange(path, random.choice(siblings)) if siblings else exchange(data, path, random)


def _exchange(one: Path, other: Path) -> Damage:
    between = one.with_name("exchanging")
    one.rename(between)
    other.rename(one)
    between.rename(other)
    return [(one, f"directory exchanged with {other}"), (other, f"directory exchanged with {one}")]
