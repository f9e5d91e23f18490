"""Measure the machine's peaks: matmuls by size and precision, convolutions, 8 bits, attention, memory bandwidth.

    make tflops
    OPS=int8,float8,gemv,attention make tflops
    SIZES=1024,4096,8192x8192x512 PRECISION=bfloat16 make tflops
    FRAMEWORK=tensorflow .venv-tensorflow/bin/python tflops_sweep.py

`make settings` explains the settings.
"""

import functools
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
EIGHT_BITS = {"int8": "int8", "float8": "float8_e4m3"}  # operators and their precisions
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
        if free and workload.batch_bytes > free / 2:
            reason = f"it needs {workload.batch_bytes / 1e9:.3g} GB of {free / 1e9:.3g} that are free"
        elif seconds > self.settings.max_seconds / 2:  # a result needs a dozen steps or more
            reason = f"one step would take about {seconds:.2g} s: a longer MAX_SECONDS includes it"
        if reason:
            tqdm.write(f"{precision} {name_workload(workload)} is skipped: {reason}", file=sys.stderr)
        return bool(reason)

    def estimate_speed(self, precision, build=operators.matmul):
        """Measure a matmul of TRIAL_SIZE and return its FLOP/s, or None if it fails. Its row is not written."""
        row = self.measure(build(TRIAL_SIZE), precision)
        return 1e12 * row["tflops"] if row["status"] == "ok" else None


def peak_side(device):
    return CPU_PEAK_SIDE if device == "cpu" else GPU_PEAK_SIDE


def name_workload(workload):
    columns = workload.columns
    return f"{workload.model} {columns.get('matrix_size') or columns.get('sequence_length', '')}".strip()


def find_best(rows, precision):
    """Return the row of the fastest matmul of a precision, or None."""
    found = [r for r in rows if r["model"] == "matmul" and r["precision"] == precision and r["status"] == "ok"]
    return max(found, key=lambda row: row["tflops"], default=None)


def size_of(row):
    return tuple(map(int, row["matrix_size"].split("x")))


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
        for model, formula in operators.BANDWIDTHS.items() if "bandwidth" in ops else ():
            sweep.keep(sweep.measure(operators.bandwidth(model, formula), "float32"))
        for name, precision in EIGHT_BITS.items():
            if name in ops:
                measure_eight_bits(sweep, precision)
        for precision in operators.GEMV_PRECISIONS if "gemv" in ops else ():
            if not sweep.keep(sweep.measure(operators.gemv(precision), precision)):
                break
        if "attention" in ops:
            measure_attention(sweep)
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
            flops_per_second = sweep.estimate_speed(precision)
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
    size, precision = size_of(best), best["precision"]
    peak, note = sweep.measure(operators.matmul(size), precision, seed=1), "the best size, measured again"
    rival = sweep.measure(operators.convolution_1x1(size), precision, seed=1)
    sweep.keep(rival)
    if rival["status"] == "ok" and rival["tflops"] > peak.get("tflops", 0):
        note = f"a 1x1 convolution in channels_last, faster than the matmul ({describe_rate(peak.get('tflops', 0))})"
        peak = rival
    note = "; ".join(filter(None, [note, peak["note"]]))
    sweep.keep(peak | {"workload": "matmul", "model": "matmul-peak", "note": note})


def measure_eight_bits(sweep: Sweep, precision):
    """Measure a matmul of 8-bit numbers, and the same size in bfloat16 if it was not among SIZES and PRECISION."""
    size, build = (sweep.peak_side,) * 3, functools.partial(operators.matmul_of_bytes, precision)
    if sweep.skips(build(size), precision, sweep.estimate_speed(precision, build)):
        return
    row = sweep.measure(build(size), precision)
    if sweep.keep(row) and find_bfloat16(sweep.rows, row) is None:
        sweep.keep(sweep.measure(operators.matmul(size), "bfloat16"))


def find_bfloat16(rows, row):
    """Return the bfloat16 matmul of the same size as a row, or None."""
    like = {"model": "matmul", "precision": "bfloat16", "matrix_size": row["matrix_size"], "status": "ok"}
    return next((each for each in rows if all(each.get(name) == value for name, value in like.items())), None)


def measure_attention(sweep: Sweep):
    """Measure causal attention, short sequences first, until one fails or would take too long."""
    device, rate = sweep.bench.device.device, None
    precision = "float32" if device == "cpu" else "bfloat16"  # what `make llm` takes by default
    for tokens in operators.ATTENTION_TOKENS:
        workload = operators.attention(tokens, device)
        if sweep.skips(workload, precision, rate):
            return
        row = sweep.measure(workload, precision)
        if not sweep.keep(row):
            return
        rate = 1e12 * row["tflops"]


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
    moved = [f"{row['model']} {row['throughput']:.4g} GB/s" for row in ok if row["workload"] == "bandwidth"]
    lines += ["bandwidth, float32: " + ", ".join(moved)] if moved else []
    for row in (row for row in ok if row["model"] == "matmul-8bit"):
        half, rate = find_bfloat16(ok, row), describe_rate(row["tflops"]).replace("FLOP", "OP")
        ratio = f", {row['tflops'] / half['tflops']:.3g} times the rate of bfloat16" if half else ""
        lines.append(f"{row['precision']} matmul {row['matrix_size']}: {rate}{ratio}")
    read = [f"{row['precision']} {row['throughput']:.4g} GB/s" for row in ok if row["model"] == "gemv"]
    lines += ["matmul with M = 1 (decode), weights read: " + ", ".join(read)] if read else []
    measured = peaks.measured_peaks([*stored, *rows])
    for row in (row for row in ok if row["model"] == "attention"):
        share = peaks.fraction_of_peak(row, measured)
        of_peak = f", {100 * share:.3g} % of the measured peak" if share else ""
        rate = f"{row['precision']} {describe_rate(row['tflops'])}{of_peak}"
        lines.append(f"causal attention, {row['sequence_length']} tokens: {rate}")
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
