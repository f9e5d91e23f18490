"""What `make best` tries: the settings that may be faster on a device, and the environment of a combination of them.

Settings that the user gave are kept fixed; a comma-separated list restricts the values.
"""

import ctypes.util
import platform
from dataclasses import replace

import psutil

from bench.host.environment import ALLOCATOR_VARIABLES, GLIBC_KEEPS, find_allocator
from bench.records.columns import describe_change
from bench.settings import FRAMEWORKS, SettingError, refuse_contradictions, usable_cores
from bench.tune.search import Dimension

ALLOCATOR = "ALLOCATOR"  # a dimension that is not a setting: it stands for variables of the environment
LAYOUT = "TORCHINDUCTOR_LAYOUT_OPTIMIZATION"  # likewise: 0 keeps Inductor from forcing channels_last
# {setting: {value: {device: guessed speedup over float32, eager and so on}}}. A value is tried on the devices that have
# a guess, which only decides the order of the trials.
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
LATE = ("max-autotune", "max-autotune-no-cudagraphs")  # minutes of compilation: only for the fastest candidates
BFLOAT16_CAPABILITY = 8.0  # below, torch.compile runs bfloat16 eagerly, or emulates it
# Weights in 16 bits lose small updates: such a training is fast and does not learn.
NOT_IN_TRAINING = ("bfloat16", "float16")
PRELOADED = ("jemalloc", "tcmalloc", "mimalloc")
FIXED = ("RUNS", "EPOCHS", "SUSTAIN", "NUM_IMAGES", "SCOPE")


def refuse_unusable(environ, changes):
    """Raise SettingError for settings that a search cannot hold fixed: other quantities, lists of other settings."""
    for name in FIXED:
        if name in environ and environ[name] != "device":
            raise SettingError(f"{name}={environ[name]!r} does not suit `make best`, which measures one rate: unset it")
    for name in sorted(set().union(*changes) - {*GUESSES, "BATCH_SIZE"}):
        if name in environ:
            raise SettingError(f"{name}={environ[name]!r} must be one value in `make best`: run it once for each")


def list_dimensions(settings, environ, changes, row, card=None):
    """Return the Dimensions of a search, each with at least two values or one that doubles.

    Args:
        settings: of the default.
        changes: list_runs() of the workload, which has the lists of the environment.
        row: of a run of the default, which knows device, threads and batch size.
        card: the Card, or None if it is unknown.
    """
    device, settings, found = row["device"], settings.on(row["device"]), []
    for name, guesses in GUESSES.items():
        first = getattr(settings, name.lower())
        if name in environ:
            values = dict.fromkeys(change[name].lower() for change in changes if name in change)
            gains = {value: guesses.get(value, {}).get(device, 1.0) for value in values}
            found.append(Dimension(name, gains))
        elif first:  # else the workload does not have this setting
            own = guesses.get(first, {}).get(device, 1.0)
            gains = {value: on[device] / own for value, on in guesses.items() if on.get(device, 0) >= own}
            gains = {first: 1.0} | {v: gain for v, gain in gains.items() if is_sensible(settings, name, v, row, card)}
            found.append(Dimension(name, gains, late=LATE))
    is_trained = settings.framework == "torch" and settings.memory_format and settings.phase == "training"
    if device == "mps" and is_trained and LAYOUT not in environ:  # Inductor's own choice, channels_last, is slow there
        found.append(Dimension(LAYOUT, {"": 1.0, "0": 2.0}))
    is_glibc, is_fixed = platform.libc_ver()[0] == "glibc", any(name in environ for name in ALLOCATOR_VARIABLES)
    if device == "cpu" and is_glibc and not is_fixed:
        others = {library: 1.2 for name in PRELOADED if (library := ctypes.util.find_library(name))}
        found.append(Dimension(ALLOCATOR, {"": 1.0, "keep": 1.3} | others))
    sets_threads = "threads" not in FRAMEWORKS[settings.framework].lacks
    if device == "cpu" and row["num_threads"] and sets_threads and "NUM_THREADS" not in environ:
        found.append(Dimension("NUM_THREADS", dict.fromkeys(list_threads(str(row["num_threads"])), 1.0)))
    if "BATCH_SIZE" in environ:
        given = dict.fromkeys(change["BATCH_SIZE"] for change in changes if "BATCH_SIZE" in change)
        found.append(Dimension("BATCH_SIZE", dict.fromkeys(given, 1.0)))
    elif settings.phase not in ("prefill", "decode"):  # there a larger batch is another task: more sequences at once
        found.append(Dimension("BATCH_SIZE", {str(row["batch_size"]): 1.0}, doubles=True))
    return [each for each in found if len(each.gains) > 1 or each.doubles]


def is_sensible(settings, name, value, row, card):
    """Return whether a value may be faster for this framework, phase and card, and is right at all."""
    if settings.phase == "training" and value in NOT_IN_TRAINING:
        return False
    # XLA, which TensorFlow's Metal plug-in does not have.
    if settings.framework == "tensorflow" and row["device"] == "mps" and (name, value) == ("COMPILE", "1"):
        return False
    try:
        refuse_contradictions(replace(settings, **{name.lower(): value}), {})
    except SettingError:
        return False
    return True


def is_possible(settings, dimensions, candidate, card=None):
    """Return whether a combination makes sense, even if each of its values does."""
    chosen = {"COMPILE": settings.compile, "PRECISION": settings.precision}
    chosen |= {dimension.name: value for dimension, value in zip(dimensions, candidate, strict=True)}
    if chosen["COMPILE"] == "0":
        return not chosen.get(LAYOUT)  # which only the compiler reads
    return not ("bfloat16" in str(chosen["PRECISION"]) and card and card.capability < BFLOAT16_CAPABILITY)


def list_threads(own):
    """Return the framework's own number of threads, one per physical core and one per logical CPU, without repeats."""
    logical, all_logical = usable_cores(), psutil.cpu_count() or 1
    physical = logical * (psutil.cpu_count(logical=False) or all_logical) // all_logical
    return dict.fromkeys([own, *(str(count) for count in (physical, logical) if count)])


def change_of(dimensions, candidate):
    """Return the variables of the environment that make a candidate of a run."""
    change = {}
    for dimension, value in zip(dimensions, candidate, strict=True):
        if dimension.name == ALLOCATOR:
            change |= {"": {}, "keep": GLIBC_KEEPS}.get(value, {"LD_PRELOAD": value})
        elif value:
            change[dimension.name] = value
    return change


def describe(dimensions, candidate):
    """Return the difference between a candidate and the default, in words."""
    default = tuple(dimension.values[0] for dimension in dimensions)
    return describe_difference(dimensions, default, candidate) or "the default"


def describe_difference(dimensions, before, after):
    """Return the difference between two candidates, in words."""
    return describe_change(*(cells_of(change_of(dimensions, each)) for each in (before, after)))


def cells_of(change):
    """Return the cells of a row that a change of the environment fills."""
    return {name.lower(): text for name, text in change.items()} | {"allocator": find_allocator(change) or ""}
