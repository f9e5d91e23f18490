"""Measure the machine's peaks: matmuls by size and precision, convolutions, 8 bits, attention, memory bandwidth.

make tflops
OPS=int8,float8,gemv,attention make tflops
SIZES=1024,4096,8192x8192x512 PRECISION=bfloat16 make tflops
FRAMEWORK=tensorflow .venv-tensorflow/bin/python tflops_sweep.py
"""

import logging
import math
import sys
from dataclasses import replace
from operator import itemgetter

from bench import cli, frameworks, run
from bench.launch import main
from bench.records import cells, report
from bench.records.columns import describe_work, format_number
from bench.settings import SettingError
from bench.workloads import operators

log = logging.getLogger("bench")

TRIAL_SIZE = (512, 512, 512)  # of a matmul that estimates the speed before a large one is tried
CPU_PEAK_SIDE, GPU_PEAK_SIDE = 1024, 4096  # M = N = K from which a matmul may reach a device's peak
MATMULS = ("matmul", "matmul-8bit")
# Names in the table of results: a matmul of 8 bits has the line of the matmuls of its size.
LABELS = {"matmul": "{matrix_size}", "matmul-8bit": "{matrix_size}", "matmul-peak": "peak"}
LABELS |= {"conv1x1": "1x1 convolution", "conv3x3": "3x3 convolution", "attention": "attention {sequence_length}"}
REFUSED = ("wrong_output", "work_skipped", "constant_output")  # of one size; after other failures all would fail


class Sweep:
    """A sweep in progress, in the child process, and its rows so far."""

    def __init__(self, bench: run.Bench):
        # Energy needs five more seconds for each matmul, which would be most of a sweep's time.
        self.bench = replace(bench, instruments=replace(bench.instruments, counter=None))
        self.settings, self.rows = bench.settings, []
        self.peak_side = CPU_PEAK_SIDE if bench.device.device == "cpu" else GPU_PEAK_SIDE

    def measure(self, workload, precision, seed=0):
        """Measure one operator and return its row without writing it; a failure is a row too."""
        settings = replace(self.settings, precision=precision, seed=self.settings.seed + seed)
        row = cells.of_work(settings, workload, None, "device")
        try:
            bench = replace(self.bench, settings=settings)
            row |= run.measure_quantity(bench, workload, None, "device")
        except Exception as error:
            row |= frameworks.describe_failure(error)
        if row["status"] == "interrupted":  # Ctrl-C during the windows; the complete ones are kept
            self.keep(row)
            raise KeyboardInterrupt
        return row

    def keep(self, row):
        """Write a row; returns whether it was measured."""
        self.bench.emit(row)
        self.rows.append(row)
        log.info("%s: %s", describe_work(row), report.describe_rate(row))
        return row["status"] == "ok"

    def skips(self, workload, precision, tflops):
        """Return whether to skip a workload because a step takes too long at this rate; print it then."""
        seconds = workload.items_per_step * (workload.flops_per_item or 0) / (1e12 * (tflops or math.inf))
        is_long = seconds > self.settings.max_seconds / 2  # a result needs a dozen steps or more
        if is_long:
            name = describe_work(workload.columns | {"model": workload.model, "precision": precision})
            log.info("%s is skipped: a step would take %.2g s; a longer MAX_SECONDS includes it", name, seconds)
        return is_long


def run_sweep(bench: run.Bench, _):
    """Measure everything that the settings ask for, in the child process; returns the exit status."""
    sweep, ops = Sweep(bench), bench.settings.ops
    try:
        for precision in bench.settings.precision if "matmul" in ops else ():
            sweep_sizes(sweep, precision)
            matmuls = [row for row in sweep.rows if row["status"] == "ok" and row["precision"] == precision]
            best = max((row for row in matmuls if row["model"] == "matmul"), key=itemgetter("tflops"), default=None)
            if best and math.prod(max(bench.settings.sizes, key=math.prod)) >= sweep.peak_side**3:
                measure_peak(sweep, best)
            if best and "convolution" in ops:
                measure_others(sweep, [(operators.convolution_3x3(bench.device.device), precision)], best["tflops"])
        device, emulates = bench.device.device, bench.device.emulates_bfloat16
        for name, works in operators.list_others(device, sweep.peak_side, emulates).items():
            if name in ops:
                measure_others(sweep, works)
    except KeyboardInterrupt:
        return cli.INTERRUPTED
    if not sweep.rows:
        raise SettingError(f"MAX_SECONDS={bench.settings.max_seconds:g} skips all that SIZES and OPS ask for: set more")
    return 0 if any(row["status"] == "ok" for row in sweep.rows) else 1


