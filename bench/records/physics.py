"""Check rows that others sent: known cells, nothing private, and numbers that fit each other and the laws of physics.

`make submit` and `make check-results` (submission.py) use it. Standard library only, so that CI needs no framework.
Cells have six digits, so products of three of them agree within ROUNDING; the rows in results/ keep within half of it.
"""

import csv
import ipaddress
import math
import re
from datetime import datetime, timedelta
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from bench.records import peaks
from bench.records.columns import COLUMNS, RETIRED_FLAGS, SCHEMA, WORK, of_kind
from bench.records.flags import FLAGS
from bench.settings import FRAMEWORKS, MIXED, MODELS
from bench.timing.measure import METHOD_VERSION, MIN_WINDOW_SECONDS
from bench.workloads.workload import BYTES

ROUNDING = 2e-5
NUMBERS = of_kind("number", "positive", "meter")
STATUSES = ("ok", "interrupted", "out_of_memory", "unsupported", "wrong_model", "wrong_output", "constant_output")
STATUSES += ("work_skipped", "sync_incomplete", "crashed", "failed")
ALWAYS = ("schema", "method_version", "timestamp", "status", "machine", "framework", "workload", "model")
WITH_A_RATE = ("run_id", "device", "device_name", "cpu_count", "precision", "unit", "throughput", "items", "seconds")
IF_RIGHT = "remove the row, measure it again, and open an issue if it stays"
AT_REST = "remove the row, close other programs, and measure it again"
FREE_TEXT = ("note", "allocator", "machine", "os")  # which may have a name of the sender
LONGEST = 2000  # characters
NUMBER, WHOLE = r"[0-9]{1,30}(\.[0-9]{1,30})?(e[+-]?[0-9]{1,2})?", r"[1-9][0-9]{0,14}"
PATTERNS = dict.fromkeys(("cpu_count", "gpu_cores", "batch_size", "world_size", "nodes", "message_bytes"), WHOLE)
PATTERNS |= dict.fromkeys(("sequence_length", "prompt_tokens", "new_tokens", "image_size"), WHOLE)
PATTERNS |= {"memory_gb": NUMBER, "run_id": "[0-9a-f]{12}"}
PATTERNS["timestamp"] = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
KNOWN = {
    "schema": [str(version) for version in range(1, SCHEMA + 1)],
    "method_version": [str(version) for version in range(1, METHOD_VERSION + 1)],
    "framework": list(FRAMEWORKS),
    "status": STATUSES,
}
SYSTEM_PATHS = r"(?:usr|lib\w*|opt|dev|sys|proc|pytorch)/"  # the same on many machines
PRIVATE = {
    "a path": rf"(?<![\w./])(?:~|/(?!{SYSTEM_PATHS})[\w.-]+)/\S+|\b[A-Za-z]:\\|/(?:home|Users)/",
    "an e-mail address": r"[\w.+-]+@[\w-]+\.\w+",
    "a link": r"\w://(?!(?:docs\.)?pytorch\.org/)|\bwww\.",  # torch's own texts have some
    "a serial number": r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-|\b(?:GPU|MIG)-[0-9a-f]{4}|(?:\b[0-9a-f]{2}:){5}",
    "a host name": r"\b[\w-]+\.(?:local|lan|internal|localdomain)\b",
}
OPERATORS = ("matmul", "convolution", "attention")
PIPELINES = ("input", "end_to_end")  # scopes
SHORTEST_WINDOW = MIN_WINDOW_SECONDS / 5  # the warm-up's pace, which sets the length, may be that wrong
FAR = 5.0  # on a busy machine a few long windows make the mean much slower than the median
SHORTER = {"float32": ("tf32", "float16")}  # which "bfloat16" also has
SHORTER["float64"] = (*SHORTER["float32"], "float32")
CLOCK_SKEW = timedelta(hours=1)
WRITE_SECONDS = 2.0  # timestamps have whole seconds, and two runs may write at the same time
# For chips that peaks.csv does not list. A logical CPU: two AVX-512 units at 5 GHz in float32, AMX below that.
CPU_TFLOPS, CPU_SHORT_TFLOPS, CPU_GB_PER_SECOND = 0.5, 10.0, 200.0
MOST_WATTS = 3000.0  # of a device
TDP_MARGIN, ENERGY_MARGIN = 1.5, 1.5  # the seconds of the energy follow those of the rate
# Times the fastest known row of the same chip and work. The name of a CPU often does not tell its generation.
FASTER_THAN_ALL, FASTER_THAN_ALL_CPU = 3.0, 10.0
# Parameters and FLOPs of an item depend on the other columns of WORK.
NOT_COUNTED = ("framework", "scope", "epoch", "precision", "compile", "memory_format", "batch_size", "data")
NOT_COUNTED += ("optimizer", "world_size", "nodes")
ONLY_FLOPS = ("phase", "image_size", "sequence_length", "prompt_tokens", "new_tokens", "depth")
# Launching takes the same time at every size, but less than this, and is hidden behind this much work.
LAUNCH_SECONDS, LAUNCH_FLOPS, GROWTH = 1e-3, 1.3e11, 64
COUNTS = Path(__file__).parent.parent / "workloads" / "flops.csv"


