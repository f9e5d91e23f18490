"""Draw the plots of results/plots: each function returns a figure, or None if no row of our own belongs in it.

Bars of our own measurements are filled, published ones are hollow.
"""

from itertools import pairwise

import pandas as pd

from bench.plots import draw, frames
from bench.plots.draw import COLOURS, Curve
from bench.records import columns, tables, verdict
from bench.records.columns import format_number
from bench.settings import TRAINING
from bench.workloads.standard_set import STANDARD_SET
from bench.workloads.workload import BYTES

MAX_BARS = 14  # bars in a panel
MAX_PANELS = 6
MAX_CURVES = 20
# In titles, names and axes; other settings are in the title if all bars share them, else next to the bars.
TITLED = ("model", "scope", "image_size", "sequence_length", "data", "matrix_size")
UNLIKE = "the fastest settings of each, not like for like"
NAMED = ("model", "precision", "compile", "weight_bits")
# With frames.WHO, the work that is compared over depths.
DEEPER = [name for name in columns.WORK if name not in ("framework", "depth", "new_tokens")]
# {key: (what the legend says, colour of the edge, colour of the face)}
WHOSE = {
    False: ("measured by this program, with its interval", COLOURS[0], COLOURS[0]),
    True: ("published elsewhere", COLOURS[1], "white"),
}


def draw_all(stored, folder):
    """Draw every plot that has rows into a folder and return the paths."""
    paths = []
    for picture in PICTURES:
        path = folder / f"{picture.__name__}.png"
        if figure := picture(stored):
            paths.append(draw.save(figure, path, bbox_inches="tight"))
        else:
            path.unlink(missing_ok=True)
    return paths


def images(stored):
    return fastest(stored, "image", ("resnet50", "mobilenet_v2"), "{}, 224 x 224 pixels", "images/s, resident batches")


def transformers(stored):
    models = ("distilbert", "bert-base", "bert-large")
    return fastest(stored, "transformer", models, "{}", "sequences/s of 128 tokens")


def fastest(stored, workload, models, title, unit):
    lines = frames.highest(frames.of_usual_size(stored.valid), "workload", "model", "phase")
    panels = [
        (title.format(model), frames.rates(lines, workload=workload, model=model, phase=phase))
        for model in models
        for phase in ("inference", "training")
    ]
    return bars(panels, f"{unit}, {UNLIKE}")


def standard_set(stored):
    """Draw the works of the standard set with equal settings on all machines, if two or more have them."""
    by_machine = frames.of_usual_size(stored.valid).groupby(frames.WHO, sort=False)
    machines = [lines.to_dict("records") for _, lines in by_machine]
    panels = []
    for work in STANDARD_SET:
        lines = [line for of_machine in machines for line in frames.of_set(of_machine, work)]
        for numbers in frames.NUMBERS:
            same = [line for line in lines if line["numbers"] == numbers]
            if len(same) > 1:
                panels.append((f"{work.title}, {same[0]['per']}", pd.DataFrame(same)))
    return bars(panels, "items/s, with the settings of `make all`", most=2 * MAX_PANELS)


def llm(stored):
    """Draw tokens/s of one sequence, in precisions of this program, for the prompt or depth that most machines have."""
    lines = frames.rates(stored.valid, workload="llm", batch_size="1", scope="device")
    lines = lines[lines["precision"].isin(BYTES) & ~lines["phase"].isin(TRAINING)]
    lines = frames.highest(lines, "model", "phase", "prompt_tokens", "depth", "weight_bits")
    panels = []
    for (model, _), of in lines.groupby(["model", "phase"], sort=False):
        sizes = [same for _, same in of.groupby(["prompt_tokens", "depth"], sort=False)]
        machines = [(not same["published"].all(), same["machine"].nunique(), len(same)) for same in sizes]
        panels.append((model, sizes[machines.index(max(machines))]))
    return bars(panels, f"tokens/s of one sequence, {UNLIKE}; ours have random weights")


def llm_depth(stored):
    """Draw tokens/s of decode over the mean tokens in the cache, a line for all settings with several depths."""
    lines = frames.rates(stored.valid, workload="llm", phase="decode", batch_size="1", scope="device")
    lines = lines[lines["model"].isin(lines["model"][~lines["published"]])]  # no model of others only
    depth, new_tokens = (pd.to_numeric(lines[name], errors="coerce") for name in ("depth", "new_tokens"))
    lines = lines.assign(tokens=depth + (new_tokens + 1) / 2).dropna(subset="tokens")
    curves = curves_of(lines, "tokens", DEEPER, lambda top: name_device(top, NAMED), least=2)
    x_name = "mean tokens in the cache: DEPTH + (NEW_TOKENS + 1) / 2"
    words = "Decode of one sequence; ours with random weights"
    return draw.lines(curves, {"value": "tokens/s"}, words, x_name, is_log2=True)


