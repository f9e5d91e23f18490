"""What `make best` tries: the settings that are worth a try on a device, and a candidate's changes of the environment.

Settings that the user gave are held fixed; a comma list restricts the values.
"""

import ctypes.util
import platform

import psutil

from bench.machine.environment import ALLOCATOR_VARIABLES, GLIBC_KEEPS, find_allocator
from bench.rows.columns import describe_change
from bench.search import Dimension
from bench.settings import COMPILE_MODES, FRAMEWORKS, SettingError, usable_cores

ALLOCATOR = "ALLOCATOR"  # a dimension that is no setting: variables of the environment
# {setting: {value: {device: guess}}}. A value is tried where there is a guess of what it gains over the default; the
# guess decides the order of the first looks alone.
GUESSES = {
    "PRECISION": {
        "bfloat16": {"cpu": 1.8, "cuda": 4.0, "mps": 1.3},
        "float16": {"cuda": 4.0, "mps": 1.5},
        "mixed_bfloat16": {"cpu": 1.7, "cuda": 3.0, "mps": 1.1},
        "mixed_float16": {"cuda": 3.0, "mps": 1.2},
        "tf32": {"cuda": 2.0},
    },
    "COMPILE": {
        "1": {"cpu": 1.3, "cuda": 1.3, "mps": 1.1},
        "reduce-overhead": {"cuda": 1.3},
        "max-autotune": {"cuda": 1.4},
        "max-autotune-no-cudagraphs": {"cuda": 1.3},
    },
    "MEMORY_FORMAT": {"channels_last": {"cpu": 1.4, "cuda": 1.2, "mps": 1.0}},
}
# Weights of 16 bits alone lose small updates: such a training is fast and does not learn.
NOT_IN_TRAINING = ("bfloat16", "float16")
PRELOADED = ("jemalloc", "tcmalloc", "mimalloc")
FIXED = ("RUNS", "EPOCHS", "SUSTAIN", "NUM_IMAGES", "SCOPE")


def refuse_unusable(environ, changes):
    """Raise SettingError for what a search cannot hold fixed: other quantities, and lists of other settings."""
    for name in FIXED:
        if name in environ and environ[name] != "device":
            raise SettingError(f"{name}={environ[name]!r} is no part of `make best`, which measures one rate: unset it")
    if environ.get("BATCH_SIZE") == "auto":
        raise SettingError("BATCH_SIZE='auto' is what `make best` does anyway: unset it")
    for name in sorted(set().union(*changes) - {*GUESSES, "BATCH_SIZE"}):
        if name in environ:
            raise SettingError(f"{name}={environ[name]!r} must be one value in `make best`: run it once for each")


def list_dimensions(settings, environ, changes, row):
    """The Dimensions of a search, each with at least two values or one that doubles.

    Args:
        settings: of the default.
        changes: list_runs() of the workload, which has the lists of the environment.
        row: of a run of the default, which knows device, threads and batch size.
    """
    found = []
    for name, guesses in GUESSES.items():
        first = getattr(settings, name.lower())
        if name in environ:
            values = dict.fromkeys(change[name] for change in changes if name in change)
            gains = {value: guesses.get(value, {}).get(row["device"], 1.0) for value in values}
        elif not first:  # a setting that the workload does not have
            continue
        else:
            gains = {first: 1.0} | {value: on[row["device"]] for value, on in guesses.items() if row["device"] in on}
            gains = {value: gain for value, gain in gains.items() if is_sensible(settings, name, value, row["device"])}
        found.append(Dimension(name, gains))
    found += [allocators(environ, row), threads(environ, row), batches(environ, changes, row)]
    return [each for each in found if len(each.gains) > 1 or each.doubles]


def is_sensible(settings, name, value, device):
    if settings.framework == "torch":
        return settings.phase == "inference" or value not in NOT_IN_TRAINING
    if settings.phase == "training" and value in NOT_IN_TRAINING:
        return False
    is_impossible = value in COMPILE_MODES or (name == "COMPILE" and value == "1" and device == "mps")
    return not is_impossible and (name != "MEMORY_FORMAT" or value in FRAMEWORKS[settings.framework].memory_formats)


def allocators(environ, row):
    """glibc as it is, glibc keeping its memory, and others that are installed; on a Linux CPU only."""
    is_fixed = any(name in environ for name in ALLOCATOR_VARIABLES)
    if is_fixed or row["device"] != "cpu" or platform.libc_ver()[0] != "glibc":
        return Dimension(ALLOCATOR, {})
    others = {library: 1.2 for name in PRELOADED if (library := ctypes.util.find_library(name))}
    return Dimension(ALLOCATOR, {"": 1.0, "keep": 1.3} | others)


def threads(environ, row):
    """The framework's own number of threads, one a logical CPU and one a physical core, where they differ."""
    own, logical = str(row["num_threads"] or ""), usable_cores()
    if "NUM_THREADS" in environ or row["device"] != "cpu" or not own:
        return Dimension("NUM_THREADS", {})
    physical = logical * (psutil.cpu_count(logical=False) or 1) // (psutil.cpu_count() or 1)
    return Dimension("NUM_THREADS", {own: 1.0} | {str(n): 1.0 for n in (physical, logical) if n and str(n) != own})


def batches(environ, changes, row):
    """The default's batch size, which may double; the list that was given; or nothing where it is fixed."""
    given = dict.fromkeys(change["BATCH_SIZE"] for change in changes if "BATCH_SIZE" in change)
    if "BATCH_SIZE" in environ:
        return Dimension("BATCH_SIZE", dict.fromkeys(given, 1.0))
    return Dimension("BATCH_SIZE", {str(row["batch_size"]): 1.0}, doubles=True)


def change_of(dimensions, candidate):
    """The variables of the environment that make a candidate of a run."""
    change = {}
    for dimension, value in zip(dimensions, candidate, strict=True):
        if dimension.name == ALLOCATOR:
            change |= {"": {}, "keep": GLIBC_KEEPS}.get(value, {"LD_PRELOAD": value})
        else:
            change[dimension.name] = value
    return change


def describe(dimensions, candidate):
    """What a candidate changes in the default, in words."""
    default = tuple(dimension.values[0] for dimension in dimensions)
    before, after = (cells_of(change_of(dimensions, each)) for each in (default, candidate))
    return describe_change(before, after) or "the default"


def cells_of(change):
    """The cells of a row that a change of the environment fills."""
    return {name.lower(): text for name, text in change.items()} | {"allocator": find_allocator(change) or ""}
