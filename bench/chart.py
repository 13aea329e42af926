"""Draws the rows of the README as ratios to Kafka: for each of them, a longer bar is better for Levada.

Latencies, times and memory are inverted, Kafka : Levada, and their names say so. The axis begins at zero and is linear.
A bar beyond its end is cut, which is marked: otherwise the longest one would hide what the others differ in.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bench import results
from bench.rows import LABELS

TITLE = "Levada compared with Apache Kafka: longer is better for Levada"
UNIT = "times as good as Kafka (Levada : Kafka; inverted rows Kafka : Levada)"
RATIO_MAX = 10  # the end of the axis
WIDTH_IN, HEIGHT_IN, ROW_IN = 9.6, 1.3, 0.3
Ratios = dict[str, float | None]


def svg(found: dict[str, Any], keys: Sequence[str], process: Mapping[str, str]) -> str:
    """The picture of these rows, and of these figures of the process by their titles."""
    rows = ratios(found, keys, process)
    missing = [name for name, ratio in rows.items() if ratio is None]
    about = f"{found['when']}, Apache Kafka {found['kafka']}, {found['machine']['cores']} cores, one run, medians"
    note = f"{about}; not measured: {', '.join(missing)}" if missing else about
    return _draw({name: ratio for name, ratio in rows.items() if ratio is not None}, note)


def ratios(found: dict[str, Any], keys: Sequence[str], process: Mapping[str, str]) -> Ratios:
    """How many times as good as Kafka's each row is, None where it was not measured for both."""
    rows = [found["rows"].get(key, {"title": key, "metric": "mb_per_s"}) for key in keys]
    named = [(row["title"], row["metric"], row) for row in rows]
    named += [(title, metric, found["process"]) for metric, title in process.items()]
    shown: Ratios = {}
    for title, metric, row in named:
        ratio = results.ratio(row, metric)
        if metric.endswith("_per_s"):
            shown[title] = ratio
        else:
            figure = f"{LABELS[metric]}, " if metric.endswith("_ms") else ""
            shown[f"{title} ({figure}inverted)"] = 1 / ratio if ratio else None
    return shown


def _draw(rows: dict[str, float], note: str) -> str:
    # A benchmark needs matplotlib only when it ends.
    from matplotlib.figure import Figure

    from levada.pipelines.reports.image import style, to_svg
    from levada.pipelines.reports.panels import COLOURS

    with style():
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN + ROW_IN * len(rows)))
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
        figure.suptitle(TITLE, x=0.01, ha="left", fontsize=13, fontweight="bold")
        figure.supxlabel(note, x=0.01, ha="left", color="#59636e", fontsize=9)
        axes = figure.subplots()
        bars = axes.barh(range(len(rows)), [min(ratio, RATIO_MAX) for ratio in rows.values()], 0.66, color=COLOURS[0])
        for index, (bar, ratio) in enumerate(zip(bars, rows.values(), strict=True)):
            bar.set_gid(f"bar-{index}")
            if ratio > RATIO_MAX:
                cut = axes.text(RATIO_MAX * 0.97, index, "//", color="white", fontsize=15, ha="right", va="center")
                cut.set_gid(f"cut-{index}")
        labels = [f"{ratio:.2f} x" if ratio <= RATIO_MAX else f"{ratio:.1f} x, cut" for ratio in rows.values()]
        axes.bar_label(bars, labels, padding=4)
        axes.axvline(1, color=COLOURS[1], linewidth=1.6).set_gid("kafka")
        axes.text(1, 1.01, "Kafka = 1 x", transform=axes.get_xaxis_transform(), color=COLOURS[1], va="bottom")
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set(xlim=(0, RATIO_MAX * 1.12), ylim=(len(rows) - 0.4, -0.6), xlabel=UNIT)
        axes.set_xticks(range(0, RATIO_MAX + 1, 2), [f"{ratio} x" for ratio in range(0, RATIO_MAX + 1, 2)])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        return to_svg(figure, TITLE)