def llm_training(stored):
    lines = frames.rates(stored.valid, workload="llm", phase="training", scope="device")
    lines = frames.highest(lines, "model", "sequence_length", "lora_rank", "weight_bits")
    panels = [(f"{model}, {tokens} tokens", of) for (model, tokens), of in lines.groupby(["model", "sequence_length"])]
    return bars(panels, "tokens/s of training, random weights")


def diffusion(stored):
    apart = ["model", "image_size", "phase"]
    lines = frames.highest(frames.rates(stored.valid, workload="diffusion", scope="device"), *apart)
    lines = lines[lines["phase"].isin(["inference", "training"])]
    panels = [(f"{model}, {side} x {side} pixels", of) for (model, side, _), of in lines.groupby(apart, sort=False)]
    return bars(panels, f"denoising steps/s, random weights, {UNLIKE}")


def peaks(stored):
    """Draw the best matmul of each precision, own peaks and all published matmuls."""
    lines = stored.valid
    matmuls = lines["model"].isin(["matmul-peak", "matmul-8bit"]) | lines["published"] & (lines["workload"] == "matmul")
    best_matmuls = frames.highest(lines[matmuls & lines["value"].notna()], "precision")
    how = best_matmuls["memory_format"].where(best_matmuls["memory_format"] == "", "as a 1x1 convolution")
    best_matmuls = best_matmuls.assign(memory_format=how, batch_size="")
    formats = ("float32", "tf32", "float16", "bfloat16")
    panels = [("best matmul", best_matmuls[best_matmuls["precision"] == name]) for name in formats]
    panels.append(("best matmul in 8 bits", best_matmuls[best_matmuls["model"] == "matmul-8bit"]))
    return bars(panels, "TFLOP/s (int8: TOP/s)")


def bandwidth(stored):
    lines = frames.highest(frames.rates(stored.valid, workload="bandwidth"))
    return bars([("memory bandwidth", lines)], "GB/s, read and written")


def mlp(stored):
    """Draw the seconds of an epoch and the rate over depth, a line for each machine."""
    curves = curves_of(frames.perceptrons(stored.valid), "depth", [])
    panels = {"seconds_an_epoch": "seconds an epoch of 50,000 images", "value": "images/s"}
    words = "Multilayer perceptrons, images of CIFAR-10's size, training, batch 32, float32"
    return draw.lines(curves, panels, words, "hidden layers of 1024")


def tflops(stored):
    """Draw TFLOP/s over the size of matmuls, the cube root of M N K; the legend has the best size of each line."""

    def name(top):
        best = "" if top["published"] else f": best at M = {top['side']:.0f}"
        return f"{name_device(top)}, {top['precision']}{best}"

    lines = stored.valid[stored.valid["model"].str.match(r"^matmul(?:-\d+)?$") & stored.valid["value"].notna()]
    sides = lines["matrix_size"].str.extract(r"^(\d+)x(\d+)x(\d+)$").astype(float)
    lines = lines.assign(side=sides.prod(axis=1, skipna=False) ** (1 / 3)).dropna(subset="side")
    curves = curves_of(lines, "side", ["precision"], name)
    x_name = "M of an M x M x M matmul (cube root of M N K for others)"
    return draw.lines(curves, {"value": "TFLOP/s"}, "Matmuls", x_name, is_log2=True)


def sustained(stored):
    """Draw rate, power and temperature over the minutes of sustained runs, named with the share of speed kept."""
    rows = stored.rows[(stored.rows["scope"] == "sustained") & stored.rows["throughput"].notna()]
    rows = frames.only_valid(rows.assign(rate=rows["items"] / rows["seconds"]))
    rows = rows.sort_values("disturbed", ascending=False, kind="stable")
    latest = rows["run_id"] == rows.groupby(["machine", *tables.WORK], sort=False)["run_id"].transform("last")
    runs = [run.sort_values("elapsed_seconds") for _, run in rows[latest].groupby("run_id", sort=False)][-MAX_CURVES:]
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


