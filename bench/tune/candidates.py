"""What `make best` tries: the settings that may be faster on a device, and the environment of a combination of them.

Settings that the user gave are kept fixed; a comma-separated list restricts the values.
"""

import platform
from dataclasses import replace

from bench.host.environment import ALLOCATOR_VARIABLES, GLIBC_KEEPS, find_allocator
from bench.records.columns import describe_change
from bench.settings import Run, SettingError
from bench.tune.search import Dimension

ALLOCATOR = "ALLOCATOR"  # a dimension that is not a setting: it stands for variables of the environment
# {setting: {value: {device: guessed speedup over float32, eager and so on}}}. The guesses decide the
# order of the trials. A value is tried if it has a guess that is not below the default's.
GUESSES = {
    "PRECISION": {
        "bfloat16": {"cpu": 1.8, "cuda": 4.0, "mps": 1.3},
        "float16": {"cuda": 4.0, "mps": 1.5},
        "mixed_bfloat16": {"cpu": 1.7, "cuda": 3.0, "mps": 1.1},
        "mixed_float16": {"cuda": 3.0, "mps": 1.2},
        "tf32": {"cuda": 2.0},
    },
    "COMPILE": {"1": {"cpu": 1.3, "cuda": 1.3, "mps": 1.1}, "reduce-overhead": {"cuda": 1.3}},
    "MEMORY_FORMAT": {"channels_last": {"cpu": 1.4, "cuda": 1.2, "mps": 1.0}},
}
LISTS = (*GUESSES, "BATCH_SIZE")  # settings that may be a list
# Weights in 16 bits lose small updates: such a training is fast and does not learn.
NOT_IN_TRAINING = ("bfloat16", "float16")


def list_dimensions(run: Run, runs, row):
    """Return the Dimensions of a search, each with at least two values or one that doubles.

    Args:
        run: the default run; its environment has what the user gave.
        runs: what the lists of the environment ask for, as read_runs() returns them.
        row: the default's row, which knows device and batch size.
    """
    device = row["device"]
    dimensions = []
    settings = run.settings.on(device)
    settings = replace(settings, precision=row.get("precision", settings.precision))  # what this card takes by default
    environ = run.environ

    def is_allowed(name, value):  # whether this framework has it in this phase
        if settings.phase == "training" and value in NOT_IN_TRAINING:
            return False
        try:
            return bool(run.with_settings(**{name: value}))
        except SettingError:
            return False

    for name, guesses in GUESSES.items():
        default = settings.cell(name.lower())
        if default is not None and name not in environ:  # None: the workload does not have this setting
            default = str(default)
            guess = guesses.get(default, {}).get(device, 1.0)  # the default's own speedup
            faster = {value: on[device] / guess for value, on in guesses.items() if on.get(device, 0) >= guess}
            allowed = {value: gain for value, gain in faster.items() if is_allowed(name, value)}
            dimensions.append(Dimension(name, {default: 1.0} | allowed))
    for name in filter(environ.__contains__, LISTS):
        values = {str(other.settings.cell(name.lower())): 1.0 for other in runs if name in other.choices}
        dimensions.append(Dimension(name, values))
    if device == "cpu" and keep_memory(environ):
        dimensions.append(Dimension(ALLOCATOR, {"": 1.0, "keep": 1.3}))
    # In prefill and decode a larger batch is another task: more sequences at once.
    if "BATCH_SIZE" not in environ and settings.phase not in ("prefill", "decode"):
        dimensions.append(Dimension("BATCH_SIZE", {str(row["batch_size"]): 1.0}, doubles=True))
    return [each for each in dimensions if len(each.gains) > 1 or each.doubles]


def keep_memory(environ):
    """Return the variables by which glibc keeps freed memory; {} with another library or an allocator of the user."""
    # Without them, equal work takes thousands of page faults a step in one process, and half of them in the next.
    is_fixed = any(name in environ for name in ALLOCATOR_VARIABLES)
    return GLIBC_KEEPS if platform.libc_ver()[0] == "glibc" and not is_fixed else {}


def change_of(dimensions, candidate):
    """Return the variables of the environment that make a candidate of a run."""
    change = {}
    for dimension, value in zip(dimensions, candidate, strict=True):
        if dimension.name == ALLOCATOR:
            if value:
                change |= GLIBC_KEEPS
        elif value:
            change[dimension.name] = value
    return change


def describe_candidate(dimensions, candidate, before=None):
    """Return in words how a candidate differs from another one, or from the default."""
    default = tuple(next(iter(dimension.gains)) for dimension in dimensions)
    cells = []
    for compared in (before or default, candidate):
        change = change_of(dimensions, compared)
        cells.append({name.lower(): text for name, text in change.items()} | {"allocator": find_allocator(change)})
    return describe_change(*cells) or "the default"
