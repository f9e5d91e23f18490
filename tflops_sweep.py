"""Measure the machine's peaks: matmuls by size and precision, convolutions, 8 bits, attention, memory bandwidth.

make tflops
OPS=int8,float8,gemv,attention make tflops
SIZES=1024,4096,8192x8192x512 PRECISION=bfloat16 make tflops
FRAMEWORK=tensorflow .venv-tensorflow/bin/python tflops_sweep.py
"""

import math
import sys
from dataclasses import replace

from tqdm import tqdm

from bench import cli, run
from bench.host import resources
from bench.launch import main
from bench.records import cells, peaks, report
from bench.records.columns import format_number
from bench.workloads import operators

TRIAL_SIZE = (512, 512, 512)  # of a matmul that estimates the speed before a large one is tried
CPU_PEAK_SIDE, GPU_PEAK_SIDE = 1024, 4096  # M = N = K from which a matmul may reach a device's peak
REFUSED = ("wrong_output", "work_skipped", "constant_output")  # of one size; after other failures all would fail


class Sweep:
    """A sweep in progress, in the child process: its rows so far, and the progress bar."""

    def __init__(self, bench: run.Bench):
        # Energy needs five more seconds for each matmul, which would be most of a sweep's time.
        self.bench = replace(bench, instruments=replace(bench.instruments, counter=None))
        self.settings, self.rows = bench.settings, []
        self.peak_side = peak_side(bench.device.device)
        self.bar = tqdm(unit=" measured", disable=None, leave=False, file=sys.stderr)  # None: only on a terminal

    def measure(self, workload, precision, seed=0):
        """Measure one operator and return its row without writing it; a failure is a row too."""
        settings = replace(self.settings, precision=precision, seed=self.settings.seed + seed)
        row = cells.of_work(settings, workload, None, "device")
        self.bar.set_description_str(f"{precision} {name_workload(workload)}")
        try:
            bench = replace(self.bench, settings=settings)
            row |= run.measure_quantity(bench, workload, None, "device", shows_bar=False)
        except Exception as error:
            row |= run.describe_failure(error)
        self.bar.update()
        if row["status"] == "interrupted":  # Ctrl-C during the windows; the complete ones are kept
            self.keep(row)
            raise KeyboardInterrupt
        return row

    def keep(self, row):
        """Write a row; returns whether it was measured."""
        self.bench.emit(row)
        self.rows.append(row)
        if row["status"] != "ok":
            tqdm.write(f"{row['precision']} {row['model']} {row['status']}: {row['note']}", file=sys.stderr)
        return row["status"] == "ok"

    def skips(self, workload, precision, flops_per_second):
        """Return whether to skip a workload because it cannot fit or a step takes too long; print why."""
        seconds = workload.items_per_step * (workload.flops_per_item or 0) / (flops_per_second or math.inf)
        reason, free = "", resources.available_bytes()
        if free and workload.resident_bytes > free / 2:
            reason = f"it needs {workload.resident_bytes / 1e9:.3g} GB of {free / 1e9:.3g} that are free"
        elif seconds > self.settings.max_seconds / 2:  # a result needs a dozen steps or more
            reason = f"one step would take about {seconds:.2g} s: a longer MAX_SECONDS includes it"
        if reason:
            tqdm.write(f"{precision} {name_workload(workload)} is skipped: {reason}", file=sys.stderr)
        return bool(reason)


def peak_side(device):
    return CPU_PEAK_SIDE if device == "cpu" else GPU_PEAK_SIDE


def name_workload(workload):
    columns = workload.columns
    return f"{workload.model} {columns.get('matrix_size') or columns.get('sequence_length', '')}".strip()


def find_best(rows, precision):
    """Return the row of the fastest matmul of a precision, or None."""
    found = [r for r in rows if r["model"] == "matmul" and r["precision"] == precision and r["status"] == "ok"]
    return max(found, key=lambda row: row["tflops"], default=None)


def run_sweep(bench: run.Bench, _):
    """Measure everything that the settings ask for, in the child process; returns the exit status."""
    sweep, ops = Sweep(bench), bench.settings.ops
    try:
        for precision in bench.settings.precision if "matmul" in ops else ():
            sweep_sizes(sweep, precision)
            best = find_best(sweep.rows, precision)
            if best and math.prod(max(bench.settings.sizes, key=math.prod)) >= sweep.peak_side**3:
                measure_peak(sweep, best)
            if best and "convolution" in ops:
                conv3x3 = operators.convolution_3x3(bench.device.device)
                if not sweep.skips(conv3x3, precision, 1e12 * best["tflops"]):
                    sweep.keep(sweep.measure(conv3x3, precision))
        device, emulates = bench.device.device, bench.device.emulates_bfloat16
        for name, works in operators.list_others(device, sweep.peak_side, emulates).items():
            if name in ops:
                measure_others(sweep, works)
    except KeyboardInterrupt:
        return cli.INTERRUPTED
    finally:
        sweep.bar.close()
    return 0 if any(row["status"] == "ok" for row in sweep.rows) else 1


def sweep_sizes(sweep: Sweep, precision):
    """Measure the matmuls of one precision, small ones first; skip those that cannot fit or take too long."""
    last, flops_per_second = (0, 0, 0), None
    for size in sorted(sweep.settings.sizes, key=math.prod):
        workload = operators.matmul(size)
        # Tiny matmuls are launch-bound: their rate does not predict that of a large one.
        if math.prod(last) < math.prod(TRIAL_SIZE) < math.prod(size):
            trial = sweep.measure(operators.matmul(TRIAL_SIZE), precision)  # its row is not kept
            flops_per_second = 1e12 * trial["tflops"] if trial["status"] == "ok" else None
        if sweep.skips(workload, precision, flops_per_second):
            continue
        row = sweep.measure(workload, precision)
        if sweep.keep(row):
            last, flops_per_second = size, 1e12 * row["tflops"]
        elif row["status"] not in REFUSED:
            return


