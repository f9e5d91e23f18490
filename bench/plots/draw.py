"""Draw bars and lines with matplotlib, without a screen. No other file imports matplotlib."""

import io
import textwrap
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from bench.records.results import replace_file

plt.rcParams |= {"text.parse_math": False, "font.size": 8, "svg.hashsalt": "same ids in each file"}

# Okabe and Ito's palette: told apart by every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
# Of a bar, by whether it is published: what the legend says, colour of the edge, colour of the face.
WHOSE = {
    False: ("measured by this program, with its interval", COLOURS[0], COLOURS[0]),
    True: ("published elsewhere", COLOURS[1], "white"),
}
MARKERS = "osD^vPX"  # seven, so that 56 lines differ in colour or marker
DASHES = ("-", "--", "-.", ":")
GREY = "#555555"
SMALLEST = 6  # points, of a text that has to fit
DPI = 200  # also while text is fitted, because its width is not quite proportional
ROOM = 0.05  # of an axis, free beyond the values
LOG_FROM = 20  # largest value over smallest: above this, the axis is logarithmic
# Inches. GitHub shows a picture 860 pixels wide: at most 7 inches, so that small text stays legible.
BAR = 0.3  # from one bar to the next, with a note under its name
GAP = 0.5  # between panels of bars, for a title and the numbers of an axis
NAMES = 2.6  # to the left of a panel of bars
BARS_WIDE = 3.3
NUMBERS = 0.75  # to the right
WIDE = NAMES + BARS_WIDE + NUMBERS
LINES_WIDE = 6.2  # a panel of lines
LINES_HIGH = 2.5
AXIS_NAME = 0.5  # below the lowest panel
LEGEND = 100  # letters of a line's name before it is wrapped; of half of them, two are side by side
FILLED = {"left": 0, "right": 1, "bottom": 0, "top": 1}  # names and legends are outside of the figure, see save()


class Curve(NamedTuple):
    """One line. `frame` has the columns `x`, `value`, `low` and `high` (NaN: unknown)."""

    name: str
    frame: pd.DataFrame
    is_published: bool = False


def save(figure, path, **options):
    """Write a figure to a PNG or SVG file, as the path says, and return the path."""
    picture = io.BytesIO()
    metadata = {"Date": None} if path.suffix == ".svg" else None  # equal results, equal files
    figure.savefig(picture, format=path.suffix[1:], dpi=DPI, metadata=metadata, **options)
    replace_file(path, picture.getvalue())
    plt.close(figure)
    return path


def bars(panels):
    """Draw a panel of horizontal bars for each (title, frame), one above the other; return the figure.

    Each panel has its own scale. Bars begin at zero; on a logarithmic axis they are points.

    Args:
        panels: a frame has a row for each bar, and its index is the position, from 0 at the top: `value`, `low`,
            `high` (NaN: unknown), `name` on the left, `note` below it, `text` on the right, whether it
            is `published`.
    """
    inches = [BAR * len(frame) for _, frame in panels]
    height = sum(inches) + GAP * (len(inches) - 1)
    grid = FILLED | {"height_ratios": inches, "hspace": GAP * len(inches) / sum(inches)}
    options = {"figsize": (BARS_WIDE, height), "dpi": DPI, "squeeze": False, "gridspec_kw": grid}
    figure, axes = plt.subplots(len(panels), **options)
    for panel, high, (title, frame) in zip(axes[:, 0], inches, panels, strict=True):
        is_log = set_scale(panel, "x", frame[["value", "low", "high"]])
        panel.tick_params(axis="x", labelsize=SMALLEST)
        write(panel, title, -NAMES / BARS_WIDE, 1 + 0.12 / high, WIDE, 9.5, transform=panel.transAxes)
        panel.set_yticks(frame.index, [])
        panel.tick_params(axis="y", length=0)
        panel.set_ylim(frame.index[-1] + 0.5, -0.5)
        panel.grid(alpha=0.3)
        panel.set_axisbelow(True)
        for is_published, part in frame.groupby("published"):
            value = part["value"]
            ends = distances(value, part["low"], part["high"])
            _, colour, face = WHOSE[is_published]
            if is_log:  # points, because the axis has no zero to start from
                options = {"fmt": "o", "markersize": 5, "markerfacecolor": face, "elinewidth": 2}
                panel.errorbar(value, part.index, xerr=ends, color=colour, **options)
            else:
                panel.barh(part.index, value, 0.12 / BAR, xerr=ends, color=face, edgecolor=colour, ecolor="#444444")
        beside = {"transform": panel.get_yaxis_transform()}
        for y, name, note, text in zip(frame.index, frame["name"], frame["note"], frame["text"], strict=True):
            write(panel, name, -0.02, y - 0.2, NAMES - 0.07, 8, ha="right", **beside)
            write(panel, note, -0.02, y + 0.22, NAMES - 0.07, 6.8, ha="right", color=GREY, **beside)
            write(panel, text, 1.02, y, NUMBERS - 0.07, 8, **beside)
    handles = [
        Line2D([], [], linestyle="", marker="o", color=colour, markerfacecolor=face, label=label)
        for label, colour, face in WHOSE.values()
    ]
    add_legend(figure, handles, per_line=2)
    return figure


