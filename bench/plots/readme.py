"""Write the page results/README.md: short tables of the fastest results, then the plots."""

from collections import Counter

from bench.plots import select
from bench.records import layout
from bench.records.columns import format_number

MAX_LINES = 8  # of a table
MAX_COLUMNS = 6  # kinds of work in a table
ABOUT = (
    "Written by `make plot` from the CSV files in this folder. [index.html](index.html) has all results, own and "
    "published ones: open it in a browser to choose, sort, filter and compare. `MACHINE=... make table` prints all "
    "lines of a machine, with their settings, intervals and flags; `make compare` compares two."
)
FASTEST = (
    "The fastest result of each machine and framework in any settings (batch size, memory format, compilation), on one "
    "device and with resident batches."
)


def write(stored, pictures):
    """Return the page as text: a table for each workload, the plots."""
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
    parts = ["# Results", ABOUT, FASTEST]
    for title, (lines, workload, names) in own.items():
        if len(lines := lines[lines["workload"] == workload]):
            parts += [f"## {title}", list_fastest(lines, names)]
    parts += ["## Plots", *(f"![{path.stem}](plots/{path.name})" for path in pictures)]
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
    cells |= {work: lambda row, work=work: format_number(row["rates"].get(work)) for work in shown}
    cells["measured by"] = lambda row: "others" if row["published"] else "this program"
    left_out = f"\n\n{len(lines) - MAX_LINES} more are in index.html." if len(lines) > MAX_LINES else ""
    return layout.markdown(cells, lines[:MAX_LINES]) + left_out