def measure_peak(sweep: Sweep, best):
    """Measure the best size again, because the maximum of noisy figures is too high, and as a 1x1 convolution.

    A CPU's BLAS may leave half of the chip idle in matmuls, but not in convolutions.
    """
    size, precision = tuple(map(int, best["matrix_size"].split("x"))), best["precision"]
    peak, note = sweep.measure(operators.matmul(size), precision, seed=1), "the best size, measured again"
    rival = sweep.measure(operators.convolution_1x1(size), precision, seed=1)
    sweep.keep(rival)
    if rival["status"] == "ok" and rival["tflops"] > peak.get("tflops", 0):
        note = f"a 1x1 convolution in channels_last, faster than the matmul ({describe_rate(peak.get('tflops', 0))})"
        peak = rival
    note = "; ".join(filter(None, [note, peak["note"]]))
    sweep.keep(peak | {"workload": "matmul", "model": "matmul-peak", "note": note})


def measure_others(sweep: Sweep, works):
    """Measure some operators one after the other, until one fails or would take too long."""
    rate = None
    for workload, precision in works:
        if workload.model == "matmul" and find_matmul(sweep.rows, precision, workload.columns["matrix_size"]):
            continue  # it was among SIZES and PRECISION
        if sweep.skips(workload, precision, rate):
            return
        row = sweep.measure(workload, precision)
        if not sweep.keep(row):
            return
        rate = 1e12 * (row.get("tflops") or 0)


def find_matmul(rows, precision, size):
    """Return the row of the matmul of a precision and size, or None."""
    like = {"model": "matmul", "precision": precision, "matrix_size": size, "status": "ok"}
    return next((row for row in rows if all(row.get(name) == value for name, value in like.items())), None)


def describe(rows, stored):
    """Return the table of a sweep: rates by size and precision with the best of each marked, the peaks, and GB/s."""
    first, ok = rows[0], [row for row in rows if row["status"] == "ok"]
    best = {row["precision"]: find_best(ok, row["precision"]) for row in ok if row["model"] == "matmul"}
    is_fast = any(row["tflops"] >= 1 for row in best.values())
    unit, scale = ("TFLOP/s", 1) if is_fast else ("GFLOP/s", 1000)
    framework = f"{first['framework']} {first.get('framework_version') or ''}"
    lines = [f"{unit}, {framework} on {first.get('device_name') or first['cpu_name']} ({first.get('device')})"]
    lines += [f"  {'':16}" + "".join(f"{precision:>12}" for precision in best)] if best else []
    sizes = {row["matrix_size"]: "matmul" for row in ok if row["model"] == "matmul"}
    others = {"1x1 convolution": "conv1x1", "3x3 convolution": "conv3x3", "peak": "matmul-peak"}
    for label, model in (sizes | others).items():
        found = [row for row in ok if row["model"] == model and (model != "matmul" or row["matrix_size"] == label)]
        by_precision = {row["precision"]: row for row in found}
        line = f"  {label:<16}"
        for precision in best:
            row = by_precision.get(precision)
            rate = format_number(scale * row["tflops"]) if row else ""
            line += f"{rate:>11}{'*' if row and row is best[precision] else ' '}"
        lines += [line.rstrip()] if found else []
    lines += ["  * the fastest matmul of a precision"] if best else []
    if best and not any(row["model"] == "matmul-peak" for row in ok):
        side = peak_side(first.get("device"))
        lines.append(f"  no peak: small matmuls do not reach it; SIZES needs one of {side} or more")
    lines += [f"{row['precision']} {row['model']}: {row['status']}: {row['note']}" for row in rows if row not in ok]
    measured = peaks.measured_peaks([*stored, *rows])
    for row in (row for row in ok if row["model"] not in ("matmul", *others.values())):
        size = row.get("matrix_size") or row.get("sequence_length") or ""
        line = " ".join(filter(None, [row["precision"], row["model"], str(size)]))
        rate = f"{row['throughput']:.4g} GB/s" if row["unit"] == "GB/s" else describe_rate(row["tflops"])
        line += f": {rate.replace('FLOP', 'OP') if row['precision'] == 'int8' else rate}"
        half = find_matmul(ok, "bfloat16", size) if row["model"] == "matmul-8bit" else None
        line += f", {row['tflops'] / half['tflops']:.3g} times the rate of bfloat16" if half else ""
        share = peaks.fraction_of_peak(row, measured) if row["model"] == "attention" else None
        lines.append(line + (f", {100 * share:.3g} % of the measured peak" if share else ""))
    flags = {flag for row in ok for flag in row["flags"].split()}
    return "\n".join([*lines, *([report.explain(flags)] if flags else [])])


def describe_rate(tflops):
    """Format a rate with a unit in which it is readable."""
    return f"{tflops:.4g} TFLOP/s" if tflops >= 1 else f"{1000 * tflops:.4g} GFLOP/s"


def first_size(settings):
    """Return the Workload that represents a sweep that was killed."""
    return operators.matmul(settings.sizes[0])


if __name__ == "__main__":
    sys.exit(main("tflops", first_size, run_sweep, describe))
