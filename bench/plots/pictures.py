"""Pictures and tables of what lies in results/: rows become results/plots/*.png and results/README.md.

    make plot

Needs pandas and matplotlib, no framework and no screen. Pictures draw every machine's own rows beside the published
ones (results/published.csv), which are hollow; rows whose clock was wrong are in no picture.
"""

import functools
import gc
import logging
import math
import os
import sys
import urllib.parse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen is needed
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from bench.rows import tables
from bench.settings import SettingError, read_settings

log = logging.getLogger("bench")
plt.rcParams["text.parse_math"] = False  # a name may have a $ in it
plt.rcParams["text.hinting"] = "no_hinting"  # of no use at 130 dots an inch, and a third of the time of a letter

# Okabe and Ito's palette: told apart by every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = "osD^vP*X"
DASHES = ("-", "--", "-.", ":")
OWN, PUBLISHED = COLOURS[:2]
WIDTH = 9  # inches: about as many hundred pixels as the README's column has
LOG_FROM = 20  # times: where values span more, the axis is logarithmic
BAR = 0.19  # inches from one bar to the next
LETTER = 0.063  # inches that a letter of 8 points takes, on a generous average
MAX_BARS = 64  # in one picture
MAX_IN_PANEL = 32
MAX_PANELS = 6  # those with the most bars
MAX_LINES = 20  # in a picture of lines
MAX_LETTERS = 40  # of a machine's name
MAX_TABLE = 200  # lines of one table: GitHub shows no page over 512 KB
MAX_BESIDE = 40  # own lines beside those of a source
TRAINED_IMAGES = 50_000  # in an epoch of CIFAR-10
RATE = ("value", "low", "high")
WHO = ["published", "machine", "kind", "framework"]
SCOPES = {"device": "the model, on resident batches", "input": "the input pipeline", "end_to_end": "both together"}
SQUARE = r"^matmul(?:-\d+)?$"  # models whose size is drawn


def plot(folder):
    """Draw everything and write the tables; returns the paths that were written."""
    rows = tables.read_rows(sorted(Path(folder).glob("*.csv")), warn=log.warning)
    summary = tables.add_peak_fraction(tables.summarize(rows), rows)
    runs, drawn, shown = tables.sustained_runs(rows), [], believed(summary)
    others = {"sustained": runs, "scopes": believed(tables.summarize(of_pipelines(rows)))}
    for name, draw in PICTURES.items():
        figure = draw(others.get(name, shown))
        if figure is None:
            log.info("%s: no rows to draw", name)
            (Path(folder) / "plots" / f"{name}.png").unlink(missing_ok=True)
        else:
            drawn.append(save(figure, folder, name))
    page = Path(folder) / "README.md"
    page.write_text(write_page(summary, read_cited(rows), runs, drawn), encoding="utf-8")
    return [*drawn, page]


def believed(summary):
    return summary[~summary["flags"].str.contains("implausible")]


def of_pipelines(rows):
    """Rows of the runs that measured both together: a later run of the model alone is no part of any of them."""
    return rows[rows["run_id"].isin(rows.loc[rows["scope"] == "end_to_end", "run_id"])]


def save(figure, folder, name):
    path = Path(folder) / "plots" / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, pil_kwargs={"compress_level": 3})  # faster than zlib's default, and no larger
    plt.close(figure)
    return path


def draw_tflops(folder):
    """The picture of all sweeps in a folder, at the end of one; returns its path, None where there is nothing."""
    summary = tables.summarize(tables.read_rows(sorted(Path(folder).glob("*.csv")), warn=log.warning))
    figure = picture_of_sizes(believed(summary))
    return save(figure, folder, "tflops") if figure else None


# Data behind the pictures: each function gives a frame, which the tests look at.


def resident(summary):
    """Rates of resident batches, of pictures and sequences of the usual size."""
    usual = summary["image_size"].isin(["", "224"]) | (summary["workload"] != "image")
    usual &= summary["sequence_length"].isin(["", "128"])
    return summary[usual & (summary["scope"] == "device") & summary["value"].notna()]


def best(found, *apart):
    """The highest line of each machine, kind of device, framework and whatever else is to be told apart, falling."""
    found = found.sort_values("value", ascending=False)
    return found.drop_duplicates([*WHO, *apart])


def fastest(summary, *, workload, model, phase):
    """The fastest line of each machine, kind of device and framework, on resident batches."""
    work = (summary["workload"] == workload) & (summary["model"] == model) & (summary["phase"] == phase)
    return best(resident(summary[work]))


