"""Measure the machine's peaks: matmuls by size and precision, convolutions, 8 bits, attention, memory bandwidth.

    make tflops
    OPS=int8,float8,gemv,attention make tflops
    SIZES=1024,4096,8192x8192x512 PRECISION=bfloat16 make tflops
    FRAMEWORK=tensorflow .venv-tensorflow/bin/python tflops_sweep.py
    NUM_DEVICES=2 make tflops               only all-reduce

`make settings` explains the settings.
"""

import functools
import logging
import math
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import replace

from tqdm import tqdm

from bench import run
from bench.host import resources
from bench.host.environment import GIB
from bench.launch import main
from bench.records import cells, peaks, report, results
from bench.records.columns import format_number
from bench.records.verdict import bus_bandwidth
from bench.timing.measure import timed
from bench.workloads import data, operators

MESSAGES = tuple(1024 * 4**i for i in range(11))  # bytes of an all-reduce, 1 KiB to 1 GiB
COPIES = 4  # of a message, that a rank has in memory
TRIAL_SIZE = (512, 512, 512)  # of a matmul that estimates the speed before a large one is tried
CPU_PEAK_SIDE, GPU_PEAK_SIDE = 1024, 4096  # M = N = K from which a matmul may reach a device's peak
EIGHT_BITS = {"int8": "int8", "float8": "float8_e4m3"}  # operators and their precisions
PROBE_SECONDS, PROBE_ROUNDS = 0.15, 5  # of a window of the power probe, in which the clock has to adapt

log = logging.getLogger("bench")

REFUSED = ("wrong_output", "work_skipped", "constant_output")  # of one size; after other failures all would fail


class Sweep:
    """A sweep in progress: the file of its rows, the rows so far, and the progress bar."""

    def __init__(self, bench: run.Bench, path):
        # Energy needs five more seconds for each matmul, which would be most of a sweep's time.
        self.bench = replace(bench, instruments=replace(bench.instruments, counter=None))
        self.path, self.run_id, self.rows = path, cells.new_run_id(), []
        self.settings, self.precisions = bench.settings, bench.settings.precision
        self.peak_side = CPU_PEAK_SIDE if bench.device.device == "cpu" else GPU_PEAK_SIDE
        self.reaches_peak = max(map(math.prod, self.settings.sizes)) >= self.peak_side**3
        counts = {"matmul": len(self.precisions) * (len(self.settings.sizes) + 2), "convolution": len(self.precisions)}
        counts |= {"bandwidth": 3, "gemv": 3, "attention": 3, "power": 0}
        count = sum(counts.get(name, 1) for name in self.settings.ops)
        total = count if bench.device.world_size == 1 else len(MESSAGES)
        hidden = None if bench.reports else True  # None: without a terminal
        self.bar = tqdm(total=total, unit=" measured", disable=hidden, leave=False, file=sys.stderr)

    def measure(self, workload, precision, seed=0, counts=True):
        """Measure one operator and return its row without storing it; a failure is a row too."""
        settings = replace(self.settings, precision=precision, seed=self.settings.seed + seed)
        bench = replace(self.bench, settings=settings)
        row = cells.begin_row(settings, bench.host, bench.device.cells(), workload, None, "device", self.run_id)
        self.bar.set_description_str(f"{precision} {name_workload(workload)}")
        try:
            row |= run.measure_quantity(bench, workload, None, "device", shows_bar=False)  # the sweep has its own
        except Exception as error:
            row |= run.describe_failure(error, bench)
        self.bar.update(int(counts))
        if row["status"] == "interrupted":  # Ctrl-C during the windows; the complete ones are stored
            self.keep(row)
            raise KeyboardInterrupt
        return row

    def keep(self, row):
        """Store a row, with a flag if it exceeds the vendor's figure; returns whether it was measured."""
        row = peaks.flag_implausible(row) | {"timestamp": cells.utc_now()}
        if self.bench.reports:
            results.append(self.path, row)
        self.rows.append(row)
        return row["status"] == "ok"

    def skips(self, workload, precision, flops_per_second, reason=""):
        """Return whether to skip a workload: for the reason given, or because a step takes too long; print why."""
        seconds = workload.items_per_step * (workload.flops_per_item or 0) / (flops_per_second or math.inf)
        if not reason and seconds > self.settings.max_seconds / 2:  # a result needs a dozen steps or more
            reason = f"one step would take about {seconds:.2g} s: a longer MAX_SECONDS includes it"
        if reason:
            tqdm.write(f"{precision} {name_workload(workload)} is skipped: {reason}", file=sys.stderr)
            self.bar.update()
        return bool(reason)

    def best(self, precision):
        """Return the row of the fastest matmul of a precision so far, or None."""
        found = [r for r in self.rows if r["model"] == "matmul" and r["precision"] == precision and r["status"] == "ok"]
        return max(found, key=lambda row: row["tflops"], default=None)


