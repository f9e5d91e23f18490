"""Draw sheets of text and bars, and panels of lines, without a screen. No other file imports matplotlib."""

import io
import os
import textwrap

os.environ["MPLBACKEND"] = "agg"  # in a notebook it names a module that only the notebook has
import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullLocator

from bench.records.columns import format_number
from bench.records.results import replace_file

matplotlib.rcdefaults()  # not the matplotlibrc of whoever draws
matplotlib.rcParams |= {"text.parse_math": False, "font.size": 8, "lines.markersize": 5, "errorbar.capsize": 2}

# Okabe and Ito's palette, and two of Tol's: told apart by every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F", "#882255", "#999933")
OWN = {"bfloat16": COLOURS[5], "float16": COLOURS[2]}  # by precision; others have COLOURS[0]
PUBLISHED = COLOURS[1]
GREY = "#555555"
MARKERS, DASHES = "osD^vPX", ("-", "--", ":")
DPI = 200
# Inches. GitHub shows a picture 860 pixels wide.
MARGIN = 0.25  # around a picture
NAME, BAR, BAR_END, VALUE, NOTE, WIDE = 1.37, 3.05, 4.33, 5.58, 5.68, 7.3  # on a sheet, from the left
ROW = 0.2  # from one bar to the next
PANEL = 7.6, 3.6  # a diagram of lines
LEGEND = 0.15  # each name below it
LABEL, TEXT = 66, 155  # letters in one of the legend's two columns, and below it
LETTER, BOLD = 0.56, 0.68  # mean width of a letter in units of the size of the text
LEAST_SIZE = 5.5  # points of text
ABOUT = 27  # letters


class Sheet:
    """A figure of text and bars. Coordinates are inches from the left and from `top`, sizes of text are points."""

    def __init__(self):
        self.figure = Figure()
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.axis("off")
        self.top = 0.0  # where the next thing is drawn

    def write(self, words, x, y, width, size, weight="normal", **options):
        """Write text, smaller if it has too many letters for this width, in two lines if it is too small then."""
        letters = 72 * width / (BOLD if weight == "bold" else LETTER)  # that fit at one point
        lines = textwrap.wrap(words, int(letters / LEAST_SIZE), max_lines=2, placeholder=" ...")
        size = LEAST_SIZE if len(lines) > 1 else min(size, letters / max(1, len(words)))
        self.axes.text(x, self.top + y, "\n".join(lines), fontsize=size, weight=weight, va="center_baseline", **options)

    def block(self, title, about, rows, describe):
        """Draw a bar for each row of a work, which begins at zero, on a scale of their own; published ones are hollow.

        Args:
            describe: (row) -> (its name, what is next to its value, what is at the right edge).
        """
        self.axes.plot([0, WIDE], [self.top, self.top], color="#D5DBE2", linewidth=0.7)
        self.top += 0.14
        self.write(title, 0, 0, NAME - 0.1, 9.5, "bold")
        about = textwrap.wrap(about, ABOUT)
        for i, words in enumerate(about):
            self.write(words, 0, 0.19 + 0.16 * i, NAME - 0.1, 8, color=GREY)
        scale = (BAR_END - BAR) / max(max(row["value"], row["high"] if row["high"] > 0 else 0) for row in rows)
        for i, row in enumerate(rows):
            name, note, share = describe(row)
            own = OWN.get(row["precision"].removeprefix("mixed_"), COLOURS[0])
            face, edge, ink, weight = own if row["undisturbed"] else "white", own, "black", "bold"
            if row["published"]:
                face, edge, ink, weight = "white", PUBLISHED, PUBLISHED, "normal"
            y, length = self.top + i * ROW, max(scale * row["value"], 0.015)
            how = {"color": face, "edgecolor": edge, "hatch": None if row["undisturbed"] else "//////"}
            self.axes.barh(y, length, 0.12, left=BAR, linewidth=0.9, **how)
            self.axes.plot([BAR + scale * row[end] for end in ("low", "high")], [y, y], color="#222222", linewidth=1.1)
            value = f"{format_number(row['value'])} {row['per']}"
            self.write(name, NAME, i * ROW, BAR - NAME - 0.08, 8.5, color=ink)
            self.write(value, VALUE, i * ROW, VALUE - BAR_END, 8.5, weight, ha="right")
            self.write(note, NOTE, i * ROW, WIDE - NOTE - (0.4 if share else 0), 7.4, color=GREY)
            self.write(share, WIDE, i * ROW, 0.4, 8.2, ha="right")
        self.top += max(len(rows), 1 + len(about)) * ROW - 0.01

    def end(self):
        """Return the figure of the height that was drawn."""
        self.figure.set_size_inches(WIDE + 2 * MARGIN, self.top + 2 * MARGIN)
        self.axes.set(xlim=(-MARGIN, WIDE + MARGIN), ylim=(self.top + MARGIN, -MARGIN))
        return self.figure


