"""The tables of reports, as text and as HTML (pure)."""

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple


class Table(NamedTuple):
    """A title, column names, and rows of texts and numbers."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]

    def lines(self) -> list[str]:
        """The table as lines of text."""
        if not self.rows:
            return [f"{self.title}: none"]
        texts = [tuple(name.upper() for name in self.columns), *self._cells()]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        return [f"{self.title}:"] + [
            "  ".join(
                text.rjust(width) if is_number else text.ljust(width)
                for text, width, is_number in zip(row, widths, self._numbers(), strict=True)
            ).rstrip()
            for row in texts
        ]

    def html(self) -> str:
        """The table as HTML."""
        classes = [' class="number"' if is_number else "" for is_number in self._numbers()]
        rows = [
            "".join(f"<{tag}{kind}>{escape(text)}</{tag}>" for kind, text in zip(classes, row, strict=True))
            for tag, row in [("th", self.columns), *(("td", row) for row in self._cells())]
        ]
        body = "\n".join(f"<tr>{row}</tr>" for row in rows) if self.rows else "<tr><td>none</td></tr>"
        return f"<h2>{escape(self.title)}</h2>\n<table>\n{body}\n</table>"

    def _cells(self) -> list[tuple[str, ...]]:
        return [tuple(map(_cell, row)) for row in self.rows]

    def _numbers(self) -> list[bool]:
        """Whether a column has numbers only, which are aligned to the right."""
        return [all(isinstance(row[index], int | float) for row in self.rows) for index in range(len(self.columns))]


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
