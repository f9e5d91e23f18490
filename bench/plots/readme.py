"""Write results/README.md: short tables of the fastest results, the plots and the cards."""

from bench.plots import select
from bench.records import layout
from bench.records.columns import format_number

MAX_LINES = 8  # of a table
MAX_COLUMNS = 6  # kinds of work in a table
ABOUT = (
    "Written by `make plot` from the CSV files in this folder. [index.html](index.html) has all results, own and "
    "published ones: open it in a browser to choose, sort and filter. `make compare` compares two machines."
)
FASTEST = (
    "The fastest result of each machine and framework in any settings (batch size, memory format, compilation), on one "
    "device and with resident batches."
)


def write(stored, paths):
    """Return the page as text: a table for each workload, the plots, the cards."""
    found = stored.believed[stored.believed["value"].notna()]
    resident = select.resident(found)
    tables = {
        "Image models of 224 x 224 pixels, images/s": (resident, "image", ["model", "phase"]),
        "Multilayer perceptrons, images/s": (resident, "mlp", ["model", "phase"]),
        "Transformers, 128 tokens, sequences/s": (resident, "transformer", ["model", "phase"]),
        "Language models, tokens/s of one sequence": (select.generation(found), "llm", ["model", "phase", "precision"]),
        "Best matmul, TFLOP/s": (select.matmul_peaks(found), "matmul", ["precision"]),
        "Memory bandwidth, GB/s": (found, "bandwidth", ["model"]),
    }
    parts = ["# Results", ABOUT, FASTEST]
    for title, (lines, workload, names) in tables.items():
        lines = lines[(lines["workload"] == workload) & lines["phase"].isin(select.WHOLE)]
        if len(lines):
            parts += [f"## {title}", list_fastest(lines.assign(work=lines[names].agg(" ".join, axis=1)))]
    pictures = [f"![{path.stem}]({path.parent.name}/{path.name})" for path in paths]
    return "\n\n".join([*parts, "## Plots and cards", *pictures]) + "\n"


def list_fastest(lines):
    """Lay out a line for each device, kind and framework, a column for each `work`: own devices and work first."""
    count = lines.groupby("work").agg(other=("published", "all"), n=("shown", "nunique"))
    shown = count.sort_values(["other", "n"], ascending=[True, False]).index[:MAX_COLUMNS]
    lines = lines[lines["work"].isin(shown)]
    by = ["published", "shown", "kind", "framework"]
    wide = lines.pivot_table(index=by, columns="work", values="value", aggfunc="max").reset_index()
    wide = wide.assign(top=wide[shown].max(axis=1)).sort_values(["published", "top"], ascending=[True, False])
    cells = {"device": lambda row: row["shown"]} | {name: lambda row, name=name: row[name] for name in by[2:]}
    cells |= {work: lambda row, work=work: format_number(row[work]) for work in shown}
    cells["measured by"] = lambda row: "others" if row["published"] else "this program"
    left_out = f"\n\n{len(wide) - MAX_LINES} more are in index.html." if len(wide) > MAX_LINES else ""
    return layout.markdown(cells, wide[:MAX_LINES].to_dict("records")) + left_out
