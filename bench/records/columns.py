"""Read the columns of a results file, which columns.csv declares, each once; declare the flags.

Each column has a role. Work: rows are comparable only if these agree; setup: settings of the machine that change the
speed; version: software and method; identity: which row of which machine; result: what was measured. It holds text, or
a number, which is read as a float. An empty cell means the value in `blank`, or if that is empty, unknown. Times are
wall seconds. `words` is the pattern of a value in a text, with {} for it; a column without is in no text.
"""

import csv
from pathlib import Path

from bench import settings

SCHEMA = 2  # raised if the meaning of a column changes, but not for a new column
WORKLOADS = (*settings.WORKLOADS, "matmul", "convolution", "bandwidth")  # in the order of tables

with Path(__file__).with_suffix(".csv").open(newline="", encoding="utf-8") as lines:
    COLUMNS = {row["column"]: row for row in csv.DictReader(lines)}
# Columns whose words depend on the value; "" means none.
WORDS = {
    "power_source": {"battery": "on battery"},
    "low_power_mode": {"1": "in low-power mode"},
    "scope": {"device": "", "epoch": ""},
    "compile": {"0": "", "1": "compiled"} | {mode: f"compiled ({mode})" for mode in settings.COMPILE_MODES},
    "data": {"synthetic": "", "cifar10": "cifar10 images", "jpeg": "files of quality 90", "jpeg_q96": ""},
}

# A flag marks a row to check before it is used. Each text is a reason, a colon and the fix.
FLAGS = {
    "uneven": "some windows stalled, so the mean is over 5 % below the median: quote the mean",
    "page_faults": "over 5 % of the time is spent reallocating memory in each step: unset LD_PRELOAD and the "
    "variables MALLOC_...",
    "recompiled": "the framework recompiled during the measurement: a larger MAX_SECONDS reduces the effect",
    "contended": "other programs used more than 10 % of the CPU time, or used the GPU before the run: close them",
    "barrier_shows": "synchronisation takes more than 5 % of the time: a larger BATCH_SIZE reduces its share",
    "short": "few batches were measured, so those prepared in advance may inflate the rate: set what the note says",
    "swapping": "the system swapped during the measurement: choose a smaller BATCH_SIZE or MODEL",
    "throttled": "the system reports that heat or power slows the device: cool it, or plug it in",
    "not_finite": "the loss is inf, NaN, or ten times the first: choose another PRECISION",
}
DISTURBING = "contended|swapping"  # pattern of flags; but not throttled, which is normal on a Mac without a fan

NUMBERS = [name for name, column in COLUMNS.items() if column["holds"] == "number"]
# The names of the columns with a role.
WORK, SETUP, VERSIONS = (
    tuple(name for name, column in COLUMNS.items() if column["role"] == role) for role in ("work", "setup", "version")
)


def describe_work(row, names=WORK):
    """Describe a row's work, or other columns, without usual values: "resnet50, training, float32, batch 16, sgd"."""
    found = []
    for name in names:
        text = "" if row.get(name) is None else str(row[name])
        column = COLUMNS[name]
        if text and text != column["blank"]:
            worded = WORDS[name].get(text, text) if name in WORDS else column["words"].format(text)
            found.append(worded.removesuffix("s") if text == "1" else worded)
    return ", ".join(filter(None, found))


def format_number(value, pattern="{:.4g}"):
    """Format a number with all digits of a large one written out; blank if it is unknown."""
    if value in (None, "") or value != value:  # NaN is unequal to itself
        return ""
    text = pattern.format(float(value))
    return f"{float(text):.0f}" if "e+" in text else text


def format_ratio(value, digits=3):
    """Format a ratio with all significant digits: "1.00"; blank if it is unknown."""
    return format_number(value, f"{{:#.{digits}g}}").removesuffix(".")