def sweep_sizes(sweep: Sweep, precision):
    """Measure the matmuls of one precision, small ones first; skip those that cannot fit or take too long."""
    tflops = None
    for size in sorted(sweep.settings.sizes, key=math.prod):
        # Tiny matmuls are launch-bound: their rate does not predict that of a large one.
        if math.prod(size) > math.prod(TRIAL_SIZE) and not tflops:
            tflops = sweep.measure(operators.matmul(TRIAL_SIZE), precision).get("tflops")  # its row is not kept
        workload = operators.matmul(size)
        if sweep.skips(workload, precision, tflops):
            continue
        row = sweep.measure(workload, precision)
        if not sweep.keep(row) and row["status"] not in REFUSED:
            return
        if math.prod(size) >= math.prod(TRIAL_SIZE):
            tflops = row.get("tflops") or tflops


def measure_peak(sweep: Sweep, best):
    """Measure the best size again, because the maximum of noisy figures is too high, and as a 1x1 convolution.

    A CPU's BLAS may leave half of the chip idle in matmuls, but not in convolutions.
    """
    size, precision = tuple(map(int, best["matrix_size"].split("x"))), best["precision"]
    peak, note = sweep.measure(operators.matmul(size), precision, seed=1), "the best size, measured again"
    rival = sweep.measure(operators.convolution_1x1(size), precision, seed=1)
    if sweep.keep(rival) and rival["tflops"] > peak.get("tflops", 0):
        peak, note = rival, "a 1x1 convolution in channels_last, faster than the matmul"
    note = "; ".join(filter(None, [note, peak["note"]]))
    sweep.keep(peak | {"workload": "matmul", "model": "matmul-peak", "note": note})


def measure_others(sweep: Sweep, works, tflops=None):
    """Measure some operators, (Workload, precision), one after the other, until one fails or would take too long."""
    for workload, precision in works:
        same = {"model": workload.model, "precision": precision, "matrix_size": workload.columns.get("matrix_size")}
        if workload.model == "matmul" and any(same.items() <= row.items() for row in sweep.rows):
            continue  # it was among SIZES and PRECISION
        if sweep.skips(workload, precision, tflops):
            return
        row = sweep.measure(workload, precision)
        if not sweep.keep(row):
            return
        tflops = row.get("tflops")


def describe(rows, _):
    """Describe a sweep: a table of TFLOP/s by work and precision, GB/s, and what failed."""
    first, ok = rows[0], [row for row in rows if row["status"] == "ok"]
    framework = f"{first['framework']} {first.get('framework_version') or ''}"
    lines = [f"{framework} on {first.get('device_name') or first['cpu_name']} ({first.get('device')})"]
    table = {}  # {work: {precision: text}}
    # Larger matmuls may be measured in some precisions only, and later than the convolutions.
    for row in sorted((row for row in ok if row.get("tflops")), key=lambda row: row["model"] not in MATMULS):
        name = LABELS.get(row["model"], row["model"]).format_map(row)
        table.setdefault(name, {})[row["precision"]] = format_number(row["tflops"], "{:.3g}")
    precisions = dict.fromkeys(precision for found in table.values() for precision in found)
    if table:
        title = "TFLOP/s (int8 TOP/s)" if "int8" in precisions else "TFLOP/s"
        lines.append(f"  {title:<20}" + "".join(f"{precision:>13}" for precision in precisions))
    for name, found in table.items():
        lines.append(f"  {name:<20}" + "".join(f"{found.get(precision, ''):>13}" for precision in precisions).rstrip())
    for row in rows:
        if row["status"] != "ok":
            lines.append(f"  {describe_work(row)}: {row['status']}: {row['note']}")
        elif row["unit"] == "GB/s":
            kind = "memory bandwidth, " if row["workload"] == "bandwidth" else ""
            lines.append(f"  {kind}{describe_work(row)}: {row['throughput']:.4g} GB/s")
    flagged = [row for row in ok if row["flags"]]
    lines += [f"  flags of {describe_work(row)}: {', '.join(row['flags'].split())}" for row in flagged]
    flags = {flag for row in flagged for flag in row["flags"].split()}
    return "\n".join([*lines, *([report.explain(flags)] if flags else [])])


def first_size(settings):
    """Return the Workload that represents a sweep that was killed."""
    return operators.matmul(settings.sizes[0])


if __name__ == "__main__":
    sys.exit(main("tflops", first_size, run_sweep, describe))
