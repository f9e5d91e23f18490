"""Pictures and tables of what lies in results/: rows become results/plots/*.png and results/README.md.

    make plot

Needs pandas and matplotlib, no framework and no screen. Pictures draw every machine's own rows beside the published
ones (results/published.csv), which are paler; rows whose clock was wrong are in no picture.
"""

import logging
import os
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen is needed
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.patches import Patch

from bench import tables
from bench.settings import SettingError, read_settings

log = logging.getLogger("bench")

# Okabe and Ito's palette: told apart by every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = "osD^vP*X"
DASHES = ("-", "--", "-.", ":")
OWN, PUBLISHED = "#0072B2", "#A6CEE3"
LOG_FROM = 20  # times: where values span more, the axis is logarithmic
MAX_BARS = 40  # in a panel
MAX_LINES = 40  # in a picture of lines
TRAINED_IMAGES = 50_000  # in an epoch of CIFAR-10


def plot(folder):
    """Draw everything and write the tables; returns the paths that were written."""
    rows = tables.read_rows(sorted(Path(folder).glob("*.csv")), warn=log.warning)
    summary = tables.add_peak_fraction(tables.summarize(rows), rows)
    summary["published"] = summary["source"] != ""
    drawn = []
    for name, draw in PICTURES.items():
        figure = draw(summary)
        if figure is None:
            log.info("%s: no rows to draw", name)
            (Path(folder) / "plots" / f"{name}.png").unlink(missing_ok=True)
        else:
            drawn.append(save(figure, folder, name))
    page = Path(folder) / "README.md"
    page.write_text(write_page(summary, drawn), encoding="utf-8")
    return [*drawn, page]


def save(figure, folder, name):
    path = Path(folder) / "plots" / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)
    return path


def draw_tflops(folder):
    """The picture of all sweeps in a folder, at the end of one; returns its path, None where there is nothing."""
    summary = tables.summarize(tables.read_rows(sorted(Path(folder).glob("*.csv")), warn=log.warning))
    figure = picture_of_sizes(summary)
    return save(figure, folder, "tflops") if figure else None


# Data behind the pictures: each function gives a frame, which the tests look at.


def fastest(summary, *, workload, model, phase):
    """The fastest line of each machine, kind of device and framework, on resident batches."""
    found = summary[(summary["workload"] == workload) & (summary["model"] == model) & (summary["phase"] == phase)]
    usual = found["image_size"].isin(["", "224"]) & found["sequence_length"].isin(["", "128"])
    found = found[(found["scope"] == "device") & found["value"].notna() & usual]
    best = found.groupby(["machine", "kind", "framework"], sort=False)["value"].idxmax()
    return found.loc[best].sort_values("value")


def depths(summary):
    """Seconds an epoch against depth for mlp-<depth>x1024 in training, a line each machine, kind and framework."""
    found = summary[(summary["workload"] == "mlp") & (summary["phase"] == "training")].copy()
    found["depth"] = pd.to_numeric(found["model"].str.extract(r"^mlp-(\d+)x1024$")[0])
    found = found[found["depth"].notna() & (found["batch_size"] == "32") & (found["precision"] == "float32")]
    images = found["value"].fillna(found["items"] / found["seconds"])
    found = found.assign(images_per_second=images, epoch_seconds=TRAINED_IMAGES / images)
    found = found[found["images_per_second"].notna() & (found["scope"] == "device") & (found["compile"] != "1")]
    # SGD is the default that all of them ran; a rate that a source's seconds were turned into is the same figure.
    found = found[found["optimizer"].isin(["", "sgd"])]
    return found.drop_duplicates(["machine", "kind", "framework", "depth"]).sort_values("depth")


def sizes(summary):
    """TFLOP/s against the size of square products, `side` being the cube root of M N K for others."""
    found = summary[(summary["model"] == "matmul") & summary["value"].notna()].copy()
    sides = found["matrix_size"].str.extract(r"^(\d+)x(\d+)x(\d+)$").astype(float)
    found = found.assign(side=sides.prod(axis=1, skipna=False) ** (1 / 3))
    return found[found["side"].notna()].sort_values("side")


def speed_ups(summary):
    """GPU over CPU of the same machine and work: `speed_up`, with `batch_size`, `phase` and `model`."""
    work = ["machine", *(column for column in tables.WORK if column != "kind")]
    found = summary[(summary["scope"] == "device") & summary["value"].notna() & (summary["workload"] != "matmul")]
    both = found[found["kind"] == "gpu"].merge(found[found["kind"] == "cpu"], on=work, suffixes=("", "_cpu"))
    return both.assign(speed_up=both["value"] / both["value_cpu"])


