"""Drawings of Figure 2 of the paper (Section 3.4) and of the training curves."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from baselines.hub.model_card import draw_curve
from baselines.measure.measures import PAPER
from baselines.reproduce.report import MeasuredRow
from builders.core.files import write_bytes

# The paper's caption says "before (light blue) and after (dark blue)". Other series are grey.
_COLOURS = {"before": "#a9cce3", "after": "#1f618d"}
_METADATA = {"png": ["Software"], "svg": ["Date", "Creator", "Format", "Type"]}  # omitted for equal bytes


def draw_figures(measured: Sequence[MeasuredRow], out: Path) -> list[Path]:
    """Draw each figure of the rows as PNG and SVG into ``out``, and return the files."""
    found: list[Path] = []
    for number in sorted({each.row.figure for each in measured if each.row.figure}):
        own = [each for each in measured if each.row.figure == number]
        for suffix in ("png", "svg"):
            path = out / f"figure{number}.{own[0].reference.split}.{suffix}"
            write_bytes(path, _drawn(own, suffix))
            found.append(path)
    return found


@contextmanager
def _image(name: str, width: float, height: float) -> Iterator[Any]:
    """Open a matplotlib figure (size in inches) that always saves the same bytes. ``name`` salts the ids in an SVG."""
    # pyplot is not used, because pyplot has global state and may need a display.
    import matplotlib
    from matplotlib.figure import Figure

    # Without a salt, the ids in an SVG are random. The font type "none" keeps text as text.
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        yield Figure(figsize=(width, height), dpi=110, layout="constrained")


def _bytes_of(figure: Any, suffix: str) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format=suffix, metadata=dict.fromkeys(_METADATA[suffix]))
    return content.getvalue()


def _drawn(measured: Sequence[MeasuredRow], suffix: str) -> bytes:
    """Draw a panel for each measure. A panel has a group of bars for each system, with a bar for each series."""
    systems = list(dict.fromkeys(each.row.title for each in measured))
    series = list(dict.fromkeys(each.row.series for each in measured))
    with _image("figure", 3.6 * len(PAPER), 3.6) as figure:
        for panel, name in zip(figure.subplots(1, len(PAPER), sharey=True), PAPER, strict=True):
            _bars(panel, measured, systems, series, name)
        figure.legend(*panel.get_legend_handles_labels(), loc="outside upper center", ncols=len(series), fontsize=8)
        return _bytes_of(figure, suffix)


def _bars(panel: Any, measured: Sequence[MeasuredRow], systems: list[str], series: list[str], name: str) -> None:
    width = 0.8 / len(series)
    for number, each_series in enumerate(series):
        own = [each for each in measured if each.row.series == each_series]
        places = [systems.index(each.row.title) + (number - (len(series) - 1) / 2) * width for each in own]
        values = [each.ours[name] for each in own]
        lows, highs = zip(*(each.intervals[name] for each in own), strict=True)
        ends = np.clip([np.subtract(values, lows), np.subtract(highs, values)], 0, None)
        look = {"color": _COLOURS.get(each_series, "#909497"), "label": each_series, "error_kw": {"elinewidth": 0.8}}
        bars = panel.bar(places, values, width, yerr=ends, **look)
        panel.bar_label(bars, fmt="%.1f", padding=1, fontsize=7)
    panel.set_title(f"{name}, %", fontsize=10)
    panel.set_xticks(range(len(systems)), [title.replace(" > ", " >\n") for title in systems], fontsize=7)
    panel.set_ylim(0, 108)
    panel.tick_params(axis="y", labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def curve(training: Mapping[str, Any]) -> str:
    """Return one training's curve as SVG."""
    with _image(training["recipe"], 3.6, 1.8) as figure:
        draw_curve(figure.subplots(), training["losses"], training["measure"], training["dev"], font_size=8)
        return svg_of(_bytes_of(figure, "svg").decode())


def svg_of(file: str) -> str:
    """Return the <svg> element of an SVG file, for use in HTML."""
    return file[file.index("<svg") :]