class Problem(NamedTuple):
    """What is wrong with a cell of a file, in words that complete "value ...", with the fix."""

    line: int
    column: str
    value: str
    reason: str
    fix: str = "remove the row, and measure it again"

    def describe(self, name):
        """Format the problem as one line."""
        return f"{name}, line {self.line}: {self.column}={self.value[:80]!r} {self.reason}: {self.fix}"


def check_rows(rows, machine, now, known, names=()):
    """Return the Problems of the rows to be added, at most one for each row.

    Args:
        rows: (line in the file, dict of text) of each.
        machine: the name of their file, without its ending.
        now: a datetime.
        known: the rows that are already there, of all machines, as dicts of text.
        names: of this computer and its user, which no cell may have.
    """
    problems = {}
    for line, row in rows:
        checks = check_cells(row), check_known(row, machine, now), check_private(row, names)
        if found := next(chain(*checks, check_windows(row), check_physics(row)), None):
            problems[line] = Problem(line, found[0], row[found[0]], *found[1:])
    sound = [(line, row) for line, row in rows if line not in problems]
    cells = dict(rows)
    together = check_copies(sound, known), check_times(sound), check_step_times(sound), check_counts(sound, known)
    for line, column, *words in chain(*together, check_spread(sound, known)):
        problems.setdefault(line, Problem(line, column, cells[line][column], *words))
    return [problems[line] for line in sorted(problems)]


# Checks of a row by itself. Each is a generator of (column, reason[, fix]) for what is wrong; the first one counts, and
# a check runs only if those before it have found nothing.


def check_cells(row):
    """Check the syntax of all cells, and that what every row has is there."""
    for name, text in row.items():
        if not text.isprintable() or text != text.strip() or text[:1] in ("=", "@") or len(text) > LONGEST:
            yield name, f"has characters that this program does not write, or over {LONGEST} of them", "remove them"
        if text and name in PATTERNS and not re.fullmatch(PATTERNS[name], text):
            yield name, f"must have the form {PATTERNS[name]}"
    for name in NUMBERS:
        if row[name] and not re.fullmatch(NUMBER, row[name]):
            yield name, "must be a number"
        elif row[name] and COLUMNS[name].kind == "positive" and not float(row[name]) > 0:
            yield name, "must be above 0"
    has_rate = row["status"] == "ok" or row["throughput"]
    for name in (*ALWAYS, *(WITH_A_RATE if has_rate else ("note",))):
        if not row[name] and (name, row["status"]) != ("note", "interrupted"):
            yield name, "must not be empty"
    if row["throughput"] and row["status"] not in ("ok", "interrupted"):
        yield "throughput", f"must be empty in a row whose status is {row['status']}"


def check_known(row, machine, now):
    """Check versions, status, flags, machine and time."""
    for name, values in KNOWN.items():
        if row[name] not in values:
            yield name, f"must be one of {', '.join(values)}", "update this repository, then measure it again"
    if row["machine"] != machine:
        yield "machine", f"must be the file's name, {machine}", "send one file for each machine"
    if row["source"]:
        yield "source", "must be empty: results/published.csv has the figures of others"
    for flag in row["flags"].split():
        if flag not in (*FLAGS, *RETIRED_FLAGS):
            yield "flags", f"has {flag}, which is not a flag of bench/timing/measure.py"
    try:
        if datetime.fromisoformat(row["timestamp"]) > now + CLOCK_SKEW:
            yield "timestamp", "is in the future", "set the clock, then measure it again"
    except ValueError:
        yield "timestamp", "is not a time"


