"""The machine's ceilings: matmuls over sizes and precisions, convolutions, memory bandwidth.

    make tflops
    SIZES=1024,4096,8192x8192x512 PRECISION=bfloat16 make tflops
    FRAMEWORK=tensorflow .venv-tensorflow/bin/python tflops_sweep.py
    NUM_DEVICES=2 make tflops               only all-reduce

`make help` lists the settings.
"""

import math
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from tqdm import tqdm

from bench import run
from bench.launch import main
from bench.machine.environment import GIB
from bench.rows import cells, peaks, report, results
from bench.rows.verdict import bus_bandwidth
from bench.settings import SettingError
from bench.work import operators

MESSAGES = tuple(1024 * 4**i for i in range(10))  # bytes of an all-reduce, 1 KiB to 256 MiB
COPIES = 4  # of a message, that a rank has in memory
LOOK_SIZE = (512, 512, 512)  # a quick look at the speed, before a large matmul is tried


@dataclass
class Sweep:
    """One sweep under way: where its rows go, what it has found, and its progress bar."""

    bench: run.Bench
    path: Path
    run_id: str = field(default_factory=cells.new_run_id)
    rows: list[dict] = field(default_factory=list)

    def __post_init__(self):
        # No energy: five more seconds of each matmul would be most of a sweep's time.
        self.bench = replace(self.bench, instruments=replace(self.bench.instruments, counter=None))
        self.settings, self.precisions = self.bench.settings, self.bench.settings.precision
        count = len(self.precisions) * (len(self.settings.sizes) + 3) + 3
        count = count if self.bench.device.world_size == 1 else len(MESSAGES)
        look = {"disable": None if self.bench.reports else True, "leave": False, "file": sys.stderr}
        self.bar = tqdm(total=count, unit=" measured", **look)

    def measure(self, workload, precision, seed=0, counts=True):
        """The row of one operator, not stored yet; a failure is a row too."""
        settings = replace(self.settings, precision=precision, seed=self.settings.seed + seed)
        bench = replace(self.bench, settings=settings)
        row = cells.begin_row(settings, bench.host, bench.device.cells(), workload, None, "device", self.run_id)
        self.bar.set_description_str(f"{precision} {name_workload(workload)}")
        try:
            show = lambda workload: nullcontext()  # noqa: E731  the sweep has its own bar
            (columns,) = run.measure_quantity(bench, workload, None, "device", progress=show)
            row |= columns
        except Exception as error:
            row |= run.describe_failure(error, bench)
        self.bar.update(int(counts))
        if row["status"] == "interrupted":  # Ctrl-C in its windows; the complete ones are stored
            self.keep(row)
            raise KeyboardInterrupt
        return row

    def keep(self, row):
        """Store a row, with a flag where it exceeds what the vendor says."""
        row = peaks.flag_implausible(row) | {"timestamp": cells.utc_now()}
        self.bench.end_failed_rank(row)
        if self.bench.reports:
            results.append(self.path, row)
        self.rows.append(row)
        return row["status"] == "ok"

    def skips(self, workload, precision, flops_per_second, why=""):
        """Whether one step is too much for this machine or for MAX_SECONDS; then a line says so."""
        seconds = workload.items_per_step * (workload.flops_per_item or 0) / (flops_per_second or math.inf)
        if not why and seconds > self.settings.max_seconds / 2:  # a result needs a dozen steps or more
            why = f"one step would take about {seconds:.2g} s: a longer MAX_SECONDS includes it"
        if why:
            tqdm.write(f"{precision} {name_workload(workload)} is left out: {why}", file=sys.stderr)
            self.bar.update()
        return bool(why)

    def best(self, precision):
        """The fastest matmul of a precision so far, or None."""
        found = [r for r in self.rows if r["model"] == "matmul" and r["precision"] == precision and r["status"] == "ok"]
        return max(found, key=lambda row: row["tflops"], default=None)


def name_workload(workload):
    return f"{workload.model} {workload.columns.get('matrix_size', '')}".strip()


