"""Write the page results/README.md: the pictures, then short tables of the fastest figures."""

from collections import Counter

import pandas as pd

from bench.plots import select
from bench.records import layout, tables

MAX_LINES = 16  # of a table
MAX_COLUMNS = 6  # kinds of work in a table
ABOUT = (
    "Written by `make plot` from the CSV files in this folder. `MACHINE=... make table` prints all lines of a machine, "
    "with their settings, intervals and flags; `make compare` compares two."
)
FASTEST = "The fastest settings of each machine and framework, with one device and resident batches."
# The benchmarks that this project continues: {part of the source's address: name}.
OLDER = {
    "particle1331/M1-tensorflow-benchmark/": "M1-tensorflow-benchmark",
    "tlkh/tf-metal-experiments/": "tf-metal-experiments",
    "How Fast Can M1 Chip Run Tensorflow": "How Fast Can M1 Chip Run Tensorflow",
    "karimamunaff/apple-silicon-pytorch/": "apple-silicon-pytorch",
    "gau-nernst/benchmark-pytorch-mps/": "benchmark-pytorch-mps",
}
OLDER_SAYS = (
    "As published. If the clock was wrong, it is named: those figures are not valid timings and are in no picture. "
    "[published.md](../docs/published.md) describes how each source timed. The last column has the fastest measurement "
    "by this program with the same model, phase and precision."
)


def write(stored, pictures):
    """Return the page as text: the pictures, a table for each workload, the figures of the older benchmarks."""
    found = stored.believed[stored.believed["value"].notna()]
    resident = select.resident(found)
    own = {
        "Image models of 224 x 224 pixels, images/s": (resident, "image", ["model", "phase"]),
        "Multilayer perceptrons, images/s": (resident, "mlp", ["model", "phase"]),
        "Transformers, 128 tokens, sequences/s": (resident, "transformer", ["model", "phase"]),
        "Language models, tokens/s of one sequence": (select.generation(found), "llm", ["model", "phase", "precision"]),
        "Best matmul, TFLOP/s": (select.matmul_peaks(found), "matmul", ["precision"]),
        "Convolutions, TFLOP/s": (found, "convolution", ["model", "precision"]),
        "Memory bandwidth, GB/s": (select.bandwidths(found), "bandwidth", ["model"]),
    }
    parts = ["# Results", ABOUT, *(f"![{path.stem}](plots/{path.name})" for path in pictures), FASTEST]
    for title, (lines, workload, names) in own.items():
        if len(lines := lines[lines["workload"] == workload]):
            parts += [f"## {title}", list_fastest(lines, names)]
    stated = stored.cited[~stored.cited["note"].str.contains("; derived;", regex=False)]  # by the source itself
    older = pd.concat([stated[stated["source"].str.contains(part, regex=False)] for part in OLDER])
    if len(older):
        parts += ["## Five older benchmarks", OLDER_SAYS, list_older(older, resident)]
    return "\n\n".join(parts) + "\n"


def list_fastest(found, names):
    """Lay out the fastest rates: a line for each machine, kind of device and framework, a column for each work.

    Args:
        found: lines of one unit.
        names: the columns that tell one work from another. Work that this program measured comes first.
    """
    found = select.best(found[found["phase"].isin(["", *select.WHOLE])], *names)
    found = found.assign(work=found[names].agg(" ".join, axis=1))
    count, own = Counter(found["work"]), set(found.loc[~found["published"], "work"])
    shown = sorted(count, key=lambda work: (work not in own, -count[work]))[:MAX_COLUMNS]
    found = found[found["work"].isin(shown)]
    lines = [
        dict(zip(select.WHO, who, strict=True), rates=dict(zip(group["work"], group["value"], strict=True)))
        for who, group in found.groupby(select.WHO, sort=False)
    ]
    lines.sort(key=lambda line: (line["published"], -max(line["rates"].values())))
    cells = {name: lambda row, name=name: row[name] for name in ("machine", "kind", "framework")}
    cells |= {work: lambda row, work=work: tables.figure(row["rates"].get(work)) for work in shown}
    cells["measured by"] = lambda row: "others" if row["published"] else "this program"
    left_out = f"\n\n{len(lines) - MAX_LINES} more are in the CSV files." if len(lines) > MAX_LINES else ""
    return layout.markdown(cells, lines[:MAX_LINES]) + left_out


def list_older(older, resident):
    """Lay out the figures of the older benchmarks, next to the fastest own one of the same work."""
    work = ["workload", "model", "phase", "precision"]
    own = resident[~resident["published"]].sort_values("value", ascending=False).drop_duplicates(work)
    fastest = {tuple(row[name] for name in work): row for row in own.to_dict("records")}

    def describe_own(row):
        found = fastest.get(tuple(row[name] for name in work))
        return f"{tables.describe_rate(found)} ({found['machine']}, {found['framework']})" if found else ""

    cells = {
        "benchmark": lambda row: next(name for part, name in OLDER.items() if part in row["source"]),
        "device": lambda row: row["device_name"],
        "work": tables.name_line,
        "framework": lambda row: row["framework"],
        "published": tables.describe_rate,
        "clock": lambda row: row["status"].replace("ok", ""),
        "here": describe_own,
    }
    return layout.markdown(cells, older.to_dict("records"))
