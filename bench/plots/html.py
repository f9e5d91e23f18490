"""Write results/index.html: all results in one file, to choose, search and filter in a browser without a network.

Joins page.html, page.css and page.js of this folder with the results of tables.latest(). The page makes text of every
cell: the data contain no "<", and page.js creates only text nodes from them.
"""

import json
import re
from pathlib import Path

import pandas as pd

from bench.records import columns, likeness
from bench.records.columns import FLAGS
from bench.records.results import replace_file

HERE = Path(__file__).parent
# Words for cells, as labels of choices and in a search.
WORDS = likeness.MODELS | {
    "training": "training (also fine-tuning)",
    "bfloat16": "bfloat16 (bf16)",
    "float16": "float16 (fp16)",
    "llm": "language models (llm)",
}
TEXTS = ["workload", "model", "phase", "scope", "precision", "batch_size", "framework", "kind", "machine", "shown"]
TEXTS += ["per", "flags", "source", "note", "cpu_name", "throttle_reasons"]
MEASURES = ["tflops", "bandwidth", "of_peak", "of_bandwidth", "peak_memory_bytes", "power_watts", "joules_per_item"]
MEASURES += ["value", "low", "high", "mean", "step_seconds_median", "step_seconds_p95", "first_step_seconds"]
MEASURES += ["clock_mhz", "processes"]


def write_page(latest, path):
    """Write the page of these results and return its path."""
    page, style, script = ((HERE / f"page.{end}").read_text(encoding="utf-8") for end in ("html", "css", "js"))
    data = json.dumps(collect(latest), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {"style": style, "script": script, "data": data}
    replace_file(path, re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], page).encode())
    return path


def collect(latest):
    """Build the page's data: names of `columns`, cells of `results`, the work it `opens` on, `words` and `flags`."""
    rows = latest.to_dict("records")
    names = pd.Series(map(likeness.work_title, rows), latest.index, str)
    is_same = latest["work"].groupby(names).transform("nunique") == 1  # else other work has the same name
    has_both = latest.groupby("machine")["kind"].transform("nunique") > 1  # figures of its CPU and of its GPU
    kinds = zip(latest["kind"].str.upper().where(has_both, ""), rows, strict=True)
    hows = [(kind, likeness.describe_how(row), row["setup"]) for kind, row in kinds]
    text = latest[TEXTS].assign(
        work=names.where(is_same, latest["work"]),
        how=[", ".join(filter(None, how)) for how in hows],
        status=latest["status"].replace("ok", ""),
        disturbed=(latest["undisturbed"] | latest["published"]).map({True: "", False: "disturbed"}),
        date=latest["timestamp"].str[:10],
        all_setup=[columns.describe_work(row, columns.SETUP) for row in rows],
        versions=[", ".join(f"{name} {row[name]}" for name in columns.VERSIONS if row[name]) for row in rows],
    )
    # The median hides what the mean shows. The value of an operator has another unit.
    is_uneven = latest["flags"].str.contains("uneven") & (latest["value"] == latest["throughput"])
    latest = latest.assign(mean=(latest["items"] / latest["seconds"]).where(is_uneven))
    numbers = latest[MEASURES].map(lambda value: float(f"{value:.4g}")).astype(object)
    cells = text.join(numbers.where(numbers.notna(), None))
    own = cells["work"][(cells["source"] == "") & (cells["phase"] != "")]
    opens = cells["work"][cells["work"].isin(own)].mode()  # that of most results, of models that were measured here
    data = {"columns": list(cells), "results": cells.to_numpy().tolist(), "opens": next(iter(opens), "")}
    return data | {"words": WORDS, "flags": FLAGS}