def name_workload(workload):
    columns = workload.columns
    return f"{workload.model} {columns.get('matrix_size') or columns.get('sequence_length', '')}".strip()


def sweep_sizes(sweep: Sweep, precision):
    """Measure the matmuls of one precision, small ones first; skip those that cannot fit or take too long."""
    last, flops_per_second = (0, 0, 0), None
    for size in sorted(sweep.settings.sizes, key=math.prod):
        workload = operators.matmul(size)
        # Tiny matmuls are launch-bound: their rate does not predict that of a large one.
        if math.prod(last) < math.prod(TRIAL_SIZE) < math.prod(size):
            flops_per_second = estimate_speed(sweep, precision, operators.matmul)
        if sweep.skips(workload, precision, flops_per_second, too_large(size)):
            continue
        row = sweep.measure(workload, precision)
        if not sweep.keep(row):
            tqdm.write(f"{precision} {row['status']}: {row['note']}", file=sys.stderr)
            if row["status"] in REFUSED:
                continue
            return
        last, flops_per_second = size, 1e12 * row["tflops"]
        best = sweep.best(precision)
        sweep.bar.set_postfix_str(f"best {describe_rate(best['tflops'])} at {best['matrix_size']}")


def estimate_speed(sweep: Sweep, precision, build):
    """Measure a matmul of TRIAL_SIZE and return its FLOP/s, or None if it fails. Its row is not stored."""
    row = sweep.measure(build(TRIAL_SIZE), precision, counts=False)
    return 1e12 * row["tflops"] if row["status"] == "ok" else None


def size_of(row):
    return tuple(map(int, row["matrix_size"].split("x")))


def too_large(size):
    """Return why a matmul cannot fit into memory, or "" if it may."""
    m, n, k = size
    needed, free = 4 * (operators.MIN_SETS * (m * k + k * n) + m * n), resources.available_bytes()
    return f"it needs {needed / GIB:.3g} GiB of {free / GIB:.3g} that are free" if free and needed > free / 2 else ""


def find_peak(sweep: Sweep, precision):
    """Measure the best size again, because the maximum of noisy figures is too high, and as a 1x1 convolution.

    A CPU's BLAS may leave half of the chip idle in matmuls, but not in convolutions. Without a large matmul among SIZES
    there is no peak: other rows are compared with it, and small matmuls reach a fraction of what a device can do.
    """
    best = sweep.best(precision)
    if best is None or not sweep.reaches_peak:
        return
    size, note = size_of(best), f"the best of {len(sweep.settings.sizes)} sizes, measured again"
    peak = sweep.measure(operators.matmul(size), precision, seed=1)
    try:
        rival = sweep.measure(operators.convolution_1x1(size), precision, seed=1)
        sweep.keep(rival)
        if rival["status"] == "ok" and rival["tflops"] > peak.get("tflops", 0):
            slower = describe_rate(peak.get("tflops", 0))
            peak, note = rival, f"a 1x1 convolution in channels_last, faster than the matmul ({slower})"
        if "power" in sweep.settings.ops and peak.get("tflops"):
            peak |= {"power_probe": probe_power(sweep, precision, peak["tflops"])}
    finally:  # Ctrl-C ends the rest; the peak is stored
        note = "; ".join(filter(None, [note, peak["note"]]))
        sweep.keep(peak | {"workload": "matmul", "model": "matmul-peak", "note": note})