def save(figure, path):
    """Write a figure to a PNG file and return the path."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI)
    replace_file(path, picture.getvalue())
    return path


def draw_curves(panels, title, x_name, left_out, is_sweep=False):
    """Draw the same curves in each panel, side by side; return the figure, None without own curves.

    Published curves are thin and hollow. The names of `left_out` are below the legend. In a sweep of sizes the x axis
    has powers of two, and a ring is around the highest point of each curve.

    Args:
        panels: {name of the y axis: [(name, frame with `x`, `value`, `low` and `high` (NaN: unknown), `published`)]}.
    """
    curves = next(iter(panels.values()))
    if all(frame["published"].all() for _, frame in curves):
        return None
    names = [textwrap.fill(name, LABEL, subsequent_indent="  ") for name, _ in curves]
    half = (len(names) + 1) // 2
    rows = max("\n".join(column).count("\n") + 1 for column in (names[:half], names[half:]))  # lines of the legend
    missing = f"not shown: {'; '.join(left_out)}; see index.html" if left_out else ""
    missing = textwrap.wrap(missing, TEXT, max_lines=6, placeholder=" ... and more, see index.html")
    height = PANEL[1] + LEGEND * (rows + len(missing)) + 0.1
    top = 1 - PANEL[1] / height
    figure = Figure((PANEL[0], height), layout=ConstrainedLayoutEngine(rect=(0, top, 1, 1 - top)))
    figure.suptitle(title, fontsize=9.5)
    figure.text(0.01, 0.05 / height, "\n".join(missing), fontsize=6.5, color=GREY, va="bottom", linespacing=1.4)
    for panel, (y_name, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for i, (_, frame) in enumerate(curves):
            ends = frame["value"] - frame["low"], frame["high"] - frame["value"]
            style = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i // len(COLOURS) % len(DASHES)]}
            style |= {"marker": MARKERS[i % len(MARKERS)], "label": names[i]}
            if frame["published"].any():
                style |= {"linewidth": 1, "markerfacecolor": "white"}
            panel.errorbar(frame["x"], frame["value"], [end.clip(lower=0).fillna(0) for end in ends], **style)
            if is_sweep:
                best = frame.loc[frame["value"].idxmax()]
                panel.plot(best["x"], best["value"], "o", markersize=10, markerfacecolor="none", color=style["color"])
        panel.set_yscale("log")
        write_powers(panel.yaxis, 10, (1, 2, 5))
        if is_sweep:
            panel.set_xscale("log", base=2)
            write_powers(panel.xaxis, 2, (1,))
        else:
            panel.set_xticks(sorted({x for _, frame in curves for x in frame["x"]}))
        panel.set(xlabel=x_name, ylabel=y_name)
        panel.grid(alpha=0.3)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, top)}
    figure.legend(*panel.get_legend_handles_labels(), **place, fontsize=7, frameon=False, ncols=2)
    return figure


def write_powers(axis, base, parts):
    """Write plain numbers at these parts of each power of a logarithmic axis."""
    axis.set_major_locator(LogLocator(base=base, subs=parts))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,.12g}")