def depths(summary):
    """Seconds an epoch against depth for mlp-<depth>x1024 in training, of WHO, the fastest of each depth."""
    found = summary[(summary["workload"] == "mlp") & (summary["phase"] == "training")].copy()
    found["depth"] = pd.to_numeric(found["model"].str.extract(r"^mlp-(\d+)x1024$")[0])
    found = found[found["depth"].notna() & (found["batch_size"] == "32") & (found["precision"] == "float32")]
    images = found["value"].fillna(found["items"] / found["seconds"])
    found = found.assign(images_per_second=images, epoch_seconds=TRAINED_IMAGES / images)
    found = found[found["images_per_second"].notna() & (found["scope"] == "device") & (found["compile"] != "1")]
    # SGD is the default that all of them ran; a rate that a source's seconds were turned into is the same figure.
    found = found[found["optimizer"].isin(["", "sgd"])]
    found = found.sort_values(["data", "images_per_second"], ascending=[True, False])  # CIFAR-10, else synthetic
    return found.drop_duplicates([*WHO, "depth"]).sort_values("depth")


def sizes(summary):
    """TFLOP/s against the size of products, `side` being the cube root of M N K where they are not square."""
    found = summary[summary["model"].str.match(SQUARE) & summary["value"].notna()].copy()
    sides = found["matrix_size"].str.extract(r"^(\d+)x(\d+)x(\d+)$").astype(float)
    found = found.assign(side=sides.prod(axis=1, skipna=False) ** (1 / 3))
    found = found[found["side"].notna()].sort_values("value", ascending=False)  # of several setups the fastest
    return found.drop_duplicates([*WHO, "precision", "model", "matrix_size"]).sort_values("side")


def matrix_peaks(summary):
    """The best product of each machine, kind, framework and precision: own peaks, and whatever others published."""
    products = summary["model"].eq("matmul-peak") | (summary["published"] & (summary["workload"] == "matmul"))
    found = best(summary[products & summary["value"].notna()], "precision")
    how = found["memory_format"].where(found["memory_format"] == "", "as a 1x1 convolution")
    return found.assign(memory_format=how, batch_size="")


def bandwidths(summary):
    """GB/s of each machine, kind, framework and operator."""
    return best(summary[(summary["workload"] == "bandwidth") & summary["value"].notna()], "model")


def speed_ups(found):
    """GPU over CPU of the same machine and work: `speed_up` with its `low` and `high`.

    A published figure's machine is its source and the name of the chip before the parenthesis, and its speed-up is that
    of the seconds, where it has no rate.
    """
    found = found[(found["scope"] == "device") & ~found["workload"].isin(tables.SINGLE)]
    chip = found["source"] + found["device_name"].where(found["published"], "").str.replace(r" \(.*", "", regex=True)
    found = found.assign(place=chip.where(found["published"], found["machine"]), is_rate=found["value"].notna())
    work = ["place", "is_rate", *(column for column in tables.WORK if column != "kind")]
    both = found[found["kind"] == "gpu"].merge(found[found["kind"] == "cpu"], on=work, suffixes=("", "_cpu"))
    ratio = both["value"] / both["value_cpu"]
    for seconds in ("seconds", "step_seconds_median"):
        ratio = ratio.fillna(both[f"{seconds}_cpu"] / both[seconds])
    low, high = both["low"] / both["high_cpu"], both["high"] / both["low_cpu"]
    batch = pd.to_numeric(both["batch_size"], errors="coerce")
    both = both.assign(speed_up=ratio, low=low, high=high, batch=batch)
    # Of several setups equal ones, else the fastest.
    both["is_equal"] = (both["num_threads"] == both["num_threads_cpu"]) & (both["setup"] == both["setup_cpu"])
    both = both[ratio.notna()].sort_values(["is_equal", "value_cpu"], na_position="first", kind="stable")
    both = both.drop_duplicates([column for column in work if column != "is_rate"], keep="last")
    order = ["published", "model", "phase", "batch", "speed_up"]
    return both.sort_values(order, ascending=[True] * 4 + [False], ignore_index=True)


def per_joule(summary):
    """Items per joule where power is known, the best of each machine, framework, model and phase."""
    found = resident(summary)
    found = found[found["power_watts"].notna() & ~found["workload"].isin(tables.SINGLE)]
    rates = {column: found[column] / found["power_watts"] for column in ("value", "low", "high")}
    return best(found.assign(**rates), "model", "phase")


def scopes(summary):
    """Lines where one run measured all three scopes: `value_device`, `low_device`, `high_device`, and so on of each.

    `bottleneck` is what limited it as found then.
    """
    work = ["machine", "run_id", *(column for column in tables.WORK if column not in ("scope", "data"))]
    found = summary[(summary["workload"] == "image") & summary["value"].notna() & ~summary["published"]]

    def one(scope):
        lines = found[found["scope"] == scope].drop_duplicates(work, keep="last")
        return lines.rename(columns={column: f"{column}_{scope}" for column in RATE})

    wide = one("end_to_end")
    for scope in ("device", "input"):
        wide = wide.merge(one(scope)[[*work, *(f"{column}_{scope}" for column in RATE)]], on=work)
    return wide.sort_values("value_end_to_end", ascending=False)