def sweep_sizes(sweep: Sweep, precision):
    """Measure the matmuls of one precision, small ones first; skip what cannot fit or takes too long."""
    last, flops_per_second = (0, 0, 0), None
    for size in sorted(sweep.settings.sizes, key=math.prod):
        workload = operators.matmul(size)
        # Tiny matmuls are launch-bound: their rate says nothing about a large one.
        if math.prod(last) < math.prod(LOOK_SIZE) < math.prod(size):
            flops_per_second = look(sweep, precision)
        if sweep.skips(workload, precision, flops_per_second, too_large(sweep.bench.host, size)):
            continue
        row = sweep.measure(workload, precision)
        if not sweep.keep(row):
            tqdm.write(f"{precision} {row['status']}: {row['note']}", file=sys.stderr)
            return
        last, flops_per_second = size, 1e12 * row["tflops"]
        best = sweep.best(precision)
        sweep.bar.set_postfix_str(f"best {best['tflops']:.4g} TFLOP/s at {best['matrix_size']}")


def look(sweep: Sweep, precision):
    """FLOP/s of a matmul of LOOK_SIZE, which is not stored; None where it fails."""
    row = sweep.measure(operators.matmul(LOOK_SIZE), precision, counts=False)
    return 1e12 * row["tflops"] if row["status"] == "ok" else None


def size_of(row):
    return tuple(map(int, row["matrix_size"].split("x")))


def too_large(host, size):
    """Why a matmul cannot fit; "" where it can, or where only trying tells."""
    m, n, k = size
    gib = 4 * (operators.MIN_SETS * (m * k + k * n) + m * n) / GIB
    installed = host.memory_gb
    return f"it takes {gib:.3g} GiB and the machine has {installed:g}" if installed and gib > installed / 2 else ""


def find_peak(sweep: Sweep, precision):
    """Measure the best size again, because the maximum of noisy figures is too high; and as a convolution.

    A CPU's BLAS may leave half of the chip unused in matmuls where its convolutions do not.
    """
    best = sweep.best(precision)
    if best is None:
        return
    size = size_of(best)
    peak = sweep.measure(operators.matmul(size), precision, seed=1)
    rival = sweep.measure(operators.convolution_1x1(size), precision, seed=1)
    sweep.keep(rival)
    note = f"the best of {len(sweep.settings.sizes)} sizes, measured again"
    if rival["status"] == "ok" and rival["tflops"] > peak.get("tflops", 0):
        note = f"a 1x1 convolution in channels_last, faster than the matmul ({peak.get('tflops', 0):.4g} TFLOP/s)"
        peak = rival
    note = "; ".join(filter(None, [note, peak["note"]]))
    sweep.keep(peak | {"workload": "matmul", "model": "matmul-peak", "note": note})


def measure_convolution(sweep: Sweep, precision):
    """Measure the 3x3 convolution of tf-metal-experiments, unless it would take too long."""
    best = sweep.best(precision)
    if best is None:
        return
    rate = 1e12 * best["tflops"]
    if math.prod(size_of(best)) < math.prod(LOOK_SIZE):
        rate = max(rate, look(sweep, precision) or 0)
    conv3x3 = operators.convolution_3x3(sweep.bench.device.device)
    if not sweep.skips(conv3x3, precision, rate):
        sweep.keep(sweep.measure(conv3x3, precision))


def run_sweep(bench, path, _):
    """Run everything, then report what was found; returns the exit status."""
    for precision in bench.settings.precision:
        if precision.startswith("mixed"):
            raise SettingError(f"PRECISION={precision!r} is for models: name the 16-bit precision itself")
    sweep, one = Sweep(bench, path), bench.device.world_size == 1
    try:
        (sweep_device if one else sweep_messages)(sweep)
        status = "ok" if any(row["status"] == "ok" for row in sweep.rows) else "failed"
    except KeyboardInterrupt:
        status = "interrupted"
    finally:
        sweep.bar.close()
    if bench.reports:
        stored = results.read(path) if path.exists() else []
        print(describe(sweep, stored) if one else describe_messages(sweep))
    return run.EXIT_STATUS.get(status, 1)


def sweep_device(sweep: Sweep):
    """The ceilings of one device."""
    for precision in sweep.precisions:
        sweep_sizes(sweep, precision)
        find_peak(sweep, precision)
        measure_convolution(sweep, precision)
    for model, formula in operators.BANDWIDTHS.items():
        sweep.keep(sweep.measure(operators.bandwidth(model, formula), "float32"))