def distances(value, low, high):
    """Return the lengths of an interval below and above the value, 0 if unknown."""
    return [(value - low).clip(lower=0).fillna(0), (high - value).clip(lower=0).fillna(0)]


def lines(curves, y_name, title, x_name, is_log2=False):
    """Draw curves in one panel; return the figure, None without curves.

    Published curves are thin and hollow. If is_log2, the x axis has powers of two.
    """
    if not curves:
        return None
    figure, panel = plt.subplots(figsize=(LINES_WIDE, LINES_HIGH), gridspec_kw=FILLED)
    for i, curve in enumerate(curves):
        x, value, low, high = (curve.frame[name] for name in ("x", "value", "low", "high"))
        panel.errorbar(x, value, yerr=distances(value, low, high), elinewidth=1, capsize=2, **style(i, curve))
    drawn = pd.concat([curve.frame for curve in curves])
    set_scale(panel, "y", drawn[["value", "low", "high"]])
    if is_log2:
        panel.set_xscale("log", base=2)
        write_powers(panel.xaxis, 2, (1,))
    else:
        panel.set_xticks(sorted({*drawn["x"]}))
    panel.set_xlabel(x_name)
    panel.set_ylabel(y_name)
    panel.grid(alpha=0.3)
    figure.suptitle(title, fontsize=9.5, y=1 + 0.1 / LINES_HIGH, va="bottom")
    is_short = all(len(curve.name) < LEGEND / 2 for curve in curves)
    add_legend(figure, [Line2D([], [], **style(i, curve)) for i, curve in enumerate(curves)], per_line=1 + is_short)
    return figure


def style(i, curve):
    """Return the colours, marker and dashes of the i-th line."""
    return {
        "label": textwrap.fill(curve.name, LEGEND),
        "color": COLOURS[i % len(COLOURS)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": DASHES[i // len(COLOURS) % len(DASHES)],
        "markersize": 5,
        "markerfacecolor": "white" if curve.is_published else None,
        "linewidth": 1 if curve.is_published else 1.8,
    }


def set_scale(axes, along, values):
    """Make an axis ("x" or "y") logarithmic if values span much, else start it at zero; return whether it is log."""
    values = values.where(values > 0)
    lowest = values.min(axis=None)
    highest = values.max(axis=None)
    if not highest > LOG_FROM * lowest:
        axes.set(**{f"{along}lim": (0, (1 + ROOM) * highest)})
        return False
    end = highest * (highest / lowest) ** ROOM
    axes.set(**{f"{along}scale": "log", f"{along}lim": (lowest / 1.3, end)})
    write_powers(getattr(axes, f"{along}axis"), 10, (1, 2, 5) if highest < 100 * lowest else (1,))
    return True


def write_powers(axis, base, parts):
    """Write plain numbers at these parts of each power of a logarithmic axis."""
    axis.set_major_locator(LogLocator(base=base, subs=parts))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,.12g}")


def add_legend(figure, handles, per_line):
    """Add the legend below the figure's lower edge and the name of the axis there."""
    below = -AXIS_NAME / figure.get_figheight()
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, below), "ncols": per_line}
    figure.legend(handles=handles, fontsize=7.5, frameon=False, **place)


def sheet(width):
    """Return a figure and its empty axes, whose coordinates are inches from the upper left corner."""
    figure = plt.figure(figsize=(width, width), dpi=DPI)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(width, 0))
    axes.axis("off")
    return figure, axes


def write(axes, words, x, y, width, size, **options):
    """Write a line of text on a sheet, smaller if it is wider than `width`; below six points it is cut."""
    text = axes.text(x, y, words, fontsize=size, va="center_baseline", **options)
    room = DPI * width
    while words and (length := text.get_window_extent().width) > room:
        if size > SMALLEST:
            size = max(SMALLEST, min(size - 0.1, size * room / length))
            text.set_fontsize(size)
        else:
            words = words[:-1]
            text.set_text(f"{words.rstrip()}\u2026")