# Pictures


def bars(panels, unit):
    """Horizontal bars of `value`, `low` and `high`, a panel for each (title, frame); None where all are empty."""
    panels = [(title, frame) for title, frame in panels if len(frame)]
    if not panels:
        return None
    more = f" ({len(panels) - MAX_PANELS} more panels' worth in the tables)" if len(panels) > MAX_PANELS else ""
    panels = choose_panels(panels)
    kept = share_out([frame for _, frame in panels])
    panels = [(title, found, frame.iloc[::-1]) for (title, found), frame in zip(panels, kept, strict=True)]
    shown = pd.concat([frame for *_, frame in panels])
    settings = [say_settings(frame) for *_, frame in panels]
    names = [[name(row) for row in frame.to_dict("records")] for *_, frame in panels]
    figure, all_axes = lay_out([len(frame) for *_, frame in panels], names, [each for _, each in settings])
    is_log = set_scale(all_axes[0], shown)
    for (title, found, frame), (common, particular), axes, left in zip(panels, settings, all_axes, names, strict=True):
        left_out = f" ({len(frame)} of {len(found)})" if len(found) > len(frame) else ""
        axes.set_title(", ".join([title, *common]) + left_out, fontsize=9.5, loc="left", pad=4)
        places = pd.Series(range(len(frame)), index=frame.index)
        for is_published, part in frame.groupby("published"):
            mark(axes, part, places[part.index], PUBLISHED if is_published else OWN, is_log, is_hollow=is_published)
        write_beside(axes, frame, left, particular)
        axes.tick_params(labelbottom=axes is all_axes[-1])
    all_axes[-1].set_xlabel(unit + more, fontsize=8.5)
    add_key(figure, shown["published"])
    return figure


def choose_panels(panels):
    """MAX_PANELS of these (title, frame): those with own rows first, then the fullest; their order stays."""
    rank = [(frame["published"].all(), -len(frame), i) for i, (_, frame) in enumerate(panels)]
    return [panels[i] for i in sorted(i for *_, i in sorted(rank)[:MAX_PANELS])]


def share_out(frames):
    """These frames with at most MAX_BARS lines in all, and none longer than it must be for the others' sake."""
    most = max(n for n in range(MAX_IN_PANEL + 1) if sum(min(n, len(frame)) for frame in frames) <= MAX_BARS)
    return [tables.thin(frame, most) for frame in frames]


def lay_out(counts, left, right):
    """A figure with an axes for so many bars each, one above the other, and margins for the words beside them.

    Margins are reckoned from the number of letters: measuring the words would take as long again as drawing them.
    """
    margins = [max(len(word) for words in side for word in words) * LETTER + 0.1 for side in (left, right)]
    height, width = BAR * sum(counts) + 0.36 * len(counts) + 0.75, max(WIDTH, sum(margins) + 2.5)
    figure, all_axes, top = plt.figure(figsize=(width, height), dpi=130), [], height
    for count in counts:
        top -= 0.36 + BAR * count
        place = (margins[0], top + 0.03, width - sum(margins), BAR * count)
        shape = (place[0] / width, place[1] / height, place[2] / width, place[3] / height)
        all_axes.append(figure.add_axes(shape, sharex=all_axes[0] if all_axes else None))
    return figure, all_axes


def set_scale(axes, found):
    """A logarithmic axis where values span much, else one from zero, with room for figures; returns which."""
    ends = found[list(RATE)].where(found[list(RATE)] > 0)
    lowest, highest = ends.min(axis=None), ends.max(axis=None)
    if highest <= LOG_FROM * lowest:
        axes.set_xlim(0, 1.15 * highest)
        return False
    axes.set_xscale("log")
    axes.set_xlim(lowest / 1.3, highest * (highest / lowest) ** 0.16)
    by_powers(axes.xaxis, between=(1,))
    return True


def mark(axes, frame, places, colour, is_log, is_hollow=False, height=0.7):
    """Bars from zero with their intervals; points on a logarithmic axis, which has no zero for a bar to start from."""
    errors = [(frame["value"] - frame["low"]).clip(lower=0), (frame["high"] - frame["value"]).clip(lower=0)]
    errors = [each.fillna(0) for each in errors]
    face = "white" if is_hollow else colour
    if is_log:
        look = {"fmt": "o", "markersize": 5, "markerfacecolor": face, "elinewidth": 2}
        axes.errorbar(frame["value"], places, xerr=errors, color=colour, **look)
    else:
        axes.barh(places, frame["value"], height, xerr=errors, color=face, edgecolor=colour, ecolor="#444444")