def sweep_messages(sweep: Sweep):
    """All-reduce over the ranks, the small messages first; ends with the first failure."""
    bench, me = sweep.bench, sweep.bench.group.ranks
    room = min(bench.group.gather((bench.host.memory_gb or math.inf) * GIB / 2 / me.local_world_size))
    for size in MESSAGES:
        workload = operators.all_reduce(size, me.rank, me.world_size)
        too_large = f"it takes {COPIES * size / GIB:.3g} GiB on each rank" if COPIES * size > room else ""
        if not sweep.skips(workload, "float32", None, too_large) and not sweep.keep(sweep.measure(workload, "float32")):
            return


def describe_messages(sweep: Sweep):
    """The closing table of all-reduce."""
    device, ranks = sweep.bench.device, sweep.bench.device.world_size
    where = "one machine" if device.nodes == 1 else f"{device.nodes} machines"
    lines = [f"all-reduce of {ranks} devices in {where}, {device.device_name} ({device.device})"]
    lines.append(f"{'bytes':>14}{'seconds':>12}{'algorithm GB/s':>16}{'bus GB/s':>12}")
    for row in sweep.rows:
        if row["status"] != "ok":
            lines.append(f"{row['message_bytes']:>14,}  {row['status']}: {row['note']}")
            continue
        rate, bus = row["throughput"], bus_bandwidth(row["throughput"], ranks)
        lines.append(f"{row['message_bytes']:>14,}{row['step_seconds_median']:>12.4g}{rate:>16.4g}{bus:>12.4g}")
    flags = {flag for row in sweep.rows for flag in row.get("flags", "").split()} - {"few_windows", "ci_not_met"}
    return "\n".join([*lines, report.explain(flags)]).rstrip()


def describe(sweep: Sweep, stored):
    """The closing table: TFLOP/s by size and precision, the best of each marked, then peaks and GB/s."""
    device = sweep.bench.device
    lines = [
        f"TFLOP/s, {sweep.settings.framework} {device.framework_version} on {device.device_name} ({device.device})"
    ]
    ok = [row for row in sweep.rows if row["status"] == "ok"]
    shown = [precision for precision in sweep.precisions if sweep.best(precision)]
    lines.append(f"  {'':16}" + "".join(f"{precision:>12}" for precision in shown))
    for size in sorted(sweep.settings.sizes, key=math.prod):
        name = operators.name_size(size)
        lines += describe_line(sweep, name, [r for r in ok if (r["model"], r.get("matrix_size")) == ("matmul", name)])
    for model, label in (("conv1x1", "1x1 convolution"), ("conv3x3", "3x3 convolution"), ("matmul-peak", "peak")):
        lines += describe_line(sweep, label, [row for row in ok if row["model"] == model])
    failed = [row for row in sweep.rows if row["status"] != "ok"]
    lines += [f"{row['precision']} {row['model']}: {row['status']}: {row['note']}" for row in failed]
    moved = [f"{row['model']} {row['throughput']:.4g} GB/s" for row in ok if row["workload"] == "bandwidth"]
    lines += ["bandwidth, float32: " + ", ".join(moved)] if moved else []
    flags = {flag for row in ok for flag in row["flags"].split()} - {"few_windows", "ci_not_met"}
    lines += [report.explain(flags)] if flags else []
    return "\n".join(lines + peaks.compare_frameworks(stored, device.device))


def describe_line(sweep: Sweep, label, rows):
    """[one line of the closing table], a cell for each precision that has a best; [] where no row is."""
    if not rows:
        return []
    by_precision, line = {row["precision"]: row for row in rows}, f"  {label:<16}"
    for precision in filter(sweep.best, sweep.precisions):
        row = by_precision.get(precision)
        mark = "*" if row is sweep.best(precision) else " "
        line += f"{row['tflops']:>11.4g}{mark}" if row else f"{'':12}"
    return [line.rstrip()]


def first_size(settings):
    """The Workload that stands for a sweep that was killed."""
    return operators.matmul(settings.sizes[0])


if __name__ == "__main__":
    sys.exit(main("tflops", first_size, run_sweep))