def check_private(row, names):
    """Check that no cell tells who or where the sender is."""
    told = " ".join(row[name] for name in ("cpu_name", "device_name", "os", "framework", "model")).lower()
    own = [name for name in names if len(name) > 2 and name.lower() not in told]
    for column in COLUMNS:
        for what, pattern in PRIVATE.items():
            if found := re.search(pattern, row[column]):
                yield column, f"has {what} ({found[0]})", "remove it from the cell"
        if column in ("note", "allocator") and any(map(is_address, row[column].split())):
            yield column, "has a network address", "remove it from the cell"
        for name in own if column in FREE_TEXT else ():
            if re.search(rf"(?<![a-z0-9]){re.escape(name.lower())}(?![a-z0-9])", row[column].lower()):
                fix = "measure again with another MACHINE" if column == "machine" else "remove it from the cell"
                yield column, "has the name of this computer or of its user", fix


def is_address(word):
    try:
        return bool(ipaddress.ip_address(word.strip("()[],;'\"").partition(":")[0]))
    except ValueError:
        return False


def check_windows(row):
    """Check items, seconds, steps and interval of a row with a rate."""
    n = numbers_of(row)
    if not n.throughput:
        return
    rate, low, high = n.throughput, n.throughput_low, n.throughput_high
    mean = n.items / n.seconds
    if (low is None) != (high is None) or (low is not None and not at_most(low, rate, high)):
        yield "throughput", f"must be within its interval, {row['throughput_low']} to {row['throughput_high']}"
    if not n.step_seconds_median:  # a whole epoch
        if not equal(rate, mean):
            yield "throughput", f"must be items / seconds = {mean:.6g}"
        return
    if not (n.windows and n.steps_per_window and n.step_seconds_min):
        yield "windows", "must be known, as steps_per_window and step_seconds_min, if step_seconds_median is"
        return
    by_totals, has_tail = row["scope"] in PIPELINES, row["stop_reason"] in ("num_images", "interrupted")
    per_step = items_per_step(row, n)
    items = n.windows * n.steps_per_window * per_step
    if not (equal(n.items, items) or (has_tail and n.items > items)):
        yield "items", f"must be windows x steps_per_window x items of a step = {items:.6g}"
    expected = mean if by_totals else per_step / n.step_seconds_median
    if not (equal(rate, expected) or (has_tail and (equal(rate, mean) or equal(rate, items / n.seconds)))):
        how = "items / seconds" if by_totals else f"{per_step:g} items of a step / step_seconds_median"
        yield "throughput", f"must be {how} = {expected:.6g}"
    if not at_most(n.step_seconds_min, n.step_seconds_median):
        yield "step_seconds_min", f"must be at most step_seconds_median = {row['step_seconds_median']}"
    # Half of the windows take the median or longer, the others the shortest or longer.
    if not has_tail and not at_most(mean * (n.step_seconds_min + n.step_seconds_median) / 2, per_step):
        yield "seconds", f"is too short for {row['windows']} windows with this median and this shortest one"
    if mean < min(rate / FAR, low or rate) and "contended" not in row["flags"]:
        yield "throughput", f"must not be over {FAR:g} times items / seconds = {mean:.6g}", AT_REST
    if high is not None and not has_tail and not at_most(high, per_step / n.step_seconds_min):
        yield "throughput_high", "must not be faster than the shortest window"
    window, is_part = n.steps_per_window * n.step_seconds_median, row["phase"] in ("backward", "optimizer")
    if not (is_part or has_tail or by_totals) and window < SHORTEST_WINDOW:
        yield "steps_per_window", f"makes windows of {window * 1e3:.3g} ms, and this program's have 25", AT_REST


