"""Measure the machine's peaks: matmuls by size and precision, convolutions, 8 bits, memory bandwidth.

make tflops
OPS=int8,float8 make tflops
SIZES=1024,4096,8192x8192x512 PRECISION=bfloat16 make tflops
FRAMEWORK=tensorflow .venv-tensorflow/bin/python tflops_sweep.py
"""

import logging
import math
import sys
from dataclasses import replace
from operator import itemgetter

from bench import child, frameworks
from bench.records import report
from bench.records.columns import describe_work, format_number
from bench.records.rows import work_cells
from bench.run import main
from bench.settings import SettingError
from bench.workloads import operators

log = logging.getLogger("bench")

TRIAL_SIZE = (512, 512, 512)  # a matmul of this size estimates the speed before a large one is tried
CPU_PEAK_SIDE = 1024  # M = N = K from which a matmul may reach a device's peak
GPU_PEAK_SIDE = 4096
TITLE = "TFLOP/s (int8 TOP/s)"  # above the printed table
MATMULS = ("matmul", "matmul-8bit")
REFUSED = ("wrong_output", "work_skipped")  # one size failed; after other failures all would


class Sweep:
    """A sweep in progress, in the child process, and its rows so far."""

    def __init__(self, measurer: child.Measurer):
        self.measurer = replace(measurer, requests=None)  # each operator is measured until its limits
        self.settings = measurer.settings
        self.rows = []
        self.peak_side = CPU_PEAK_SIDE if measurer.device.type == "cpu" else GPU_PEAK_SIDE

    def measure_operator(self, workload, precision, seed=0):
        """Measure one operator and return its row without writing it; a failure is a row too."""
        settings = replace(self.settings, precision=precision, seed=self.settings.seed + seed)
        kept = []
        try:
            replace(self.measurer, settings=settings).measure_scopes(workload, ["device"], kept.append)
        except KeyboardInterrupt:  # keeps the complete windows; a row in any case, or the sweep would look complete
            interrupted = {"status": "interrupted", "note": "", "flags": ""}
            self.keep(kept[-1] if kept else work_cells(settings, workload, "device") | interrupted)
            raise
        except Exception as error:
            kept.append(work_cells(settings, workload, "device") | frameworks.classify_failure(error))
        return kept[-1]

    def keep(self, row):
        """Write a row; returns whether it was measured."""
        self.measurer.write(row)
        self.rows.append(row)
        log.info("%s: %s", describe_work(row), report.describe_rate(row))
        return row["status"] == "ok"

    def skips(self, workload, precision, tflops):
        """Return whether to skip a workload because a step takes too long at this rate; print it then."""
        seconds = workload.items_per_step * (workload.flops_per_item or 0) / (1e12 * (tflops or math.inf))
        is_long = seconds > self.settings.max_seconds / 2  # a result needs a dozen steps or more
        if is_long:
            name = describe_work(workload.columns | {"model": workload.model, "precision": precision})
            fix = f"`MAX_SECONDS={2 * seconds:.2g} make tflops` includes it"
            log.info("%s is skipped, because a step would take %.2g s: %s", name, seconds, fix)
        return is_long


def measure_sweep(measurer: child.Measurer, _):
    """Measure everything that the settings ask for, in the child process."""
    sweep = Sweep(measurer)
    settings = measurer.settings
    device = measurer.device
    if "convolution" in settings.ops and not settings.precision:
        raise SettingError(f"OPS={','.join(settings.ops)!r} needs matmul, which estimates a convolution's time: add it")
    for precision in settings.precision or ():
        sweep_sizes(sweep, precision)
        matmuls = [row for row in sweep.rows if row["status"] == "ok" and row["precision"] == precision]
        best = max((row for row in matmuls if row["model"] == "matmul"), key=itemgetter("tflops"), default=None)
        if best and math.prod(max(settings.sizes, key=math.prod)) >= sweep.peak_side**3:
            measure_peak(sweep, best)
        if best and "convolution" in settings.ops:
            measure_others(sweep, [(operators.convolution_3x3(device.type), precision)], best["tflops"])
    for name, works in operators.list_others(device.type, sweep.peak_side).items():
        if name in settings.ops:
            measure_others(sweep, works)
    if not sweep.rows:
        raise SettingError(f"MAX_SECONDS={settings.max_seconds:g} skips all that SIZES and OPS ask for: set more")


