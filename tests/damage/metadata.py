"""Ways in which a record of the metadata store can be damaged without SQLite noticing, chosen at random."""

import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

from levada.server import METADATA_FILE

Damage = list[tuple[Path, str]]  # what, and how


def damage_metadata(data: Path, random: Random) -> Damage:
    """Damage the value of one record or remove it; perhaps also from the list of changes, as if it was older."""
    (path,) = data.glob(f"*/{METADATA_FILE}")
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            return [(path, _damage_record(database, random))]
    except sqlite3.Error as error:
        return [(path, f"no record damaged: {error}")]


def _damage_record(database: sqlite3.Connection, random: Random) -> str:
    records = database.execute("SELECT key, value FROM rows ORDER BY key").fetchall()
    key, value = random.choice(records)
    forget = random.random() < 0.5
    if forget:
        database.execute("DELETE FROM changes WHERE key = ? AND revision < (SELECT max(revision) FROM changes)", (key,))
    how, damaged = _damaged(value, [other for _, other in records], random)
    if damaged is None:
        database.execute("DELETE FROM rows WHERE key = ?", (key,))
    else:
        database.execute("UPDATE rows SET value = ? WHERE key = ?", (damaged, key))
    return f"record {key} {how}{', its changes forgotten' if forget else ''}"


def _damaged(value: bytes, others: list[bytes], random: Random) -> tuple[str, bytes | None]:
    """How a value is damaged, and the new value; None if the record is removed."""
    match random.randrange(6):
        case 0:
            return "removed", None
        case 1:
            size = random.randrange(len(value))
            return f"truncated to {size} bytes", value[:size]
        case 2:
            other = random.choice(others)
            return f"replaced by {other!r}", other
        case 3:
            other = random.choice((b"", b"{}", b"null", b"[]", b"\xff\x00", b"[" * 5_000))
            return f"replaced by {other[:20]!r}", other
        case _:
            bit = random.randrange(8 * len(value))
            changed = bytearray(value)
            changed[bit // 8] ^= 1 << bit % 8
            return f"bit {bit} flipped: {bytes(changed)!r}", bytes(changed)