def write_beside(axes, frame, left, right):
    """Names on the left of a panel, figures at the marks, particular settings on the right."""
    across = {"transform": axes.get_yaxis_transform(), "va": "center"}
    ends = frame[["value", "high"]].max(axis=1)
    for place, (who, how, end, value) in enumerate(zip(left, right, ends, frame["value"], strict=True)):
        write_number(axes, tables.figure(value), end, place)
        axes.text(-0.01, place, who, fontsize=8, ha="right", **across)
        axes.text(1.01, place, how, fontsize=8, **across)
    axes.set_yticks([])
    axes.hlines(range(len(frame)), 0, 1, transform=across["transform"], color="#DDDDDD", linewidth=0.6, zorder=0)
    axes.set_ylim(-0.6, len(frame) - 0.4)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def write_number(axes, text, end, place):
    """The figure of a bar, beside the end of it."""
    axes.annotate(text, (end, place), (5, 0), textcoords="offset points", va="center", fontsize=7.5)


def add_key(figure, published):
    """Which marks are whose, where not all of them are of this program."""
    looks = {
        False: {"color": OWN, "label": "measured by this program, with its interval"},
        True: {"color": PUBLISHED, "markerfacecolor": "white", "label": "published elsewhere"},
    }
    if published.any():
        keys = [Line2D([], [], linestyle="", marker="o", **looks[each]) for each in sorted(set(published))]
        figure.legend(handles=keys, fontsize=8.5, loc="lower center", ncols=2, frameon=False)


def name(row):
    """Who did it: the machine, or the device as a source names it, and the framework."""
    device = row["device_name"] if row["published"] else row["machine"]
    on_cpu = "" if row["kind"] == "gpu" or row["published"] else " (CPU)"
    device = device.lstrip("_")  # a legend leaves such names out
    device = device if len(device) <= MAX_LETTERS else f"{device[: MAX_LETTERS - 1]}\u2026"
    return f"{device}{on_cpu}, {row['framework']}"


def say_settings(frame):
    """Settings in words: a list of those that all lines have in common, and a text for each line of the rest."""
    words = {
        "phase": frame["phase"],
        "precision": frame["precision"],
        "compile": frame["compile"].map({"1": "compiled"}).fillna(""),
        "batch_size": ("batch " + frame["batch_size"]).where(frame["batch_size"] != "", ""),
        "memory_format": frame["memory_format"].replace("channels_first", ""),
        "optimizer": frame["optimizer"],
        "setup": frame["setup"],
    }
    particular = [setting for setting in words if words[setting].nunique() > 1]
    common = [words[setting].iloc[0] for setting in words if setting not in particular]
    lines = zip(*(words[setting] for setting in particular), strict=True) if particular else [()] * len(frame)
    return list(filter(None, common)), [", ".join(filter(None, line)) for line in lines]


def picture_of_images(summary):
    panels = [
        (f"{model}, 224 x 224 pixels", fastest(summary, workload="image", model=model, phase=phase))
        for model in ("resnet50", "mobilenet_v2")
        for phase in ("inference", "training")
    ]
    return bars(panels, "images/s, resident batches, the fastest settings of each")


def picture_of_transformers(summary):
    panels = [
        (model, fastest(summary, workload="transformer", model=model, phase=phase))
        for model in ("distilbert", "bert-base", "bert-large")
        for phase in ("inference", "training")
    ]
    return bars(panels, "sequences/s of 128 tokens, the fastest settings of each")


def picture_of_bandwidth(summary):
    found = bandwidths(summary)
    panels = [(model, found[found["model"] == model]) for model in ("copy", "add", "multiply-add")]
    return bars(panels, "GB/s, bytes read and written")


def picture_of_peaks(summary):
    found = matrix_peaks(summary)
    precisions = ("float32", "tf32", "float16", "bfloat16", "float64")
    return bars([("best matrix product", found[found["precision"] == each]) for each in precisions], "TFLOP/s")


def picture_of_joules(summary):
    found = per_joule(summary)
    works = sorted(set(zip(found["model"], found["phase"], strict=True)))
    panels = [(m, found[(found["model"] == m) & (found["phase"] == p)]) for m, p in works]
    return bars(panels, "images or sequences per joule, of the power that each one's meter covers")


def picture_of_speed_ups(summary):
    found = speed_ups(summary)
    found = found[found["phase"] != "optimizer"].assign(value=found["speed_up"])
    panels = [(f"{model}, GPU over CPU", found[found["model"] == model]) for model in sorted(set(found["model"]))]
    return bars(panels, "times as fast")