def check_physics(row):
    """Check FLOPs, bytes, energy, memory and precision, and the limits of the chip."""
    n = numbers_of(row)
    if not n.throughput:
        return
    asked, measured = row["precision"], row["measured_precision"]
    if any(shorter in measured for shorter in SHORTER.get(asked, ())):
        yield "measured_precision", f"must be {asked}, as asked for"
    if not n.flops_per_item and row["workload"] in OPERATORS:
        yield "flops_per_item", "must not be empty"
    if not equal(n.tflops or 0.0, expected := n.throughput * (n.flops_per_item or 0.0) / 1e12):
        yield "tflops", f"must be throughput x flops_per_item / 10**12 = {expected:.6g}"
    steps = n.windows and n.steps_per_window and n.throughput / items_per_step(row, n)  # per second
    if not equal(n.bandwidth or 0.0, expected := (steps or 0.0) * (n.bytes_per_step or 0.0) / 1e9):
        yield "bandwidth", f"must be bytes_per_step / seconds of a step / 10**9 = {expected:.6g}"
    most_tflops, most_bandwidth, whose = find_limits(row)
    if (n.tflops or 0) > most_tflops:
        yield "tflops", f"must be at most {most_tflops:.4g}, {whose}", IF_RIGHT
    column = "throughput" if row["workload"] == "bandwidth" else "bandwidth"
    if float(row[column] or 0) > most_bandwidth:
        yield column, f"must be at most {most_bandwidth:.4g} GB/s, {whose}", IF_RIGHT
    if n.power_watts and n.joules_per_item:
        watts = n.joules_per_item * n.throughput
        if not 1 / ENERGY_MARGIN < n.power_watts / watts < ENERGY_MARGIN:
            yield "power_watts", f"must be near joules_per_item x throughput = {watts:.4g}"
        known = peaks.chip_bandwidths("tdp_w").get((row["device_name"], row["gpu_cores"]))
        most = (TDP_MARGIN * known if known else MOST_WATTS) * int(row["world_size"] or 1)
        if n.power_watts > most:
            yield "power_watts", f"must be at most {most:.4g}"
    weights = (n.parameters or 0) * (4 if asked in MIXED else BYTES.get(asked, 0))
    if row["scope"] != "input" and n.peak_memory_bytes and n.peak_memory_bytes < weights:
        yield "peak_memory_bytes", f"must be at least {weights:.4g}, the size of the weights"
    if row["device"] == "cpu" and (n.peak_memory_bytes or 0) > (n.memory_gb or math.inf) * 2**30:
        yield "peak_memory_bytes", f"must be at most memory_gb = {row['memory_gb']}"
    if n.accuracy is not None and not 0 <= n.accuracy <= 1:
        yield "accuracy", "must be from 0 to 1"


def numbers_of(row):
    """Return the numbers of a row as attributes, None if blank."""
    return SimpleNamespace(**{name: float(row[name]) if row[name] else None for name in (*NUMBERS, "memory_gb")})


def equal(a, b):
    return a is not None and math.isclose(a, b, rel_tol=ROUNDING)


def at_most(*values):
    """Return whether the values grow, apart from rounding."""
    return all(a <= b * (1 + ROUNDING) for a, b in pairwise(values))


def items_per_step(row, n):
    """Return the items in a step of all devices: from the settings, or else from the totals."""
    if row["workload"] == "matmul":
        return 1.0
    if row["workload"] == "all-reduce" and row["message_bytes"]:
        return float(row["message_bytes"]) / 1e9
    if not row["batch_size"]:
        return n.items / n.windows / n.steps_per_window
    tokens = row["unit"] == "tokens/s" and (row["prompt_tokens"] or row["sequence_length"])
    devices = int(row["world_size"] or 1) if row["workload"] in MODELS else 1
    return float(row["batch_size"]) * devices * float(tokens or 1)


def find_limits(row):
    """Return (TFLOP/s, GB/s, whose limits they are) that a row's devices cannot exceed."""
    if row["device"] == "cpu":
        cpus = int(row["cpu_count"]) * int(row["nodes"] or 1)
        each = CPU_TFLOPS if row["precision"] in ("float32", "float64") else CPU_SHORT_TFLOPS
        factor = peaks.WINOGRAD if row["workload"] in peaks.CONVOLUTIONS else 1
        return cpus * each * factor, cpus * CPU_GB_PER_SECOND, f"which no {cpus} logical CPUs reach"
    limits = peaks.limits_of(row, peaks.fastest_chip(row["precision"]))
    is_known = limits == peaks.limits_of(row)
    return *limits, "1.3 times " + ("its peak" if is_known else "the fastest chip") + " in bench/records/peaks.csv"


# Checks of rows against each other. Each yields (line, column, reason[, fix]).


def check_copies(rows, known):
    """Find rows that repeat another one, or the measurement of another run."""
    figures = ("throughput", "seconds", "step_seconds_min", "first_step_seconds", "warmup_seconds")
    seen = {}
    for line, row in [(None, row) for row in known] + rows:
        where, run = f"line {line}" if line else "another file", (row["run_id"], row["machine"])
        keys = [("row", "run_id", *row.values())]
        if row["throughput"]:
            keys.append(("figures", "throughput", *(row[name] for name in figures)))
        for what, column, *cells in keys:
            other, its_run = seen.setdefault((what, *cells), (where, run))
            is_copy = what == "row" or its_run != run
            if line and other != where and is_copy:
                yield line, column, f"is a copy: {other} has the same {what}", "remove the row"


