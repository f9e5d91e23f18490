"""Draw sheets of text and bars, and panels of lines, without a screen. No other file imports matplotlib."""

import io

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from bench.records.results import replace_file

matplotlib.rcdefaults()  # not the matplotlibrc of whoever draws
matplotlib.rcParams |= {"text.parse_math": False, "font.size": 8}

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
PANEL, LEGEND = (7.6, 3.6), 0.165  # of lines, and each name below it
LETTER, BOLD = 0.56, 0.68  # mean width of a letter in units of the size of the text


class Sheet:
    """A figure of text and bars. Coordinates are inches from the upper left corner, sizes of text are points."""

    def __init__(self, width):
        self.figure = Figure(figsize=(width + 2 * MARGIN, 1))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.axis("off")

    def write(self, words, x, y, width, size, weight="normal", **options):
        """Write a line of text, smaller if it has too many letters for this width."""
        letter = BOLD if weight == "bold" else LETTER
        size = min(size, 72 * width / (letter * max(1, len(words))))
        self.axes.text(x, y, words, fontsize=size, weight=weight, va="center_baseline", **options)

    def bars(self, rows, colours, y, left, right):
        """Draw a bar for each row, from this y downward, which begins at zero; published ones are hollow."""
        rows = pd.DataFrame(rows)
        scale = (right - left) / rows[["value", "high"]].max(axis=None)
        faces = ["white" if hollow else colour for hollow, colour in zip(rows["published"], colours, strict=True)]
        y = y + ROW * rows.index
        lengths = (scale * rows["value"]).clip(lower=0.015)
        self.axes.barh(y, lengths, 0.12, left=left, color=faces, edgecolor=colours, linewidth=0.9)
        self.axes.hlines(y, left + scale * rows["low"], left + scale * rows["high"], color="#222222", linewidth=1.1)

    def end(self, height):
        """Set the height of the sheet and return its figure."""
        width = self.figure.get_figwidth()
        self.figure.set_figheight(height + 2 * MARGIN)
        self.axes.set(xlim=(-MARGIN, width - MARGIN), ylim=(height + MARGIN, -MARGIN))
        return self.figure


def save(figure, path):
    """Write a figure to a PNG file and return the path."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI)
    replace_file(path, picture.getvalue())
    return path


def lines(curves, y_name, title, x_name, is_log2=False):
    """Draw curves, at most one of each colour, in one panel; return the figure, None without curves.

    Published curves are thin and hollow. If is_log2, the x axis has powers of two.

    Args:
        curves: (name, frame with the columns `x`, `value`, `low` and `high` (NaN: unknown), and `published`).
    """
    if not curves:
        return None
    figure = Figure(figsize=(PANEL[0], PANEL[1] + LEGEND * len(curves)), layout="constrained")
    panel = figure.subplots()
    for i, (name, frame) in enumerate(curves):
        is_published = frame["published"].any()
        ends = frame["value"] - frame["low"], frame["high"] - frame["value"]
        panel.errorbar(
            frame["x"],
            frame["value"],
            yerr=[end.clip(lower=0).fillna(0) for end in ends],
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
    figure.legend(loc="outside lower center", fontsize=7.5, frameon=False)
    return figure


def write_powers(axis, base, parts):
    """Write plain numbers at these parts of each power of a logarithmic axis."""
    axis.set_major_locator(LogLocator(base=base, subs=parts))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,.12g}")