def lines(found, apart, value):
    """[(first row, frame)] for a picture of lines: no more than can be told apart, the highest first."""
    tops = found.loc[found.groupby(apart, sort=False)[value].idxmax()].sort_values(value, ascending=False)
    tops = tables.thin(tops, MAX_LINES)
    parts = dict(list(found.merge(tops[apart], on=apart).groupby(apart)))
    return [(top, parts[tuple(top[column] for column in apart)]) for top in tops.to_dict("records")]


def style(i, published):
    """The look of the i-th line."""
    return {
        "color": COLOURS[i % len(COLOURS)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": DASHES[i // len(COLOURS) % len(DASHES)],
        "markersize": 5,
        "markerfacecolor": "white" if published else None,
        "linewidth": 1 if published else 1.8,
    }


def line_picture(names, rows=1, columns=1, inches=2.7):
    """(figure, axes): panels so many inches high, with room for titles and for a legend of these names below."""
    below, above = 0.65 + 0.17 * -(-len(names) // columns_of(names)), 0.35 if columns == 1 else 0.6
    height = below + inches * rows + above
    margins = {"left": 0.75 / WIDTH, "right": 1 - 0.15 / WIDTH, "bottom": below / height, "top": 1 - above / height}
    figure, axes = plt.subplots(
        rows, columns, figsize=(WIDTH, height), dpi=130, squeeze=False, sharex=True, gridspec_kw=margins
    )
    return figure, axes.ravel()


def columns_of(names):
    """How many columns of a legend these names leave room for."""
    return 2 if max(map(len, names)) * LETTER < WIDTH / 2 - 0.5 else 1


def by_powers(axis, base=10, between=(1, 2, 5)):
    """Plain numbers on a logarithmic axis with its data: at these parts of each power, or at more where it is short."""
    low, high = axis.get_view_interval()
    if high < 4 * low:
        axis.set_major_locator(MaxNLocator(5))
    else:
        axis.set_major_locator(LogLocator(base=base, subs=(1, 2, 5) if base == 10 and high < 100 * low else between))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,g}")


def draw_line(axes, x, value, low, high, look):
    """A line with the interval of each point, as far as it has one."""
    errors = [(value - low).clip(lower=0).fillna(0), (high - value).clip(lower=0).fillna(0)]
    axes.errorbar(x, value, yerr=errors, elinewidth=1, capsize=2, **look)


def finish(figure, axes):
    for each in axes:
        each.grid(alpha=0.3)
        each.tick_params(labelsize=8)
    handles, names = axes[0].get_legend_handles_labels()
    handles = [handle[0] if isinstance(handle, tuple) else handle for handle in handles]  # of a line with intervals
    figure.legend(handles, names, loc="lower center", ncols=columns_of(names), fontsize=8)
    return figure


def picture_of_depths(summary):
    """The ancestor's picture: what an epoch takes against depth, a line a machine; None without rows."""
    found = depths(summary)
    if found.empty:
        return None
    drawn = lines(found, WHO, "images_per_second")
    names = [name(top) + (" (published)" if top["published"] else "") for top, _ in drawn]
    figure, (seconds, rates) = line_picture(names, columns=2)
    for i, (top, line) in enumerate(drawn):
        look = style(i, top["published"]) | {"label": names[i]}
        low, high = TRAINED_IMAGES / line["high"], TRAINED_IMAGES / line["low"]
        draw_line(seconds, line["depth"], line["epoch_seconds"], low, high, look)
        draw_line(rates, line["depth"], line["images_per_second"], line["low"], line["high"], look)
    for each, column in ((seconds, "epoch_seconds"), (rates, "images_per_second")):
        if found[column].max() > LOG_FROM * found[column].min():
            each.set_yscale("log")
            by_powers(each.yaxis)
        else:
            each.set_ylim(bottom=0)
        each.set_xlabel("hidden layers of 1024", fontsize=8.5)
        each.set_xticks(sorted(found["depth"].unique()))
    seconds.set_title("seconds an epoch of 50,000 images", fontsize=9)
    rates.set_title("images/s", fontsize=9)
    figure.suptitle("A multilayer perceptron, images of CIFAR-10's size, training, batch 32, float32", fontsize=10)
    return finish(figure, [seconds, rates])


def picture_of_sizes(summary):
    """TFLOP/s against matrix size, the best size of each line ringed and named; None without rows."""
    found = sizes(summary)
    if found.empty:
        return None
    drawn = lines(found, [*WHO, "precision"], "value")
    best_at = [" (published)" if top["published"] else f": best at M = {top['side']:.0f}" for top, _ in drawn]
    names = [f"{name(top)}, {top['precision']}{each}" for (top, _), each in zip(drawn, best_at, strict=True)]
    figure, (axes,) = line_picture(names)
    for i, (top, line) in enumerate(drawn):
        look = style(i, top["published"]) | {"label": names[i]}
        draw_line(axes, line["side"], line["value"], line["low"], line["high"], look)
        if top["published"]:
            continue  # of one size alone
        axes.plot(top["side"], top["value"], "o", markersize=11, markerfacecolor="none", color=look["color"])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    by_powers(axes.xaxis, base=2, between=(1,))
    by_powers(axes.yaxis)
    axes.set_xlabel("M of a product of M x M x M (cube root of M N K for others)", fontsize=8.5)
    axes.set_ylabel("TFLOP/s", fontsize=8.5)
    axes.set_title("Matrix products; a ring marks each one's best size", fontsize=10)
    return finish(figure, [axes])


def picture_of_scopes(summary):
    """The three throughputs of image runs side by side, the limiting one marked; None without rows."""
    found = tables.thin(scopes(summary), MAX_BARS // len(SCOPES)).iloc[::-1]
    if found.empty:
        return None
    common, particular = say_settings(found)
    names = [
        f"{name(row)}\n{row['model']} {each}" for row, each in zip(found.to_dict("records"), particular, strict=True)
    ]
    figure, (axes,) = lay_out([2.5 * len(found)], ["\n".join(names).split("\n")], [[""]])
    three = {scope: found[[f"{each}_{scope}" for each in RATE]].set_axis(list(RATE), axis=1) for scope in SCOPES}
    is_log = set_scale(axes, pd.concat(three.values()))
    for j, (scope, rates) in enumerate(three.items()):
        places = [i + 0.27 * (1 - j) for i in range(len(found))]
        mark(axes, rates, places, COLOURS[j], is_log, height=0.25)
        ends = rates[["value", "high"]].max(axis=1)
        for place, value, end, limit in zip(places, rates["value"], ends, found["bottleneck"], strict=True):
            write_number(axes, tables.figure(value) + (" limits" if scope == limit else ""), end, place)
    axes.set_yticks(range(len(found)), names, fontsize=8)
    axes.set_ylim(-0.55, len(found) - 0.45)
    axes.set_xlabel("images/s", fontsize=8.5)
    axes.set_title(", ".join(["What limits it", *common]), fontsize=9.5, loc="left")
    axes.tick_params(labelsize=8)
    axes.grid(axis="x", alpha=0.3)
    keys = [
        Line2D([], [], color=colour, marker="o", linestyle="", label=words)
        for colour, words in zip(COLOURS, SCOPES.values(), strict=False)
    ]
    figure.legend(handles=keys, loc="lower center", ncols=3, fontsize=8.5, frameon=False)
    return figure


def picture_of_sustained(runs):
    """Rate, power and temperature over the minutes of sustained runs, as far as they are known; None without runs."""
    if not runs:
        return None
    panels = {"rate": "items/s", "power_watts": "W", "temperature_c": "degrees C"}
    panels = {column: unit for column, unit in panels.items() if any(run[column].notna().any() for run in runs)}
    shown = runs[-MAX_LINES:]
    names = [name_sustained(run) for run in shown]
    figure, all_axes = line_picture(names, rows=len(panels), inches=1.8)
    for i, run in enumerate(shown):
        look = style(i, False) | {"label": names[i]}
        for axes, column in zip(all_axes, panels, strict=True):
            axes.plot((run["elapsed_seconds"] - run["seconds"] / 2) / 60, run[column], **look)
    for axes, unit in zip(all_axes, panels.values(), strict=True):
        axes.set_ylabel(unit, fontsize=8.5)
    set_scale_of_rates(all_axes[0], shown)
    all_axes[-1].set_xlabel("minutes", fontsize=8.5)
    all_axes[0].set_title("The same work without a pause", fontsize=10)
    return finish(figure, all_axes)


def name_sustained(run):
    top = run.iloc[0]
    burst, sustained = tables.burst_and_sustained(run)
    kept = "" if math.isnan(burst + sustained) else f": {100 * sustained / burst:.0f} % of the first 30 s kept"
    return f"{name(top)}, {top['model']} {top['phase']}, {top['precision']}{kept}"


def set_scale_of_rates(axes, runs):
    """From zero, or logarithmic where the runs differ that much."""
    rates = pd.concat([run["rate"] for run in runs])
    if rates.max() > LOG_FROM * rates.min():
        axes.set_yscale("log")
        by_powers(axes.yaxis)
    else:
        axes.set_ylim(0, 1.1 * rates.max())


PICTURES = {
    "images": picture_of_images,
    "transformers": picture_of_transformers,
    "mlp": picture_of_depths,
    "tflops": picture_of_sizes,
    "peaks": picture_of_peaks,
    "bandwidth": picture_of_bandwidth,
    "scopes": picture_of_scopes,
    "speedup": picture_of_speed_ups,
    "joules": picture_of_joules,
    "sustained": picture_of_sustained,
}


# The page


TITLES = {
    "image": "Image networks",
    "mlp": "Multilayer perceptrons, images of CIFAR-10's size",
    "transformer": "Transformers",
    "matmul": "Matrix products",
    "convolution": "Convolutions",
    "bandwidth": "Memory bandwidth",
}


WRONG_CLOCKS = ("cpu_time", "unsynchronised")
WRONG_SAYS = "Figures as their sources print them. They are no speed, and in no picture."
WRONG_HEADER = ("device", "work", "framework", "published as", "clock", "why it is not believed", "source")
SPEED_UPS_SAY = (
    "The same work on both of one machine, by phase and batch size, as benchmark-pytorch-mps has it. Its own GPU "
    "figures come from a clock that did not wait for the GPU."
)
SPEED_UP_HEADER = (
    *("machine", "work", "framework", "CPU", "GPU", "CPU s a step", "GPU s a step", "times as fast", "interval"),
    *("clock", "file"),
)

# Whose pictures and tables these continue: a part of the source's address, its name, what is to be said, more columns.
ANCESTORS = {
    "particle1331/M1-tensorflow-benchmark/": (
        "M1-tensorflow-benchmark",
        "Its picture, what an epoch takes against depth, is [mlp](plots/mlp.png). It timed three whole epochs, tracing "
        "and warm-up included; later versions time the CPU's seconds.",
        ("s an epoch",),
    ),
    "tlkh/tf-metal-experiments/": (
        "tf-metal-experiments",
        "An M1 Max in float32 beside an RTX 3090 in float16 with XLA, as it set them. Its picture of matrix products "
        "is [tflops](plots/tflops.png).",
        (),
    ),
    "How Fast Can M1 Chip Run Tensorflow": (
        "How Fast Can M1 Chip Run Tensorflow",
        "Microseconds a sample in the last of five epochs, rounded by Keras. `EPOCHS=5 MODEL=mlp-3000-1000 make mlp` "
        "measures the same.",
        ("us an item", "loss", "accuracy"),
    ),
    "karimamunaff/apple-silicon-pytorch/": (
        "apple-silicon-pytorch",
        "Its rate includes making and resizing random images on one core: it is an input pipeline's more than a GPU's.",
        (),
    ),
    "gau-nernst/benchmark-pytorch-mps/": (
        "benchmark-pytorch-mps",
        "Its seconds are those of one step. The ratios are under GPU over CPU.",
        ("s a step",),
    ),
}


def read_cited(rows):
    """All published figures, those of a wrong clock too, as tables.summarize() gives them."""
    cited = tables.summarize(rows[rows["source"] != ""], statuses=(*tables.DONE, *WRONG_CLOCKS))
    return cited.assign(of_peak=math.nan)


SUSTAINED_SAYS = "`SUSTAIN=600 make image`: the rate of the first half minute, and of the last third."
SUSTAINED_HEADER = ("machine", "work", "framework", "minutes", "burst", "sustained", "ratio", "W", "degrees C", "file")


def write_page(summary, cited, runs, pictures):
    """results/README.md: pictures, then a table for each workload and each ancestor, own rows before published ones."""
    parts = ["# Results", "Written by `make plot` from the files here, whose names stand at the end of each line."]
    parts += [f"![{path.stem}](plots/{path.name})" for path in pictures]
    others = {workload: workload for workload in sorted(set(summary["workload"]) - set(TITLES))}
    for workload, title in (TITLES | others).items():
        found = summary[summary["workload"] == workload].sort_values(["published", "machine"], kind="stable")
        parts += write_section(title, "", found, ("machine", *tables.HEADER, "file"), describe_line)
    stated = cited[~cited["note"].str.contains("; derived;", regex=False)]  # what a source itself says
    ups = pd.concat([speed_ups(summary[~summary["published"]]), speed_ups(stated)])
    parts += write_section("GPU over CPU", SPEED_UPS_SAY, ups, SPEED_UP_HEADER, describe_speed_up)
    if runs:
        table = tables.markdown(SUSTAINED_HEADER, [describe_sustained(run) for run in runs[-MAX_TABLE:]])
        parts += ["## Sustained runs", SUSTAINED_SAYS, table]
    for source, (title, says, extra) in ANCESTORS.items():
        theirs = stated[stated["source"].str.contains(source, regex=False)]
        found = pd.concat([theirs, own_beside(summary, theirs)]) if len(theirs) else theirs
        header = ("machine", *tables.HEADER, *extra, "clock", "file")
        parts += write_section(f"Beside {title}", says, found, header, functools.partial(describe_beside, extra))
    wrong = cited[cited["status"].isin(WRONG_CLOCKS)]
    parts += write_section("Published with a wrong clock", WRONG_SAYS, wrong, WRONG_HEADER, describe_wrong)
    return "\n\n".join(parts) + "\n"


def write_section(title, says, found, header, describe):
    """The paragraphs of a section: heading, sentence, table; [] where nothing was found."""
    if found.empty:
        return []
    kept = tables.thin(found.reset_index(drop=True), MAX_TABLE)
    left_out = len(found) - len(kept)
    rest = (
        f"{left_out} more lines are not on this page; `MACHINE=... make table` has all of a machine."
        if left_out
        else ""
    )
    table = tables.markdown(header, [describe(row) for row in kept.to_dict("records")])
    return [part for part in (f"## {title}", says, table, rest) if part]


def own_beside(summary, theirs):
    """Own lines of the models and phases of a source, the fastest of each batch size, precision and scope."""
    work = ["workload", "model", "phase"]
    theirs = theirs.assign(model=theirs["model"].where(theirs["workload"] != "matmul", "matmul-peak"))
    own = summary[summary["model"].isin(theirs["model"]) & ~summary["published"] & summary["value"].notna()]
    found = own.merge(theirs[work].drop_duplicates(), on=work)
    found = best(found, *work, "scope", "epoch", "precision", "batch_size")
    return tables.thin(found.sort_values([*work, "machine", "scope", "epoch"], kind="stable"), MAX_BESIDE)


def describe_line(row):
    return [row["machine"], *tables.describe(row), cite(row)]


def describe_beside(extra, row):
    figures = {
        "s an epoch": TRAINED_IMAGES * seconds_an_item(row),
        "us an item": 1e6 * seconds_an_item(row),
        "s a step": row["step_seconds_median"],
        "loss": row["loss_mean"],
        "accuracy": row["accuracy"],
    }
    cells = [tables.figure(figures[each]) for each in extra]
    return [row["machine"], *tables.describe(row), *cells, row["status"].replace("ok", ""), cite(row)]


def seconds_an_item(row):
    """Wall seconds for one item, however it was published; NaN where that cannot be known."""
    if pd.notna(row["value"]):
        return 1 / row["value"]
    if pd.notna(row["items"]):
        return row["seconds"] / row["items"]
    return row["step_seconds_median"] / pd.to_numeric(row["batch_size"], errors="coerce")


def describe_speed_up(row):
    cpu = {column: row[f"{column}_cpu"] for column in ("value", "per", "seconds", "items", "step_seconds_median")}
    steps = [tables.figure(each["step_seconds_median"]) for each in (cpu, row)]
    setup = f" ({row['setup_cpu']})" if row["setup_cpu"] else ""
    on_cpu = tables.describe_rate(cpu) + setup
    rates = [on_cpu, tables.describe_rate(row), *steps, tables.figure(row["speed_up"], "{:.3g}")]
    between = tables.interval(row | {"rows": 1})
    clock = row["status"].replace("ok", "")
    return [row["machine"], tables.name_work(row), row["framework"], *rates, between, clock, cite(row)]


def describe_sustained(run):
    first, last = run.iloc[0], run.iloc[-1]
    burst, sustained = tables.burst_and_sustained(run)
    who = [first["machine"], tables.name_work(first), f"{first['framework']} {first['framework_version']}"]
    rates = [f"{tables.figure(burst)} {first['unit']}", tables.figure(sustained), tables.figure(sustained / burst)]
    physics = [tables.figure(last["power_watts"]), tables.figure(last["temperature_c"])]
    return [*who, tables.figure(last["elapsed_seconds"] / 60), *rates, *physics, cite(first)]


def describe_wrong(row):
    figure, _, why = row["note"].removeprefix("published as ").partition("; ")
    why = why.removeprefix(f"{row['status']}; ")
    return [row["device_name"], tables.name_work(row), row["framework"], figure, row["status"], why, cite(row)]


def cite(row):
    """The file that a line is in, and the source of a published figure."""
    link = row["source"].split(" ")[0]
    source = f", [source]({link})" if link.startswith("http") else f", {row['source']}" if row["source"] else ""
    return f"[{row['file']}]({urllib.parse.quote(row['file'])}){source}"


def main():
    """Write pictures and tables, and name them; the exit status is 2 for a mistake."""
    gc.disable()  # looking through all that pandas and matplotlib keep costs a tenth of the time, and frees nothing
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    log.setLevel(logging.INFO)
    try:
        folder = read_settings("plot").results_dir
        if not folder.is_dir():
            raise SettingError(f"RESULTS_DIR={str(folder)!r} is no folder: name one with CSV files of results")
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2
    for path in plot(folder):
        print(os.path.relpath(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
