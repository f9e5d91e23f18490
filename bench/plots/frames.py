"""Choose the results that tables, cards and pictures show, from those of tables.latest()."""

import functools

from bench.records.columns import WORK
from bench.records.likeness import USUAL, describe_settings, precision_class
from bench.settings import DECLARED, SettingError, read_settings
from bench.workloads.standard_set import SIXTEEN, SIXTEEN_BITS, STANDARD_SET

SHOWN = ("float32", *SIXTEEN)  # precisions of the best matmul that are shown
CHOSEN = ("workload", "model", "phase", "batch_size")  # by each benchmark of the set
# Settings of a run. Those that a benchmark does not set have their defaults.
SETTINGS = [name for name in WORK if name in DECLARED and name not in ("framework", "scope", "precision")]


def select_valid(latest):
    """Select the results of one device with the status ok."""
    return latest[(latest["world_size"] == "1") & (latest["status"] == "ok")]


@functools.cache
def list_cells(device, framework, precision, compiles):
    """Return {CHOSEN cells: [(a benchmark of the set, the cells of its rows, those that have defaults)]}.

    Those that the device or the framework does not have are missing. The set leaves most settings at their defaults,
    which differ between frameworks: read_settings() knows them.

    Args:
        precision: float32, or the one of 16 bits.
        compiles: the set compiles on this device.
    """
    known, name = {}, SIXTEEN_BITS if precision in SIXTEEN else precision
    for benchmark in STANDARD_SET:
        environ = {"FRAMEWORK": framework} | benchmark.environ(device, framework, precision, compiles)
        try:
            settings = read_settings(benchmark.workload, environ)
        except SettingError:
            continue
        if benchmark.suits(device, framework) and name in benchmark.precisions:
            cells = {name: str(getattr(settings, name)) for name in SETTINGS if getattr(settings, name) is not None}
            cells = {"weight_bits": ""} | USUAL.get(benchmark.workload, {}) | cells
            cells["precision"] = benchmark.precision(precision)
            key = benchmark.workload, benchmark.model, benchmark.phase, str(benchmark.batch_size)
            known.setdefault(key, []).append((benchmark, cells, set(cells) - {*map(str.lower, environ), "compile"}))
    return known


def select_set(latest):
    """List the results of the standard set, in its order: of each machine, framework and precision the latest one.

    They are dicts with their `benchmark`, `settings` in words, the title without model, precision and defaults, and the
    `class` of their precision. A blank cell is the default. A result may be that of several benchmarks.
    """
    latest = latest[~latest["published"] & (latest["scope"] == "device")]
    found = {}
    for row in latest[latest["model"].isin([each.model for each in STANDARD_SET])].to_dict("records"):
        is_nvidia = row["device"] == "cuda" and row["driver"] != ""  # on AMD's cards the set does not compile
        known = list_cells(row["device"], row["framework"], row["precision"].removeprefix("mixed_"), is_nvidia)
        for benchmark, cells, defaults in known.get(tuple(row[name] for name in CHOSEN), ()):
            if all(row[name] in ("", text) for name, text in cells.items()):
                name = precision_class(row)
                place = STANDARD_SET.index(benchmark), (*benchmark.precisions, "tf32").index(name)
                key = row["machine"], row["framework"], row["device"], *place
                unnamed = dict.fromkeys([*defaults, "precision", "measured_precision"], "")
                settings = describe_settings(row | unnamed)
                found[key] = row | {"benchmark": benchmark, "settings": settings, "class": name}
    return [found[key] for key in sorted(found)]