def per_joule(summary):
    """Items per joule where power is known, the best of each machine, framework, model and phase."""
    found = summary[summary["power_watts"].notna() & summary["throughput"].notna() & (summary["scope"] == "device")]
    found = found.assign(items_per_joule=found["value"] / found["power_watts"])
    best = found.groupby(["machine", "kind", "framework", "model", "phase"], sort=False)["items_per_joule"].idxmax()
    return found.loc[best].sort_values("items_per_joule")


def scopes(summary):
    """Rates of the three scopes by machine and work, where all were measured; `bottleneck` as found then."""
    work = ["machine", *(column for column in tables.WORK if column not in ("scope", "data"))]
    found = summary[(summary["workload"] == "image") & summary["value"].notna()]
    wide = found.pivot_table(index=work, columns="scope", values="value", aggfunc="last", sort=False)
    if not {"device", "input", "end_to_end"} <= set(wide.columns):
        return wide.iloc[:0].reset_index()
    limits = found[found["scope"] == "end_to_end"].set_index(work)["bottleneck"]
    return wide.dropna().join(limits.groupby(level=work, sort=False).last()).reset_index()


# Pictures


def bars(panels, unit, value="value"):
    """Horizontal bars, a panel for each (title, frame); None where all are empty."""
    panels = [cap(title, frame) for title, frame in panels if len(frame)]
    if not panels:
        return None
    heights = [len(frame) + 2 for _, frame in panels]
    size = (9, 0.24 * sum(heights) + 0.6)
    figure, all_axes = plt.subplots(
        len(panels), figsize=size, dpi=130, height_ratios=heights, squeeze=False, layout="constrained"
    )
    for (title, frame), axes in zip(panels, all_axes[:, 0], strict=True):
        colours = [PUBLISHED if published else OWN for published in frame["published"]]
        low, high = frame[value] - frame["low"], frame["high"] - frame[value]
        errors = None if value != "value" else [low.clip(lower=0).fillna(0), high.clip(lower=0).fillna(0)]
        axes.barh(range(len(frame)), frame[value], color=colours, xerr=errors, ecolor="#444444", height=0.75)
        axes.set_yticks(range(len(frame)), [label(row) for row in frame.to_dict("records")], fontsize=7)
        axes.set_ylim(-0.6, len(frame) - 0.4)
        ends = frame[value] if errors is None else frame[["value", "high"]].max(axis=1)
        for i, (number, end) in enumerate(zip(frame[value], ends, strict=True)):
            write_number(axes, f"{number:.4g}", end, i)
        if frame[value].max() > LOG_FROM * frame[value].min():
            axes.set_xscale("log")
        axes.margins(x=0.12)
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlabel(unit, fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
        axes.grid(axis="x", alpha=0.3)
    if any(frame["published"].any() for _, frame in panels):
        keys = [Patch(color=OWN, label="measured by this program"), Patch(color=PUBLISHED, label="published elsewhere")]
        all_axes[0, 0].legend(handles=keys, fontsize=7, loc="lower right")
    return figure


def cap(title, frame):
    """A panel of no more bars than a reader can look at, the longest of them."""
    left_out = len(frame) - MAX_BARS
    return (f"{title} (and {left_out} slower ones)", frame.tail(MAX_BARS)) if left_out > 0 else (title, frame)


def write_number(axes, text, end, place):
    """The figure of a bar, beside the end of it."""
    axes.annotate(text, (end, place), (3, 0), textcoords="offset points", va="center", fontsize=6)


def label(row):
    """A bar's name: the device, and the settings that make it what it is."""
    device = row["device_name"] if row["published"] else row["machine"]
    settings = [row["framework"], row["precision"], "compiled" if row["compile"] == "1" else ""]
    settings += [f"batch {row['batch_size']}" if row["batch_size"] else "", row["memory_format"].replace("_first", "")]
    on_cpu = "" if row["kind"] == "gpu" or row["published"] else " (CPU)"
    return f"{device}{on_cpu}: {', '.join(each for each in settings if each and each != 'channels')}"


def picture_of_images(summary):
    panels = [
        (f"{model}, {phase}, 224 x 224 pixels", fastest(summary, workload="image", model=model, phase=phase))
        for model in ("resnet50", "mobilenet_v2")
        for phase in ("inference", "training")
    ]
    return bars(panels, "images/s, resident batches, the fastest settings of each")


def picture_of_transformers(summary):
    panels = [
        (f"{model}, {phase}", fastest(summary, workload="transformer", model=model, phase=phase))
        for model in ("distilbert", "bert-base", "bert-large")
        for phase in ("inference", "training")
    ]
    return bars(panels, "sequences/s, the fastest settings of each")


def picture_of_bandwidth(summary):
    found = summary[(summary["workload"] == "bandwidth") & summary["value"].notna()].sort_values("value")
    panels = [(model, found[found["model"] == model]) for model in ("copy", "add", "multiply-add")]
    return bars(panels, "GB/s, bytes read and written")


def picture_of_peaks(summary):
    found = summary[summary["model"].isin(["matmul-peak", "matmul-best"]) & summary["value"].notna()]
    panels = [
        (f"best matrix product, {precision}", found[found["precision"] == precision].sort_values("value"))
        for precision in ("float32", "tf32", "float16", "bfloat16", "float64")
    ]
    return bars(panels, "TFLOP/s")


def picture_of_joules(summary):
    found = per_joule(summary)
    works = found[["model", "phase"]].drop_duplicates().itertuples(index=False, name=None)
    panels = [(f"{m}, {p}", found[(found["model"] == m) & (found["phase"] == p)]) for m, p in sorted(works)]
    return bars(panels, "items per joule", "items_per_joule")


def picture_of_speed_ups(summary):
    found = speed_ups(summary)
    found = found[found["workload"] == "image"]
    found = found.assign(label_batch=pd.to_numeric(found["batch_size"])).sort_values(["model", "phase", "label_batch"])
    works = found[["model", "phase"]].drop_duplicates().itertuples(index=False, name=None)
    panels = [(f"{m}, {p}: GPU over CPU", found[(found["model"] == m) & (found["phase"] == p)]) for m, p in works]
    return bars(panels, "times as fast", "speed_up")


def style(i):
    return {
        "color": COLOURS[i % len(COLOURS)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": DASHES[i // len(COLOURS) % len(DASHES)],
        "markersize": 4,
        "linewidth": 1.2,
    }


def line_picture(count, panels=1):
    """(figure, axes): wide enough for `panels`, and high enough for a legend of `count` names below them."""
    rows = -(-count // 2)
    figure, axes = plt.subplots(1, panels, figsize=(9, 4.2 + 0.17 * rows), dpi=130, squeeze=False, layout="constrained")
    return figure, axes[0]


def finish(figure, axes):
    for each in axes:
        each.grid(alpha=0.3)
        each.tick_params(labelsize=7)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7)
    return figure


def name_line(names, published):
    return ", ".join(names) + (" (published)" if published else "")


def picture_of_depths(summary):
    """The ancestor's picture: what an epoch takes against depth, a line a machine; None without rows."""
    found = depths(summary)
    if found.empty:
        return None
    groups = list(found.groupby(["machine", "kind", "framework"]))[:MAX_LINES]
    figure, (seconds, rates) = axes = line_picture(len(groups), panels=2)
    for i, (names, line) in enumerate(groups):
        published = line["published"].all()
        look = style(i) | {"label": name_line(names, published), "alpha": 0.6 if published else 1.0}
        seconds.plot(line["depth"], line["epoch_seconds"], **look)
        rates.plot(line["depth"], line["images_per_second"], **look)
        rates.fill_between(line["depth"], line["low"], line["high"], color=look["color"], alpha=0.15)
    for each, unit in ((seconds, "seconds an epoch of 50,000 images"), (rates, "images/s")):
        values = found["epoch_seconds" if each is seconds else "images_per_second"]
        each.set_yscale("log" if values.max() > LOG_FROM * values.min() else "linear")
        each.set_xlabel("hidden layers of 1024", fontsize=8)
        each.set_ylabel(unit, fontsize=8)
        each.set_xticks(sorted(found["depth"].unique()))
    figure.suptitle("MLP on CIFAR-10, training, batch 32, float32", fontsize=9)
    return finish(figure, axes[1])


def picture_of_sizes(summary):
    """TFLOP/s against matrix size, the best size of each line marked; None without rows."""
    found = sizes(summary)
    if found.empty:
        return None
    groups = list(found.groupby(["machine", "kind", "framework", "precision"]))[:MAX_LINES]
    figure, (axes,) = line_picture(len(groups))
    for i, (names, line) in enumerate(groups):
        look = style(i)
        axes.plot(line["side"], line["value"], label=name_line(names, False), **look)
        best = line.loc[line["value"].idxmax()]
        axes.axvline(best["side"], color=look["color"], linestyle="--", linewidth=0.7, alpha=0.5)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("M of a product of M x M x M (cube root of M N K for others)", fontsize=8)
    axes.set_ylabel("TFLOP/s", fontsize=8)
    axes.set_title("Matrix products; a dashed line marks each one's best size", fontsize=9)
    return finish(figure, [axes])


def picture_of_scopes(summary):
    """The three throughputs of image runs side by side, the limiting one marked; None without rows."""
    found = scopes(summary).head(MAX_BARS)
    if found.empty:
        return None
    figure, axes = plt.subplots(figsize=(9, 0.75 * len(found) + 1.2), dpi=130, layout="constrained")
    for j, (scope, colour) in enumerate(zip(("device", "input", "end_to_end"), COLOURS, strict=False)):
        places = [i + 0.27 * (1 - j) for i in range(len(found))]
        axes.barh(places, found[scope], height=0.25, color=colour, label=scope.replace("_", " "))
        for place, rate, limit in zip(places, found[scope], found["bottleneck"], strict=True):
            write_number(axes, f"{rate:.4g}{' limits' if scope == limit else ''}", rate, place)
    names = [
        f"{row['machine']} ({row['kind']})\n{row['model']} {row['phase']}, {row['framework']}, {row['precision']}, "
        f"batch {row['batch_size']}"
        for row in found.to_dict("records")
    ]
    axes.set_yticks(range(len(found)), names, fontsize=7)
    rates = found[["device", "input", "end_to_end"]]
    if rates.max(axis=None) > LOG_FROM * rates.min(axis=None):
        axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_xlabel("images/s", fontsize=8)
    axes.set_title("What limits it: the model, the input pipeline, both together", fontsize=9)
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize=7)
    return figure


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
}


