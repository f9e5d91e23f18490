"""Draw sheets of text and bars, and panels of lines, without a screen. No other file imports matplotlib."""

import io

import matplotlib

matplotlib.use("Agg")
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator, NullLocator

from bench.records.results import replace_file

matplotlib.rcdefaults()  # not the matplotlibrc of whoever draws
plt.rcParams |= {"text.parse_math": False, "font.size": 8, "svg.hashsalt": "same ids in each file"}

# Okabe and Ito's palette, and two of Tol's: told apart by every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F", "#882255", "#999933")
PUBLISHED = COLOURS[1]
GREY = "#555555"
MARKERS = "osD^vPX"
LOG_FROM = 20  # largest value over smallest: above this, the axis of a panel is logarithmic
DPI = 200
# Inches. GitHub shows a picture 860 pixels wide.
MARGIN = 0.25  # around a picture
ROW = 0.2  # from one bar to the next
PANEL = (7.2, 2.9)  # of lines
LETTER, BOLD = 0.56, 0.68  # mean width of a letter in units of the size of the text


class Sheet:
    """A figure of text and bars. Coordinates are inches from the upper left corner, sizes of text are points."""

    def __init__(self, width):
        self.figure = plt.figure(figsize=(width, width))
        self.axes = self.figure.add_axes((0, 0, 1, 1), xlim=(0, width))
        self.axes.axis("off")

    def write(self, words, x, y, width, size, weight="normal", **options):
        """Write a line of text, smaller if it has too many letters for this width."""
        letter = BOLD if weight == "bold" else LETTER
        size = min(size, 72 * width / (letter * max(1, len(words))))
        self.axes.text(x, y, words, fontsize=size, weight=weight, va="center_baseline", **options)

    def bars(self, rows, colours, y, left, right):
        """Draw a bar for each row, from this y downward, which begins at zero; published ones are hollow."""
        scale = (right - left) / max(max(row["value"], row["high"] if row["high"] > 0 else 0) for row in rows)
        for row, colour in zip(rows, colours, strict=True):
            face = "white" if row["published"] else colour
            length = max(scale * row["value"], 0.015)
            self.axes.barh(y, length, 0.12, left=left, color=face, edgecolor=colour, linewidth=0.9)
            if row["low"] > 0:
                ends = left + scale * row["low"], left + scale * row["high"]
                self.axes.plot(ends, [y, y], color="#222222", linewidth=1.1)
            y += ROW

    def end(self, height):
        """Set the height of the sheet and return its figure."""
        self.figure.set_figheight(height)
        self.axes.set_ylim(height, 0)
        return self.figure


def save(figure, path):
    """Write a figure to a PNG or SVG file, as the path says, and return the path."""
    picture = io.BytesIO()
    metadata = {"Date": None} if path.suffix == ".svg" else None  # equal results, equal files
    options = {"bbox_inches": "tight", "pad_inches": MARGIN, "metadata": metadata}
    figure.savefig(picture, format=path.suffix[1:], dpi=DPI, **options)
    replace_file(path, picture.getvalue())
    plt.close(figure)
    return path


def lines(curves, y_name, title, x_name, is_log2=False):
    """Draw curves, at most one of each colour, in one panel; return the figure, None without curves.

    Published curves are thin and hollow. If is_log2, the x axis has powers of two.

    Args:
        curves: (name, frame with the columns `x`, `value`, `low` and `high` (NaN: unknown), and `published`).
    """
    if not curves:
        return None
    figure, panel = plt.subplots(figsize=PANEL)
    for i, (name, frame) in enumerate(curves):
        is_published = frame["published"].any()
        below = (frame["value"] - frame["low"]).clip(lower=0).fillna(0)
        above = (frame["high"] - frame["value"]).clip(lower=0).fillna(0)
        panel.errorbar(
            frame["x"],
            frame["value"],
            yerr=[below, above],
            label=name,
            color=COLOURS[i],
            marker=MARKERS[i % len(MARKERS)],
            markersize=5,
            markerfacecolor="white" if is_published else None,
            linewidth=1 if is_published else 1.8,
            elinewidth=1,
            capsize=2,
        )
    drawn = pd.concat([frame for _, frame in curves])
    values = [value for name in ("value", "low", "high") for value in drawn[name] if value > 0]
    if max(values) > LOG_FROM * min(values):
        panel.set_yscale("log")
        write_powers(panel.yaxis, 10, (1, 2, 5) if max(values) < 100 * min(values) else (1,))
    else:
        panel.set_ylim(bottom=0)
    if is_log2:
        panel.set_xscale("log", base=2)
        write_powers(panel.xaxis, 2, (1,))
    else:
        panel.set_xticks(sorted({*drawn["x"]}))
    panel.set(xlabel=x_name, ylabel=y_name)
    panel.grid(alpha=0.3)
    panel.set_title(title, fontsize=9.5)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), fontsize=7.5, frameon=False)
    return figure


def write_powers(axis, base, parts):
    """Write plain numbers at these parts of each power of a logarithmic axis."""
    axis.set_major_locator(LogLocator(base=base, subs=parts))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,.12g}")
