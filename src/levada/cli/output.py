"""Data on standard output: aligned columns or JSON."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import click

Output = Literal["table", "json", "jsonl"]
Row = Mapping[str, Any]
SPACE = 3


def emit(rows: Sequence[Row], output: Output, columns: Sequence[str] | None = None) -> None:
    """Print rows; a table has only `columns`, JSON has all."""
    if output == "table":
        click.echo(table(rows, columns or (list(rows[0]) if rows else [])), nl=False, color=wants_color())
        return
    import json

    if output == "json":
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for row in rows:
        click.echo(json.dumps(row, ensure_ascii=False))


def emit_one(item: Row, output: Output) -> None:
    """Print one object as JSON."""
    import json

    click.echo(json.dumps(item, indent=2 if output == "json" else None, ensure_ascii=False))


def emit_each(described: Sequence[Row], output: Output, show: Callable[[Row], None]) -> None:
    """Print descriptions as JSON (one object without a list), or each by `show`, separated by empty lines."""
    if output == "json" and len(described) == 1:
        emit_one(described[0], output)
    elif output != "table":
        emit(described, output)
    else:
        for number, info in enumerate(described):
            if number:
                click.echo()
            show(info)


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Rows in aligned columns, numbers to the right, below a header."""
    cells = [[_text(row.get(column)) for column in columns] for row in rows]
    headers = [column.upper().replace("_", " ") for column in columns]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    numeric = [bool(rows) and all(_is_number(row.get(column)) for row in rows) for column in columns]
    lines = [click.style(_line(headers, widths, numeric), bold=True)]
    lines += [_line(row, widths, numeric) for row in cells]
    return "".join(line + "\n" for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, numeric, strict=True)
    )
    return (" " * SPACE).join(padded).rstrip()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(",".join(map(str, value)) if isinstance(value, list | tuple) else str(value))


def size_text(count: int | None) -> str:
    """Bytes for people: 512 B, 1.5 kB, 20.0 MB."""
    if count is None:
        return "-"
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def printable(text: str) -> str:
    """A text without control characters; names come from clients."""
    return text if text.isprintable() else repr(text)[1:-1]


def discard_output() -> None:
    """Discard what is still written to standard output, whose reader has gone; Python flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def wants_color() -> bool | None:
    """False with NO_COLOR (no-color.org), otherwise None: click decides by the terminal."""
    return False if os.environ.get("NO_COLOR") else None