# The page


TITLES = {
    "image": "Image networks",
    "mlp": "Multilayer perceptrons on CIFAR-10",
    "transformer": "Transformers",
    "matmul": "Matrix products",
    "convolution": "Convolutions",
    "bandwidth": "Memory bandwidth",
}


def write_page(summary, pictures):
    """results/README.md: pictures, then a table for each workload, own rows before published ones."""
    parts = ["# Results", "Written by `make plot` from the files here, whose names stand at the end of each line."]
    parts += [f"![{path.stem}](plots/{path.name})" for path in pictures]
    for workload, title in TITLES.items():
        lines = summary[summary["workload"] == workload].sort_values(["published", "machine"], kind="stable")
        if len(lines):
            header = ("machine", *tables.HEADER, "file")
            cells = [[row["machine"], *tables.describe(row), cite(row)] for row in lines.to_dict("records")]
            parts += [f"## {title}", tables.markdown(header, cells)]
    ups = speed_ups(summary)
    if len(ups):
        cells = [describe_speed_up(row) for row in ups.to_dict("records")]
        header = ("machine", "work", "CPU", "GPU", "times as fast", "interval", "file")
        parts += ["## GPU over CPU", tables.markdown(header, cells)]
    ancestor = summary[summary["source"].str.contains("tlkh/tf-metal-experiments/", regex=False)]
    if len(ancestor):
        lines = ancestor.sort_values(["workload", "model", "device_name"]).to_dict("records")
        cells = [[row["device_name"], *tables.describe(row), cite(row)] for row in lines]
        parts += ["## As tf-metal-experiments set an M1 Max beside an RTX 3090"]
        parts += [tables.markdown(("device", *tables.HEADER, "file"), cells)]
    return "\n\n".join(parts) + "\n"


def describe_speed_up(row):
    low, high = row["low"] / row["high_cpu"], row["high"] / row["low_cpu"]
    between = "" if pd.isna(low) or pd.isna(high) else f"{low:.3g} to {high:.3g}"
    rates = [f"{row['value_cpu']:.4g}", f"{row['value']:.4g}", f"{row['speed_up']:.3g}"]
    return [row["machine"], tables.name_work(row), *rates, between, cite(row)]


def cite(row):
    """The file that a line is in, and the source of a published figure."""
    link = row["source"].split(" ")[0]
    source = f", [source]({link})" if link.startswith("http") else f", {row['source']}" if row["source"] else ""
    return f"[{row['file']}]({row['file']}){source}"


def main():
    """Write pictures and tables, and name them; the exit status is 2 for a mistake."""
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