def probe_power(sweep: Sweep, precision, tflops, clock=time.perf_counter):
    """Return the rate of a large matmul on zeros over its rate on random data, or None if it fails.

    Zeros switch fewer transistors. Windows of both take turns, and the same work, untimed, precedes each of them. The
    median of the pairs' ratios counts, because other programs may slow some windows down.
    """
    size, settings = (sweep.peak_side,) * 3, replace(sweep.settings, precision=precision)
    works = [operators.matmul(size), operators.matmul(size, [data.zero_pool])]
    steps = max(1, round(PROBE_SECONDS * 1e12 * tflops / works[0].flops_per_item))
    seconds = [[], []]
    try:
        with ExitStack() as stack:
            sessions = [sweep.bench.framework.open_session(work, settings, None, "device") for work in works]
            for session in sessions:
                stack.callback(session.close)
            for _ in range(PROBE_ROUNDS):
                for session, found in zip(sessions, seconds, strict=True):
                    timed(session, clock, steps)
                    found.append(timed(session, clock, steps))
    except Exception as error:  # the peak is known all the same
        log.info("no power probe in %s: %s", precision, error)
        return None
    return statistics.median(random / zeros for random, zeros in zip(*seconds, strict=True))


def measure_eight_bits(sweep: Sweep, precision):
    """Measure a matmul of 8-bit numbers, and the same size in bfloat16 if it was not among SIZES and PRECISION."""
    size, build = (sweep.peak_side,) * 3, functools.partial(operators.matmul_of_bytes, precision)
    if sweep.skips(build(size), precision, estimate_speed(sweep, precision, build)):
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


def measure_convolution(sweep: Sweep, precision):
    """Measure the 3x3 convolution of tf-metal-experiments, unless it would take too long."""
    best = sweep.best(precision)
    if best is None:
        return
    rate = 1e12 * best["tflops"]
    if math.prod(size_of(best)) < math.prod(TRIAL_SIZE):
        rate = max(rate, estimate_speed(sweep, precision, operators.matmul) or 0)
    conv3x3 = operators.convolution_3x3(sweep.bench.device.device)
    if not sweep.skips(conv3x3, precision, rate):
        sweep.keep(sweep.measure(conv3x3, precision))


def run_sweep(bench, path, _):
    """Measure everything, then print what was found; returns the exit status."""
    sweep, one = Sweep(bench, path), bench.device.world_size == 1
    try:
        (sweep_device if one else sweep_messages)(sweep)
        status = "ok" if any(row["status"] == "ok" for row in sweep.rows) else "failed"
    except KeyboardInterrupt:
        status = "interrupted"
    finally:
        sweep.bar.close()
    if bench.reports:
        stored = results.read(path)
        print(describe(sweep, stored) if one else describe_messages(sweep))
    return run.EXIT_STATUS.get(status, 1)


def sweep_device(sweep: Sweep):
    """Measure everything that one device can do."""
    ops = sweep.settings.ops
    for precision in sweep.precisions if "matmul" in ops else ():
        sweep_sizes(sweep, precision)
        find_peak(sweep, precision)
        if "convolution" in ops:
            measure_convolution(sweep, precision)
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


def sweep_messages(sweep: Sweep):
    """Measure all-reduce over the ranks, small messages first, up to the first failure."""
    bench, me = sweep.bench, sweep.bench.group.ranks
    room = min(bench.group.gather((resources.available_bytes() or math.inf) / 2))
    for size in MESSAGES:
        workload = operators.all_reduce(size, me.rank, me.world_size)
        reason = f"it needs {COPIES * size / GIB:.3g} GiB on each rank" if COPIES * size > room else ""
        if not sweep.skips(workload, "float32", None, reason) and not sweep.keep(sweep.measure(workload, "float32")):
            return


def describe_messages(sweep: Sweep):
    """Return the closing table of all-reduce."""
    device, ranks = sweep.bench.device, sweep.bench.device.world_size
    machines = "one machine" if device.nodes == 1 else f"{device.nodes} machines"
    lines = [f"all-reduce of {ranks} devices in {machines}, {device.device_name} ({device.device})"]
    lines.append(f"{'bytes':>14}{'seconds':>12}{'algorithm GB/s':>16}{'bus GB/s':>12}")
    for row in sweep.rows:
        if row["status"] != "ok":
            lines.append(f"{row['message_bytes']:>14,}  {row['status']}: {row['note']}")
            continue
        rate, bus = row["throughput"], bus_bandwidth(row["throughput"], ranks)
        lines.append(f"{row['message_bytes']:>14,}{row['step_seconds_median']:>12.4g}{rate:>16.4g}{bus:>12.4g}")
    flags = {flag for row in sweep.rows for flag in row.get("flags", "").split()}
    return "\n".join([*lines, report.explain(flags)]).rstrip()


