"""The chart of docs/benchmarks.md: Levada's rate as a multiple of Kafka's, and its CPU as a part of Kafka's, by row.

Written by hand so that drawing needs no library. Bars are on a logarithmic scale around 1 x, which is Kafka: twice as
fast and half as costly look equally good. The colours follow the reader's light or dark page.
"""

from html import escape
from math import log2
from typing import Any

from bench import results

WIDTH, ROW_HEIGHT, TOP, BOTTOM = 890, 34, 64, 44
LABEL_WIDTH = 410
OCTAVES_LEFT, OCTAVES_RIGHT = 5, 5  # 1/32 x to 32 x
STYLE = """
text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 }
.dim { fill: #59636e; font-size: 12px }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.one { stroke: #59636e; stroke-width: 1.5 }
.rate { fill: #0a7d6c }
.cost { fill: #c77700 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .dim { fill: #9198a1 }
  .grid { stroke: #3d444d }
  .one { stroke: #9198a1 }
  .rate { fill: #3fb8a3 }
  .cost { fill: #e3a341 }
}
"""


def svg(found: dict[str, Any]) -> str:
    """The whole picture. Rows without both brokers are left out."""
    bars = [bar for bar in map(_ratios, _entries(found)) if bar is not None]
    height = TOP + ROW_HEIGHT * len(bars) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-label="Levada compared with Apache Kafka">',
        f"<style>{STYLE}</style>",
        '<text class="title" x="12" y="24">Levada compared with Apache Kafka (= 1 x)</text>',
        _legend(),
        *(_grid_line(octave, height) for octave in range(-OCTAVES_LEFT, OCTAVES_RIGHT + 1)),
    ]
    for index, (title, rate, cost) in enumerate(bars):
        parts += _row(TOP + ROW_HEIGHT * index, title, rate, cost)
    when = f"{found['when']}, Apache Kafka {found['kafka']}, {found['machine']['cores']} cores, one run, medians"
    parts.append(f'<text class="dim" x="12" y="{height - 8}">{escape(when)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _entries(found: dict[str, Any]) -> list[dict[str, Any]]:
    process = found["process"]
    more = [
        {"title": "start to first response (time)", "metric": "", "cost": "start_s", **process},
        {"title": "anonymous memory, loaded", "metric": "", "cost": "rss_anon_loaded_mb", **process},
    ]
    return [*found["rows"].values(), *more]


def _ratios(row: dict[str, Any]) -> tuple[str, float | None, float | None] | None:
    """Title, how much more is better, how much less is better."""
    if row["metric"].endswith("_ms"):
        title = f"{row['title']}: p99" if row["metric"] == "p99_ms" else row["title"]
        rate, cost = None, results.ratio(row, row["metric"])
    else:
        title, rate, cost = row["title"], results.ratio(row, row["metric"]), results.ratio(row, row["cost"])
    return None if rate is None and cost is None else (title, rate, cost)


def _x(ratio: float) -> float:
    octaves = max(-OCTAVES_LEFT, min(OCTAVES_RIGHT, log2(ratio)))
    return LABEL_WIDTH + (octaves + OCTAVES_LEFT) * (WIDTH - LABEL_WIDTH - 30) / (OCTAVES_LEFT + OCTAVES_RIGHT)


def _row(y: int, title: str, rate: float | None, cost: float | None) -> list[str]:
    both = rate is not None and cost is not None
    parts = [f'<text x="12" y="{y + 20}">{escape(title)}</text>']
    for row, (kind, ratio) in enumerate((("rate", rate), ("cost", cost))):
        if ratio:
            top = y + 4 + (13 * row if both else 7)
            parts.append(_bar(kind, ratio, top))
    return parts


def _bar(kind: str, ratio: float, top: int) -> str:
    left, right = sorted((_x(1), _x(ratio)))
    shape = f'<rect class="{kind}" x="{left:.1f}" y="{top}" width="{max(1.0, right - left):.1f}" height="11" rx="2"/>'
    at, anchor = (right + 4, "start") if ratio >= 1 else (left - 4, "end")
    text = f"{ratio:.1f} x" if ratio >= 1 else f"{ratio:.2f} x"
    return f'{shape}<text class="dim" x="{at:.1f}" y="{top + 10}" text-anchor="{anchor}">{text}</text>'


def _grid_line(octave: int, height: int) -> str:
    x = _x(2.0**octave)
    label = f"{2**octave} x" if octave >= 0 else f"1/{2**-octave}"
    kind = "grid" if octave else "one"
    line = f'<line class="{kind}" x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{height - BOTTOM}"/>'
    return f'{line}<text class="dim" x="{x:.1f}" y="{height - BOTTOM + 16}" text-anchor="middle">{label}</text>'


def _legend() -> str:
    return (
        '<rect class="rate" x="12" y="36" width="11" height="11" rx="2"/>'
        '<text class="dim" x="28" y="46">rate: longer to the right is better</text>'
        '<rect class="cost" x="262" y="36" width="11" height="11" rx="2"/>'
        '<text class="dim" x="278" y="46">broker CPU, latency, start, memory: longer to the left is better</text>'
    )
