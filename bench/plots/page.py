"""The page results/README.md: the pictures, then the lines behind them as tables."""

import urllib.parse

import pandas as pd

from bench.plots import select
from bench.rows import tables
from bench.work.workload import TRAIN_IMAGES

LINK = ":/?#&=%+@,~"  # what an address may have in it as it is
MAX_TABLE = 200  # lines of one table: GitHub shows no page over 512 KB
MAX_BESIDE = 40  # own lines beside those of a source
TITLES = {
    "image": "Image models",
    "mlp": "Multilayer perceptrons, images of CIFAR-10's size",
    "transformer": "Transformers",
    "llm": "Language models",
    "matmul": "Matmuls",
    "convolution": "Convolutions",
    "bandwidth": "Memory bandwidth",
    "all-reduce": "All-reduce",
}
SPEEDUPS_SAY = (
    "The same work on both of one machine, by phase and batch size, as benchmark-pytorch-mps has it. Its own GPU "
    "figures come from a clock that did not wait for the GPU."
)
SUSTAINED_SAYS = "`SUSTAIN=600 make image`: the rate of the first half minute, and of the last third."
WRONG_SAYS = "Figures as their sources print them. They are no speed, and in no picture."

# The benchmarks that these pictures and tables continue: a part of the source's address, its name, a sentence, more
# columns.
ANCESTORS = {
    "particle1331/M1-tensorflow-benchmark/": (
        "M1-tensorflow-benchmark",
        "Its picture, the time of an epoch over depth, is [mlp](plots/mlp.png). It timed three whole epochs, tracing "
        "and warm-up included; later versions time the CPU's seconds.",
        ("s an epoch",),
    ),
    "tlkh/tf-metal-experiments/": (
        "tf-metal-experiments",
        "An M1 Max in float32 beside an RTX 3090 in float16 with XLA, as it set them. Its picture of matmuls "
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
        "Its rate includes making and resizing random images on one core: it measures an input pipeline more than a "
        "GPU.",
        (),
    ),
    "gau-nernst/benchmark-pytorch-mps/": (
        "benchmark-pytorch-mps",
        "Its seconds are those of one step. The ratios are under GPU over CPU.",
        ("s a step",),
    ),
}


def write(stored, pictures):
    """The page as text: pictures, then a table for each workload and each ancestor, own lines before published ones."""
    summary, cited = stored.summary, stored.cited
    parts = ["# Results", "Written by `make plot` from the files here. Their names stand at the end of each line."]
    parts += [f"![{path.stem}](plots/{path.name})" for path in pictures]
    others = {workload: workload for workload in sorted(set(summary["workload"]) - set(TITLES))}
    for workload, title in (TITLES | others).items():
        found = summary[summary["workload"] == workload].sort_values(["published", "machine"], kind="stable")
        parts += section(title, "", found, LINE | {"file": cite})
    stated = cited[~cited["note"].str.contains("; derived;", regex=False)]  # what a source itself says
    ups = pd.concat([select.speedups(summary[~summary["published"]]), select.speedups(stated)])
    parts += section("GPU over CPU", SPEEDUPS_SAY, ups, SPEEDUP)
    if stored.runs:
        parts += section("Sustained runs", SUSTAINED_SAYS, pd.DataFrame(map(describe_run, stored.runs)), SUSTAINED)
    for source, (title, says, extra) in ANCESTORS.items():
        theirs = stated[stated["source"].str.contains(source, regex=False)]
        found = pd.concat([theirs, own_beside(summary, theirs)]) if len(theirs) else theirs
        cells = LINE | {name: BESIDE[name] for name in extra} | {"clock": clock_of, "file": cite}
        parts += section(f"Beside {title}", says, found, cells)
    wrong = cited[cited["status"].isin(select.WRONG_CLOCKS)]
    parts += section("Published with a wrong clock", WRONG_SAYS, wrong, WRONG)
    return "\n\n".join(parts) + "\n"


def section(title, says, found, cells):
    """The paragraphs of a section: heading, sentence, table; [] where nothing was found."""
    if found.empty:
        return []
    kept = tables.limit_rows(found.reset_index(drop=True), MAX_TABLE)
    left_out = len(found) - len(kept)
    rest = f"{left_out} more lines are not on this page; `MACHINE=... make table` has all of a machine."
    table = tables.markdown(cells, kept.to_dict("records"))
    return [part for part in (f"## {title}", says, table, rest if left_out else "") if part]


