"""Draw the plots of results/plots: each function returns a figure, or None if no row of our own belongs in it.

Bars of our own measurements are filled, published ones are hollow.
"""

from itertools import pairwise

import pandas as pd

from bench.plots import draw, select
from bench.plots.draw import COLOURS, Curve
from bench.records import columns, tables, verdict
from bench.records.columns import format_number

MAX_BARS = 20  # in a panel
MAX_PANELS = 6
MAX_CURVES = 20
# In titles, names and axes; other settings are in the title if all bars share them, else next to the bars.
TITLED = ("model", "scope", "image_size", "sequence_length", "data", "matrix_size")
# {key: (what the legend says, colour of the edge, colour of the face)}
WHOSE = {
    False: ("measured by this program, with its interval", COLOURS[0], COLOURS[0]),
    True: ("published elsewhere", COLOURS[1], "white"),
}
PARTS = {
    "device": ("the model, on resident batches", COLOURS[0], COLOURS[0]),
    "input": ("the input pipeline", COLOURS[1], COLOURS[1]),
    "end_to_end": ("both together", COLOURS[2], COLOURS[2]),
}


def draw_all(stored, folder, say):
    """Draw every plot into a folder and return the paths; say() gets a line for each without own rows."""
    paths = []
    for picture in PICTURES:
        path = folder / f"{picture.__name__}.png"
        figure = picture(stored)
        if figure:
            paths.append(draw.save(figure, path))
        else:
            say(f"{path.stem}: no rows of our own to draw")
            path.unlink(missing_ok=True)
    return paths


def images(stored):
    return fastest(stored, "image", ("resnet50", "mobilenet_v2"), "{}, 224 x 224 pixels", "images/s, resident batches")


def transformers(stored):
    models = ("distilbert", "bert-base", "bert-large")
    return fastest(stored, "transformer", models, "{}", "sequences/s of 128 tokens")


def fastest(stored, workload, models, title, unit):
    found = select.best(select.resident(stored.believed), "workload", "model", "phase")
    panels = [
        (title.format(model), select.having(found, workload=workload, model=model, phase=phase))
        for model in models
        for phase in ("inference", "training")
    ]
    return bars(panels, f"{unit}, the fastest settings of each")


def llm(stored):
    found = select.generation(stored.believed)
    panels = [(model, of) for (model, _), of in found.groupby(["model", "phase"], sort=False)]
    return bars(panels, "tokens/s of one sequence, random weights")


def llm_training(stored):
    found = select.training_of_llm(stored.believed)
    panels = [(f"{model}, {tokens} tokens", of) for (model, tokens), of in found.groupby(["model", "sequence_length"])]
    return bars(panels, "tokens/s of training, random weights")


def diffusion(stored):
    apart = ["model", "image_size", "phase"]
    found = select.best(select.having(stored.believed, workload="diffusion", scope="device"), *apart)
    found = found[found["phase"].isin(["inference", "training"])]
    panels = [(f"{model}, {side} x {side} pixels", of) for (model, side, _), of in found.groupby(apart, sort=False)]
    return bars(panels, "denoising steps/s, random weights, the fastest settings of each")


def peaks(stored):
    found = select.matmul_peaks(stored.believed)
    moved = select.best(select.having(stored.believed, workload="bandwidth"))
    moved = moved.assign(**moved[tables.RATE] / 1000)
    panels = [("best matmul", found[found["precision"] == each]) for each in ("float32", "tf32", "float16", "bfloat16")]
    panels.append(("best matmul in 8 bits", found[found["model"] == "matmul-8bit"]))
    return bars([*panels, ("memory bandwidth, TB/s", moved)], "TFLOP/s (memory bandwidth: TB/s)")


def mlp(stored):
    """Draw the seconds of an epoch and the rate over depth, a line for each machine."""
    curves = curves_of(select.depths(stored.believed), "depth", [])
    panels = {"seconds_an_epoch": "seconds an epoch of 50,000 images", "value": "images/s"}
    words = "Multilayer perceptrons, images of CIFAR-10's size, training, batch 32, float32"
    return draw.lines(curves, panels, words, "hidden layers of 1024")


def tflops(stored):
    """Draw TFLOP/s over the size of matmuls; the legend has the best size of each line."""

    def name(top):
        best = " (published)" if top["published"] else f": best at M = {top['side']:.0f}"
        return f"{name_device(top)}, {top['precision']}{best}"

    curves = curves_of(select.sizes(stored.believed), "side", ["precision"], name)
    x_name = "M of an M x M x M matmul (cube root of M N K for others)"
    return draw.lines(curves, {"value": "TFLOP/s"}, "Matmuls", x_name, is_log2=True)


def scaling(stored):
    """Draw the rate over the number of devices; a dotted line shows a rate that grows with them."""

    def name(top):
        return f"{name_device(top)}: {columns.describe_work(top | {'world_size': '1', 'nodes': '1'})}"

    curves = curves_of(select.scaling(stored.many), "devices", select.SCALED, name)
    words = "The same work on more devices, each with its own batch; dotted: a rate that grows with them"
    figure = draw.lines(curves, {"value": "items/s of all devices"}, words, "devices", is_log2=True)
    if figure:
        draw.ideal(figure.axes[0], curves, "value")
    return figure