def best(stored):
    """Draw the path of `make best`, one change at a time from the default to the fastest settings, with intervals."""
    is_step = ~stored.rows["search"].isin(["", columns.INTERLEAVED])
    steps = frames.only_valid(stored.rows[is_step & stored.rows["throughput"].notna()])
    of = ["machine", "kind", "framework", "workload", "model", "phase"]
    steps = steps[steps["search"] == steps.groupby(of, sort=False)["search"].transform("last")]
    names = {"throughput": "value", "throughput_low": "low", "throughput_high": "high"}
    steps = steps.rename(columns=names)
    panels = []
    for _, path in list(steps.groupby("search", sort=False))[-MAX_PANELS:]:
        rows = path.to_dict("records")
        changes = [columns.describe_change(before, after).partition(", ") for before, after in pairwise(rows)]
        frame = path.reset_index()[tables.RATE].assign(
            name=["the default", *(f"+ {first}" for first, _, _ in changes)],
            text=[format_number(row["value"]) for row in rows],  # gains are of interleaved pairs: not stored
            note=["", *(others for _, _, others in changes)],
            key=[0, *(1 for _ in changes)],
        )
        panels.append((", ".join([name_device(rows[0]), rows[0]["model"], rows[0]["phase"]]), frame))
    keys = {0: ("the default", COLOURS[7], COLOURS[7]), 1: ("with one more change", COLOURS[0], COLOURS[0])}
    return draw.bars(panels, "items/s, with the interval of the processes", keys) if panels else None


PICTURES = (standard_set, images, mlp, transformers, llm, llm_depth, llm_training, diffusion)
PICTURES += (tflops, peaks, bandwidth, best, sustained)


def bars(panels, unit, most=MAX_PANELS):
    """Draw at most `most` panels, (title, frame of lines), that are not empty; return None if no line is our own."""
    panels = [(title, lines) for title, lines in panels if len(lines)]
    if all(lines["published"].all() for _, lines in panels):
        return None
    if len(panels) > most:  # those with own lines first, then the fullest
        panels = sorted(panels, key=lambda panel: (panel[1]["published"].all(), -len(panel[1])))
    drawn = []
    for title, lines in panels[:most]:
        kept = keep(lines, MAX_BARS)
        rows = kept.to_dict("records")
        common, particular = settings_in_words(rows)
        frame = kept[tables.RATE].assign(
            key=kept["published"],
            name=[name_device(row) for row in rows],
            text=[format_number(row["value"]) for row in rows],
            note=particular,
        )
        count = f" ({len(kept)} of {len(lines)})" if len(lines) > len(kept) else ""
        drawn.append((", ".join([title, *common]) + count, frame))
    return draw.bars(drawn, unit, WHOSE)


def keep(lines, count):
    """Keep at most `count` lines, own ones first; the highest comes first."""
    kept = lines.sort_values(["published", "value"], ascending=[True, False], kind="stable").head(count)
    return kept.sort_values("value", ascending=False, kind="stable", ignore_index=True)


def settings_in_words(rows):
    """Describe settings: ([words that all lines have in common], [the other words of each line])."""
    settings = [columns.words_of(row) | {"setup": row["setup"]} for row in rows]
    names = [name for name in (*columns.WORK, "setup") if name not in TITLED]
    common = [name for name in names if len({words.get(name, "") for words in settings}) == 1]
    particular = [
        ", ".join(filter(None, (words.get(name) for name in names if name not in common))) for words in settings
    ]
    return [settings[0][name] for name in common if settings[0].get(name)], particular


def name_device(row, more=()):
    """Name the device and the framework, and what the columns in `more` say."""
    on_cpu = "" if row["kind"] == "gpu" or row["published"] else " (CPU)"
    return ", ".join([f"{row['shown']}{on_cpu}", row["framework"], *columns.words_of(row, more).values()])


def curves_of(lines, x, apart, name=None, least=1):
    """Build at most MAX_CURVES Curves over the column `x`, one for each of WHO and values of the columns `apart`.

    A curve has the highest line at each of at least `least` values of x. The curve with the highest line comes first,
    and `name` names a curve after that line. [] if none of them is our own.
    """
    by = [*frames.WHO, *apart]
    lines = frames.highest(lines, *apart, x).sort_values(x)
    lines = lines[lines.groupby(by)[x].transform("size") >= least]
    if lines["published"].all():
        return []
    lines = lines.assign(x=lines[x], value_low=lines["low"], value_high=lines["high"])
    tops = lines.loc[lines.groupby(by, sort=False)["value"].idxmax()]
    parts = dict(list(lines.groupby(by)))
    curves = []
    for top in keep(tops, MAX_CURVES).to_dict("records"):
        words = (name(top) if name else name_device(top, apart)) + (" (published)" if top["published"] else "")
        curves.append(Curve(words, parts[tuple(top[column] for column in by)], top["published"]))
    return curves