def own_beside(summary, theirs):
    """Own lines of the models and phases of a source, the fastest of each batch size, precision and scope."""
    work = ["workload", "model", "phase"]
    theirs = theirs.assign(model=theirs["model"].where(theirs["workload"] != "matmul", "matmul-peak"))
    own = summary[~summary["published"] & summary["value"].notna()]
    found = own.merge(theirs[work].drop_duplicates(), on=work)
    found = select.best(found, *work, "scope", "epoch", "precision", "batch_size")
    return tables.limit_rows(found.sort_values([*work, "machine", "scope", "epoch"], kind="stable"), MAX_BESIDE)


def describe_run(run):
    """The line of a sustained run: its last row, with its rates of the first half minute and of the last third."""
    burst, sustained = tables.burst_and_sustained(run)
    return run.iloc[-1].to_dict() | {"burst": burst, "sustained": sustained}


def seconds_an_item(row):
    """Wall seconds for one item, however it was published; NaN where that cannot be known."""
    if pd.notna(row["value"]):
        return 1 / row["value"]
    if pd.notna(row["items"]):
        return row["seconds"] / row["items"]
    return row["step_seconds_median"] / pd.to_numeric(row["batch_size"], errors="coerce")


def clock_of(row):
    """The wrong clock of a published figure, blank for all others."""
    return row["status"].replace("ok", "")


def cite(row):
    """The file that a line is in, and the source of a published figure."""
    name, source = tables.escape(row["file"]), tables.escape(row["source"])
    if row["source"].startswith("http"):
        source = f"[source]({urllib.parse.quote(row['source'].split(' ')[0], safe=LINK)})"
    file = f"[{name}]({urllib.parse.quote(row['file'])})"
    return tables.Markdown(", ".join(filter(None, [file, source])))


def of(column, pattern=None):
    """The cell of a column: its text, or its number by a pattern."""
    return lambda row: row[column] if pattern is None else tables.figure(row[column], pattern)


def of_cpu(row):
    """The CPU's side of a line of select.speedups()."""
    return {column: row[f"{column}_cpu"] for column in ("value", "per", "seconds", "items", "step_seconds_median")}


def setup_of_cpu(row):
    return f" ({row['setup_cpu']})" if row["setup_cpu"] else ""


def published_as(row):
    """[figure, why it is not believed] of a published row with a wrong clock, from its note."""
    figure, _, why = row["note"].removeprefix("published as ").partition("; ")
    return figure, why.removeprefix(f"{row['status']}; ")


LINE = {"machine": of("machine"), **tables.CELLS}
BESIDE = {
    "s an epoch": lambda row: tables.figure(TRAIN_IMAGES * seconds_an_item(row)),
    "us an item": lambda row: tables.figure(1e6 * seconds_an_item(row)),
    "s a step": of("step_seconds_median", "{:.4g}"),
    "loss": of("loss_mean", "{:.4g}"),
    "accuracy": of("accuracy", "{:.4g}"),
}
SPEEDUP = {
    "machine": of("machine"),
    "work": tables.name_line,
    "framework": of("framework"),
    "CPU": lambda row: tables.describe_rate(of_cpu(row)) + setup_of_cpu(row),
    "GPU": tables.describe_rate,
    "CPU s a step": of("step_seconds_median_cpu", "{:.4g}"),
    "GPU s a step": of("step_seconds_median", "{:.4g}"),
    "speedup": of("speedup", "{:.3g}"),
    "interval": lambda row: tables.interval(row | {"rows": 1}),
    "clock": clock_of,
    "file": cite,
}
SUSTAINED = {
    "machine": of("machine"),
    "work": tables.name_line,
    "framework": tables.CELLS["framework"],
    "minutes": lambda row: tables.figure(row["elapsed_seconds"] / 60),
    "burst": lambda row: f"{tables.figure(row['burst'])} {row['unit']}",
    "sustained": of("sustained", "{:.4g}"),
    "ratio": lambda row: tables.figure(row["sustained"] / row["burst"]),
    "W": of("power_watts", "{:.4g}"),
    "degrees C": of("temperature_c", "{:.4g}"),
    "file": cite,
}
WRONG = {
    "device": of("device_name"),
    "work": tables.name_line,
    "framework": of("framework"),
    "published as": lambda row: published_as(row)[0],
    "clock": of("status"),
    "why it is not believed": lambda row: published_as(row)[1],
    "source": cite,
}
