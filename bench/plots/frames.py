"""Choose the results that tables, cards and pictures show, from the lines of tables.latest()."""

import functools

import pandas as pd

from bench.records import columns
from bench.records.likeness import USUAL, model_precision_class, precision_class
from bench.settings import DECLARED, SettingError, read_settings
from bench.workloads.standard_set import STANDARD_SET

CHOSEN = ["workload", "model", "phase", "batch_size"]  # by each line of the standard set
# Settings of a run. Those that a line does not set have their defaults.
SETTINGS = [name for name in columns.WORK if name in DECLARED and name not in ("framework", "scope", "precision")]


def select_valid(lines):
    """Select the results of one device with the status ok."""
    return lines[(lines["world_size"] == "1") & (lines["status"] == "ok")]


@functools.cache
def cells_of(line, device, framework, precision, compiles):
    """Return the cells that a row of a line of the set has: {column: text}; {} if the framework does not have it.

    The set leaves most settings at their defaults, which differ between frameworks: read_settings() knows them.
    """
    if model_precision_class(precision) not in line.precisions or not line.suits(device, framework):
        return {}
    environ = {"FRAMEWORK": framework} | line.environ(device, framework, precision, compiles)
    try:
        settings = read_settings(line.workload, environ)
    except SettingError:
        return {}
    cells = {name: str(settings.cell(name)) for name in SETTINGS if settings.cell(name) is not None}
    cells = {"workload": line.workload, "weight_bits": ""} | USUAL.get(line.workload, {}) | cells
    return cells | {"precision": line.precision(precision)}


def select_set(lines):
    """List the results of the standard set, in its order: of each machine, framework and precision the latest one.

    They are dicts with `line`, that of the set, and `class`, that of the precision. Besides those on resident batches
    there are whole pipelines with a bottleneck. A blank cell is the default.
    """
    chosen = [(line.workload, line.model, line.phase, str(line.batch_size)) for line in STANDARD_SET]
    lines = lines[~lines["published"] & ((lines["scope"] == "device") | (lines["bottleneck"] != ""))]
    lines = lines[pd.MultiIndex.from_frame(lines[CHOSEN]).isin(chosen)]
    latest = {}
    for row in lines.to_dict("records"):
        compiles = row["device"] == "cuda" and row["driver"] != ""  # AMD's cards have none there
        how = row["device"], row["framework"], row["precision"].removeprefix("mixed_"), compiles
        for place, line in enumerate(STANDARD_SET):
            cells = cells_of(line, *how)
            if cells and all(row[name] in ("", text) for name, text in cells.items()):
                order = (*line.precisions, "tf32").index(precision_class(row))
                key = row["machine"], row["framework"], row["device"], row["scope"], place, order
                latest[key] = row | {"line": line, "class": precision_class(row)}
    return [latest[key] for key in sorted(latest)]


def describe_settings(row):
    """Describe the settings of a row of the set, without precision and memory format: "training, batch 64"."""
    line = row["line"]
    names = ["phase", *(name.lower() for name, _ in line.settings if name not in ("WEIGHT_BITS", "MEMORY_FORMAT"))]
    if line.batch_size > 1:
        names.insert(1, "batch_size")
    compiled = "compiled" if row["compile"] not in ("", "0") else ""
    latency = "latency" if line.is_latency else ""
    return ", ".join(filter(None, [columns.describe_work(row, names), compiled, latency]))