def sweep_sizes(sweep: Sweep, precision):
    """Measure the matmuls of one precision, small ones first; skip those that cannot fit or take too long."""
    tflops = 0.0  # the highest so far: other programs can only slow a step
    for size in sorted(sweep.settings.sizes, key=math.prod):
        # Tiny matmuls are launch-bound: their rate does not predict that of a large one.
        if math.prod(size) > math.prod(TRIAL_SIZE) and not tflops:
            tflops = highest_tflops(sweep.measure_operator(operators.matmul(TRIAL_SIZE), precision))  # is not kept
        workload = operators.matmul(size)
        if sweep.skips(workload, precision, tflops):
            continue
        row = sweep.measure_operator(workload, precision)
        if not sweep.keep(row) and row["status"] not in REFUSED:
            return
        if math.prod(size) >= math.prod(TRIAL_SIZE):
            tflops = max(tflops, highest_tflops(row))


def highest_tflops(row):
    """Return the TFLOP/s at the upper end of a row's interval; 0 if it failed."""
    high = row.get("throughput_high") or row.get("throughput")
    return row["tflops"] * high / row["throughput"] if row.get("tflops") else 0.0


def measure_peak(sweep: Sweep, best):
    """Measure the best size again, because the maximum of noisy figures is too high; on a CPU as a 1x1 convolution too.

    A CPU's BLAS may leave half of the chip idle in matmuls, but not in convolutions. On a card they are slower, and
    cuDNN tries its kernels for 15 seconds.
    """
    size = tuple(map(int, best["matrix_size"].split("x")))
    precision = best["precision"]
    workload = operators.matmul(size)
    workload = replace(workload, columns=workload.columns | {"model": "matmul-peak"})  # also if it is interrupted
    peak = sweep.measure_operator(workload, precision, seed=1)
    note = "the best size, measured again"
    if sweep.measurer.device.type == "cpu":
        rival = sweep.measure_operator(operators.convolution_1x1(size), precision, seed=1)
        if sweep.keep(rival) and rival["tflops"] > peak.get("tflops", 0):
            peak = rival
            note = "a 1x1 convolution in channels_last, faster than the matmul"
    note = "; ".join(filter(None, [note, peak["note"]]))
    sweep.keep(peak | {"workload": "matmul", "model": "matmul-peak", "note": note})


def measure_others(sweep: Sweep, works, tflops=None):
    """Measure some operators, (Workload, precision), one after the other, until one fails or would take too long."""
    for workload, precision in works:
        if sweep.skips(workload, precision, tflops):
            return
        row = sweep.measure_operator(workload, precision)
        if not sweep.keep(row):
            return
        tflops = row.get("tflops")


def describe_sweep(rows, _):
    """Describe a sweep: a table of TFLOP/s by work and precision, then what is not in it, or has flags."""
    first = rows[0]
    lines = [f"{first['framework']} {first['framework_version']} on {first['device_name']} ({first['device']})"]
    table, others = {TITLE: {}}, []
    # Larger matmuls may be measured in some precisions only, and later than the convolutions.
    for row in sorted(rows, key=lambda row: row["model"] not in MATMULS):
        precision = row["precision"]
        if is_rate := row["status"] == "ok" and row["tflops"]:
            name = row["matrix_size"] if row["model"] in MATMULS else row["model"]
            table[TITLE][precision] = precision
            cell = format_number(row["tflops"], "{:.3g}")
            if row["model"] == "matmul-peak":
                side, *rest = row["matrix_size"].split("x")
                cell += f" at {side if rest == [side, side] else row['matrix_size']}"
            table.setdefault(name, {})[precision] = cell
        if row["flags"] or not is_rate:
            flags = f" ({', '.join(row['flags'].split())})" if row["flags"] else ""
            others.append(f"  {describe_work(row)}: {report.describe_rate(row)}{flags}")
    widths = {name: max(13, *(2 + len(rates.get(name, "")) for rates in table.values())) for name in table[TITLE]}
    for name, rates in table.items():
        cells = (f"{rates.get(precision, ''):>{width}}" for precision, width in widths.items())
        lines.append(f"  {name:<20}{''.join(cells)}".rstrip())
    return "\n".join(filter(None, [*lines, *others, report.explain_flags(rows)]))


if __name__ == "__main__":
    sys.exit(main("tflops", measure=measure_sweep, describe_results=describe_sweep))