def describe(sweep: Sweep, stored):
    """Return the closing table: rates by size and precision with the best of each marked, the peaks, and GB/s."""
    device = sweep.bench.device
    ok = [row for row in sweep.rows if row["status"] == "ok"]
    shown = [precision for precision in sweep.precisions if sweep.best(precision)]
    is_fast = any(sweep.best(precision)["tflops"] >= 1 for precision in shown)
    unit, scale = ("TFLOP/s", 1) if is_fast else ("GFLOP/s", 1000)
    framework = f"{sweep.settings.framework} {device.framework_version}"
    lines = [f"{unit}, {framework} on {device.device_name} ({device.device})"]
    lines += [f"  {'':16}" + "".join(f"{precision:>12}" for precision in shown)] if shown else []
    parts = [(operators.name_size(size), "matmul") for size in sorted(sweep.settings.sizes, key=math.prod)]
    parts += [("1x1 convolution", "conv1x1"), ("3x3 convolution", "conv3x3"), ("peak", "matmul-peak")]
    for label, model in parts:
        found = [row for row in ok if row["model"] == model and (model != "matmul" or row["matrix_size"] == label)]
        by_precision = {row["precision"]: row for row in found}
        line = f"  {label:<16}"
        for precision in shown:
            row = by_precision.get(precision)
            rate = format_number(scale * row["tflops"]) if row else ""
            line += f"{rate:>11}{'*' if row and row is sweep.best(precision) else ' '}"
        lines += [line.rstrip()] if found else []
    lines += ["  * the fastest matmul of a precision"] if shown else []
    if shown and not sweep.reaches_peak:
        lines.append(f"  no peak: small matmuls do not reach it; SIZES needs one of {sweep.peak_side} or more")
    lines += [f"{r['precision']} {r['model']}: {r['status']}: {r['note']}" for r in sweep.rows if r["status"] != "ok"]
    moved = [f"{row['model']} {row['throughput']:.4g} GB/s" for row in ok if row["workload"] == "bandwidth"]
    lines += ["bandwidth, float32: " + ", ".join(moved)] if moved else []
    best = peaks.measured_peaks(stored)
    for row in (row for row in ok if row["model"] == "matmul-8bit"):
        half, rate = find_bfloat16(ok, row), describe_rate(row["tflops"]).replace("FLOP", "OP")
        ratio = f", {row['tflops'] / half['tflops']:.3g} times the rate of bfloat16" if half else ""
        lines.append(f"{row['precision']} matmul {row['matrix_size']}: {rate}{ratio}")
    read = [f"{row['precision']} {row['throughput']:.4g} GB/s" for row in ok if row["model"] == "gemv"]
    lines += ["matmul with M = 1 (decode), weights read: " + ", ".join(read)] if read else []
    for row in (row for row in ok if row["model"] == "attention"):
        share = peaks.fraction_of_peak(row, best)
        of_peak = f", {100 * share:.3g} % of the measured peak" if share else ""
        rate = f"{row['precision']} {describe_rate(row['tflops'])}{of_peak}"
        lines.append(f"causal attention, {row['sequence_length']} tokens: {rate}")
    lines += filter(None, [peaks.describe_power(ok)])
    flags = {flag for row in ok for flag in row["flags"].split()}
    lines += [report.explain(flags)] if flags else []
    return "\n".join(lines + peaks.compare_frameworks(stored, device.device))


def describe_rate(tflops):
    """Format a rate with a unit in which it is readable."""
    return f"{tflops:.4g} TFLOP/s" if tflops >= 1 else f"{1000 * tflops:.4g} GFLOP/s"


def first_size(settings):
    """Return the Workload that represents a sweep that was killed."""
    return operators.matmul(settings.sizes[0])


if __name__ == "__main__":
    sys.exit(main("tflops", first_size, run_sweep))
