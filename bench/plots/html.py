"""Write results/index.html: all results in one file, to choose, sort and filter in a browser without a network.

Joins page.html, page.css and page.js of this folder with the lines of tables.latest(). The page makes text of every
cell: the data contain no "<", and page.js creates only text nodes from them.
"""

import json
import re
from pathlib import Path

import pandas as pd

from bench.records import columns, tables
from bench.records.columns import FLAGS, format_number
from bench.records.results import replace_file
from bench.timing.measure import MAX_UNEVEN
from bench.workloads.workload import BYTES

HERE = Path(__file__).parent
# Words for a status that is not ok.
STATUSES = {
    "cpu_time": "the source timed the CPU's seconds instead of wall seconds: not a valid timing",
    "unsynchronised": "the source stopped its clock before the device had finished: not a valid timing",
}
# What makes an item larger: rates of different sizes are never in one plot.
SIZE = ("image_size", "sequence_length", "prompt_tokens", "depth", "epoch", "world_size", "nodes")
WEIGHTS = ("lora_rank", "weight_bits")  # what makes other work of the same items
USUAL = {"image": ("image_size", "224"), "transformer": ("sequence_length", "128")}  # also if a source states none
CHOSEN = ("framework", "workload", "model", "phase", "scope", "precision", "batch_size")
SETTINGS = [name for name in columns.WORK if name not in (*CHOSEN, *SIZE, *WEIGHTS)]
VERSIONS = {"python": "Python", "os": "", "driver": "driver", "method_version": "method", "commit": "commit"}
TEXTS = [*CHOSEN, "kind", "machine", "shown", "per", "flags", "source", "note", "cpu_name", "throttle_reasons"]
MEASURES = ["tflops", "bandwidth", "of_peak", "of_bandwidth", "peak_memory_bytes", "power_watts", "joules_per_item"]
MEASURES += [*tables.RATE, "mean", "step_seconds_median", "step_seconds_p95", "first_step_seconds", "clock_mhz"]
MEASURES += ["processes", "computers"]


def write_page(lines, path):
    """Write the page of these lines and return its path."""
    page, style, script = ((HERE / f"page.{end}").read_text(encoding="utf-8") for end in ("html", "css", "js"))
    data = json.dumps(collect(lines), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {"style": style, "script": script, "data": data}
    replace_file(path, re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], page).encode())
    return path


def collect(lines):
    """Build the page's data: the names of its `columns`, a list of cells for each line, and the words of `flags`."""
    order = columns.COLUMNS["workload"].holds
    lines = lines.sort_values("workload", key=lambda names: names.map(order.index), kind="stable")
    rows = lines.to_dict("records")
    text = lines[TEXTS].assign(
        model=lines["model"].mask(lines["published"] & (lines["workload"] == "matmul"), "matmul-peak"),
        status=lines["status"].replace("ok", ""),
        date=lines["timestamp"].str[:10],
        size=[say_size(row) for row in rows],
        weights=[say_weights(row) for row in rows],
        settings=[say_settings(row) for row in rows],
        all_setup=[columns.describe_setup(row) for row in rows],
        versions=[say_versions(row) for row in rows],
        stated=["" if row["value"] > 0 else say_seconds(row) for row in rows],
    )
    # The median hides what the mean shows. The value of an operator has another unit.
    is_uneven = lines["flags"].str.contains("uneven") & (lines["value"] == lines["throughput"])
    mean = lines["items"] / lines["seconds"]
    lines = lines.assign(mean=mean.where(is_uneven & (mean < (1 - MAX_UNEVEN) * lines["value"])))
    numbers = lines[MEASURES].map(lambda value: None if pd.isna(value) else float(f"{value:.4g}")).astype(object)
    cells = text.join(numbers.where(numbers.notna(), None))
    return {"columns": list(cells), "lines": cells.to_numpy().tolist(), "flags": FLAGS | STATUSES}


def say_seconds(row):
    """Describe the seconds of a source that states no rate."""
    if pd.isna(row["seconds"]):
        return f"{format_number(row['step_seconds_median'])} s per step"
    items = f" for {row['items']:,.0f} items" if pd.notna(row["items"]) else ""
    return f"{format_number(row['seconds'])} s{items}"


def say_size(row):
    """Describe what makes an item of this line larger than another one, for the choice of comparable lines."""
    name, usual = USUAL.get(row["workload"], ("image_size", ""))
    words = ", ".join(columns.words_of(row | {name: row[name] or usual}, SIZE).values())
    return words.replace("devices", "processes") if row["kind"] == "cpu" else words  # they share its cores


def say_weights(row):
    """Describe which weights are trained, and quantised weights, which are other work than the program's precisions."""
    words = list(columns.words_of(row, WEIGHTS).values())
    if row["workload"] == "llm" and row["precision"] not in BYTES:
        words.append(row["precision"])
    return ", ".join(words)


def say_settings(row):
    """Describe the work's other settings, and the setup if the machine has several."""
    published_matmul = row["model"] if row["published"] and row["workload"] == "matmul" else ""
    return ", ".join(filter(None, [published_matmul, *columns.words_of(row, SETTINGS).values(), row["setup"]]))


def say_versions(row):
    """Describe the versions of a line."""
    known = [f"{words} {row[name]}".strip() for name, words in VERSIONS.items() if row[name]]
    return ", ".join([f"{row['framework']} {row['framework_version']}".strip(), *known])