def sustained(stored):
    """Draw rate, power and temperature over the minutes of sustained runs, named with the share of speed kept."""
    runs = select.sustained_runs(stored.rows)[-MAX_CURVES:]
    panels = {"rate": "items/s", "power_watts": "W", "temperature_c": "degrees C"}
    panels = {column: unit for column, unit in panels.items() if any(run[column].notna().any() for run in runs)}
    curves = []
    for run in runs:
        first = run.iloc[0]
        burst, kept = verdict.burst_and_sustained(run[["elapsed_seconds", "seconds", "items"]].to_numpy().tolist())
        share = f": {100 * kept / burst:.0f} % of the first 30 s kept" if burst and kept else ""
        name = f"{name_device(first)}, {first['model']} {first['phase']}, {first['precision']}{share}"
        curves.append(Curve(name, run.assign(x=(run["elapsed_seconds"] - run["seconds"] / 2) / 60)))
    return draw.lines(curves, panels, "The same work without a pause", "minutes", rows=len(panels))


def scopes(stored):
    """Draw the three throughputs of the latest work with a pipeline; the part that limits is marked."""
    panels = []
    for parts in select.scopes(stored.believed)[-MAX_PANELS:]:
        whole, rows = parts["end_to_end"], [parts[scope] for scope in PARTS]
        frame = pd.DataFrame(rows)[tables.RATE].assign(
            key=list(PARTS),
            name=[label for label, _, _ in PARTS.values()],
            text=[format_number(row["value"]) + " limits" * (row["scope"] == whole["bottleneck"]) for row in rows],
            note="",
        )
        work = columns.describe_work(whole | {"scope": "", "image_size": "", "data": ""})
        panels.append((f"{name_device(whole)}: {work}", frame))
    return draw.bars(panels, "images/s", PARTS) if panels else None


def best(stored):
    """Draw what each change of `make best` gained, from the default down to the fastest settings, with intervals."""
    panels = []
    for path in select.searches(stored.rows)[-MAX_PANELS:]:
        rows = path.to_dict("records")
        changes = [f"+ {columns.describe_change(before, after)}" for before, after in pairwise(rows)]
        frame = path.reset_index()[tables.RATE].assign(
            name=["the default", *changes],
            text=[f"{format_number(row['value'])} ({row['value'] / rows[0]['value']:.2g}x)" for row in rows],
            note="",
            key=[0] + [1] * len(changes),
        )
        panels.append((", ".join([name_device(rows[0]), rows[0]["model"], rows[0]["phase"]]), frame))
    keys = {0: ("the default", COLOURS[7], COLOURS[7]), 1: ("with one more change", COLOURS[0], COLOURS[0])}
    return draw.bars(panels, "items/s, with the interval of the processes", keys) if panels else None


PICTURES = (images, mlp, transformers, llm, llm_training, diffusion, tflops, peaks, scopes, best, scaling, sustained)


def bars(panels, unit):
    """Draw the panels, (title, frame of lines), that are not empty; return None if no line is our own."""
    panels = [(title, found) for title, found in panels if len(found)]
    if all(found["published"].all() for _, found in panels):
        return None
    if len(panels) > MAX_PANELS:  # those with own lines first, then the fullest
        panels = sorted(panels, key=lambda panel: (panel[1]["published"].all(), -len(panel[1])))
    drawn = []
    for title, found in panels[:MAX_PANELS]:
        kept = tables.limit_rows(found.reset_index(drop=True), MAX_BARS).reset_index(drop=True)
        rows = kept.to_dict("records")
        common, particular = settings_in_words(rows)
        frame = kept[tables.RATE].assign(
            key=kept["published"],
            name=[name_device(row) for row in rows],
            text=[format_number(row["value"]) for row in rows],
            note=particular,
        )
        count = f" ({len(kept)} of {len(found)})" if len(found) > len(kept) else ""
        drawn.append((", ".join([title, *common]) + count, frame))
    return draw.bars(drawn, unit, WHOSE)


def settings_in_words(rows):
    """Describe settings: ([words that all lines have in common], [the other words of each line])."""
    said = [columns.words_of(row) | {"setup": row["setup"]} for row in rows]
    names = [name for name in (*columns.WORK, "setup") if name not in TITLED]
    common = [name for name in names if len({words.get(name, "") for words in said}) == 1]
    particular = [", ".join(filter(None, (words.get(name) for name in names if name not in common))) for words in said]
    return [said[0][name] for name in common if said[0].get(name)], particular


def name_device(row):
    """Name the device and the framework."""
    on_cpu = "" if row["kind"] == "gpu" or row["published"] else " (CPU)"
    return f"{row['shown']}{on_cpu}, {row['framework']}"


def curves_of(found, x, apart, name=None):
    """Build at most MAX_CURVES Curves over the column `x`, one for each of WHO and values of the columns `apart`.

    The highest comes first, and `name` names a curve after its highest line. [] if none of them is our own.
    """
    if found["published"].all():
        return []
    by = [*select.WHO, *apart]
    found = found.assign(x=found[x], value_low=found["low"], value_high=found["high"])
    tops = found.loc[found.groupby(by, sort=False)["value"].idxmax()].sort_values("value", ascending=False)
    parts = dict(list(found.groupby(by)))
    curves = []
    for top in tables.limit_rows(tops, MAX_CURVES).to_dict("records"):
        words = name(top) if name else name_device(top) + (" (published)" if top["published"] else "")
        curves.append(Curve(words, parts[tuple(top[column] for column in by)], top["published"]))
    return curves