def check_times(rows):
    """Check that rows are in the order of their times, and that a run had the time to measure them."""
    for (_, before), (line, row) in pairwise(rows):
        passed = datetime.fromisoformat(row["timestamp"]) - datetime.fromisoformat(before["timestamp"])
        if passed.total_seconds() < -WRITE_SECONDS:
            yield line, "timestamp", f"must not be before the row above it, {before['timestamp']}", "restore the order"
        is_next = row["run_id"] == before["run_id"] and row["workload"] in MODELS
        if is_next and row["seconds"] and float(row["seconds"]) > passed.total_seconds() + WRITE_SECONDS:
            yield line, "seconds", f"must fit between the times of two rows, {passed.total_seconds():.0f} s"


def check_step_times(rows):
    """Find matmuls of very different sizes that took the same time: nothing waited for the device."""
    groups = {}
    for line, row in rows:
        if row["workload"] == "matmul" and row["step_seconds_median"] and row["flops_per_item"]:
            cells = (float(row["flops_per_item"]), float(row["step_seconds_median"]), line, row["matrix_size"])
            groups.setdefault((row["run_id"], row["framework"], row["precision"]), []).append(cells)
    for group in map(sorted, groups.values()):
        for flops, seconds, line, _ in group:
            alike = [each for each in group if flops >= GROWTH * each[0] and each[1] > 0.8 * seconds]
            if alike and (seconds > LAUNCH_SECONDS or flops > LAUNCH_FLOPS):
                reason = f"is that of {alike[0][3]}, with {flops / alike[0][0]:.0f} times the work"
                yield line, "step_seconds_median", reason


def check_counts(rows, known):
    """Check that the same model has the same parameters, FLOPs and bytes everywhere."""
    found = table_counts() | {key: row[key[0]] for row in reversed(known) for key in count_keys(row)}
    for line, row in rows:
        for key in count_keys(row):
            name, sides = key[0], re.fullmatch(r"(\d+)x(\d+)x(\d+)", row["matrix_size"])
            if name == "flops_per_item" and sides and row["workload"] in OPERATORS:
                found[key] = str(2 * math.prod(map(int, sides.groups())))
            if row[name] != (expected := found.setdefault(key, row[name])):
                yield line, name, f"must be {expected}, as in other rows of {row['model']}"


def count_keys(row):
    """List (column, what its value depends on ...) of the counts that a row has."""
    sizes = [name for name in WORK if name not in NOT_COUNTED]
    by_column = {
        "parameters": [name for name in sizes if name not in ONLY_FLOPS],
        "flops_per_item": sizes,
        "bytes_per_step": [*sizes, "precision", "batch_size"],
    }
    on_cpu = row["workload"] not in MODELS and row["device"] == "cpu"  # operators may be smaller there
    values = {each: row.get(each) or COLUMNS[each].blank for each in (*sizes, "precision", "batch_size")}
    return [(name, on_cpu, *map(values.get, on)) for name, on in by_column.items() if row.get(name)]


def table_counts():
    """Return the counts of image models in flops.csv, with keys as in count_keys()."""
    found = {}
    with open(COUNTS, newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            for phase in ("inference", "training"):
                same = row | {"workload": "image", "phase": phase, "flops_per_item": row[f"{phase}_flops"]}
                found |= {key: same[key[0]] for key in count_keys(same)}
    return found


def check_spread(rows, known):
    """Find rows that are much faster than any other run of the same chip and work."""
    rates = {}
    for row in [*known, *(row for _, row in rows)]:
        if row["throughput"]:
            rates.setdefault(chip_and_work(row), []).append((float(row["throughput"]), row["run_id"]))
    for line, row in rows:
        others = [rate for rate, run in rates.get(chip_and_work(row), ()) if run != row["run_id"]]
        most = FASTER_THAN_ALL_CPU if row["device"] == "cpu" else FASTER_THAN_ALL
        if row["throughput"] and others and float(row["throughput"]) > most * max(others):
            reason = f"is over {most:g} times that of any other run, {max(others):g}"
            yield line, "throughput", reason, IF_RIGHT


def chip_and_work(row):
    size = row["cpu_count"] if row["device"] == "cpu" else row["gpu_cores"]
    return (row["device_name"], size, *(row[name] or COLUMNS[name].blank for name in WORK))
