"""Read results/ and choose the lines that the plots and the card show, as tables.latest() gives them."""

import functools

import pandas as pd

from bench.records import columns
from bench.records.likeness import USUAL, class_of, class_of_model
from bench.settings import DECLARED, SettingError, parse_settings, unmixed

WHO = ["published", "machine", "kind", "framework"]
LEAST = 2  # works that a card needs
# Settings that a line of the standard set chooses, with its `settings`. All others have their defaults.
CHOSEN = ("framework", "workload", "model", "phase", "scope", "precision", "batch_size")
DEFAULTS = [name for name in columns.WORK if name in DECLARED and name not in CHOSEN]


def select_valid(lines):
    """Select the results of one device that were timed with the right clock and are possible."""
    is_possible = ~lines["flags"].str.contains("implausible")
    return lines[(lines["world_size"] == "1") & (lines["status"] == "ok") & is_possible]


def rates(lines, **cells):
    """Select the lines that have a rate and these cells."""
    return lines[(lines[list(cells)] == pd.Series(cells)).all(axis=1) & lines["value"].notna()]


@functools.cache
def cells_of(line, device, framework, precision, compiles):
    """Return the cells that a row of a line of the set has: {column: text}; {} if the framework does not have it.

    The set leaves most settings at their defaults, which differ between frameworks: parse_settings() knows them.
    """
    if class_of_model(precision) not in line.precisions:
        return {}
    environ = {"FRAMEWORK": framework} | line.environ(device, framework, precision, compiles)
    try:
        settings = parse_settings(line.workload, environ)
    except SettingError:
        return {}
    cells = {name: settings.cell(name) for name in DEFAULTS}
    cells = {name: str(value) for name, value in cells.items() if value is not None}
    cells = USUAL.get(line.workload, {}) | cells
    return cells | {"precision": line.precision(precision), "weight_bits": str(settings.weight_bits or "")}


def compiles_on(row):
    """Return whether the set compiles on the device of an own row: not on AMD's cards, which have no driver there."""
    return row["device"] == "cuda" and row["driver"] != ""


def of_line(rows, line):
    """Return {class of precision: the latest row} of the rows of a line, in the order of its precisions.

    A row has the settings of the line; a blank cell is the default.

    Args:
        rows: dicts, of one machine and framework.
    """
    work = (line.workload, line.model, line.phase, str(line.batch_size))
    latest = {}
    for row in rows:
        is_same = work == (row["workload"], row["model"], row["phase"], row["batch_size"])
        if is_same and line.suits(row["device"], row["framework"]):
            cells = cells_of(line, row["device"], row["framework"], unmixed(row["precision"]), compiles_on(row))
            if cells and all(row[name] in ("", text) for name, text in cells.items()):
                latest[class_of(row)] = row
    return {name: latest[name] for name in (*line.precisions, "tf32") if name in latest}


def describe_settings(line, row):
    """Describe the settings of a row of the set, without precision and memory format: "training, batch 64"."""
    names = ["phase", *(name.lower() for name, _ in line.settings if name not in ("WEIGHT_BITS", "MEMORY_FORMAT"))]
    if line.batch_size > 1:
        names.insert(1, "batch_size")
    compiled = ["compiled"] if row["compile"] not in ("", "0") else []
    return ", ".join([*columns.words_of(row, names).values(), *compiled])
