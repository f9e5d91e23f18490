"""The machine's own ceilings: matrix products over sizes and precisions, convolutions, memory bandwidth.

    make tflops
    SIZES=1024,4096,8192x8192x512 PRECISION=bfloat16 make tflops
    FRAMEWORK=tensorflow python tflops_sweep.py

`make help` lists the settings.
"""

import logging
import math
import os
import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace

from tqdm import tqdm

from bench import frameworks, run
from bench.machine import environment, meters
from bench.main import EXIT_STATUS, main
from bench.rows import peaks, report, results
from bench.settings import SettingError
from bench.work import operators

log = logging.getLogger("bench")

LOOK_SIZE = (512, 512, 512)  # how fast a product is, before a large one is tried


@dataclass
class Sweep:
    """One sweep under way: where its rows go, what it has found, and the bar that shows it."""

    settings: object
    host: environment.Environment
    path: object
    run_id: str = field(default_factory=run.new_run_id)
    rows: list = field(default_factory=list)

    def __post_init__(self):
        self.framework = frameworks.load(self.settings.framework)
        self.device = self.framework.find_device(self.settings)
        if self.settings.use_gpu and self.device.device == "cpu":
            run.warn_of_no_gpu(self.settings)
        # No energy: five seconds more of each product would be most of the time that a sweep takes.
        read = meters.open_heat_reader(self.device.device, self.device.device_name)
        self.instruments, self.precisions = meters.Instruments(read=read), self.settings.precision
        count = len(self.precisions) * (len(self.settings.sizes) + 3) + 3
        self.bar = tqdm(total=count, unit=" measured", disable=None, leave=False, file=sys.stderr)

    def measure(self, workload, precision, seed=0, counts=True):
        """The row of one operator, not stored yet; a failure is a row too."""
        settings = replace(self.settings, precision=precision, seed=self.settings.seed + seed).on(self.device.device)
        row = run.begin_row(settings, self.host, workload, None, "device", self.run_id)
        row |= asdict(self.device) | {"device_name": self.device.device_name or self.host.cpu_name}
        self.bar.set_description_str(f"{precision} {workload.model} {workload.columns.get('matrix_size', '')}".strip())
        try:
            show = lambda workload: nullcontext()  # noqa: E731  the sweep has a bar of its own
            bench = run.Bench(self.framework, self.device.device, self.host, lambda _: workload, self.instruments)
            (columns,) = run.measure_quantity(bench, settings, None, "device", progress=show)
            row |= columns | {"batch_size": workload.columns.get("batch_size")}
        except Exception as error:
            row |= run.describe_failure(error, row["note"])
        self.bar.update(int(counts))
        return row

    def keep(self, row):
        """Store a row, with a flag where it is over what the vendor says."""
        if peaks.is_implausible(row):
            row["flags"] = " ".join([*row["flags"].split(), "implausible"])
        results.append(self.path, row | {"timestamp": run.utc_now()})
        self.rows.append(row)
        if row["status"] == "interrupted":  # in the midst of its windows; what was complete is stored
            raise KeyboardInterrupt
        return row["status"] == "ok"

    def leaves_out(self, workload, precision, flops_per_second, why=""):
        """Whether one step is too much for this machine or for MAX_SECONDS; then a line says so."""
        seconds = workload.items_per_step * workload.flops_per_item / (flops_per_second or math.inf)
        if not why and seconds > self.settings.max_seconds / 2:  # a dozen steps are the least that a result takes
            why = f"one step would take about {seconds:.2g} s: a longer MAX_SECONDS includes it"
        if why:
            what = f"{workload.model} {workload.columns.get('matrix_size', '')}".strip()
            tqdm.write(f"{precision} {what} is left out: {why}", file=sys.stderr)
            self.bar.update()
        return bool(why)

    def best(self, precision):
        """The fastest product of a precision so far, or None."""
        found = [r for r in self.rows if r["model"] == "matmul" and r["precision"] == precision and r["status"] == "ok"]
        return max(found, key=lambda row: row["tflops"], default=None)


def sweep_sizes(sweep, precision):
    """Measure the products of one precision, small ones first; leaves out what cannot fit or takes too long."""
    last, flops_per_second = (0, 0, 0), None
    for size in sorted(sweep.settings.sizes, key=math.prod):
        workload = operators.matmul(size)
        # From a tiny product, which takes as long as it takes to start one, nothing follows for a large one.
        if math.prod(last) < math.prod(LOOK_SIZE) < math.prod(size):
            flops_per_second = look(sweep, precision)
        if sweep.leaves_out(workload, precision, flops_per_second, too_large(sweep, size)):
            continue
        row = sweep.measure(workload, precision)
        if not sweep.keep(row):
            tqdm.write(f"{precision} {row['status']}: {row['note']}", file=sys.stderr)
            return
        last, flops_per_second = size, 1e12 * row["tflops"]
        best = sweep.best(precision)
        sweep.bar.set_postfix_str(f"best {best['tflops']:.4g} TFLOP/s at {best['matrix_size']}")


def look(sweep, precision):
    """FLOP/s of a product of middling size, which is not stored; None where it fails."""
    row = sweep.measure(operators.matmul(LOOK_SIZE), precision, counts=False)
    return 1e12 * row["tflops"] if row["status"] == "ok" else None


def size_of(row):
    return tuple(map(int, row["matrix_size"].split("x")))


def too_large(sweep, size):
    """Why a product cannot fit; "" where it can, or where only trying tells."""
    m, n, k = size
    gib = 4 * (operators.MIN_SETS * (m * k + k * n) + m * n) / environment.GIB
    installed = sweep.host.memory_gb
    return f"it takes {gib:.3g} GiB and the machine has {installed:g}" if installed and gib > installed / 2 else ""


def find_peak(sweep, precision):
    """Measure the best size again, fresh, for a maximum of noisy figures flatters itself; and as a convolution.

    The BLAS behind a CPU's matrix product may leave half of the chip unused where its convolutions do not.
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
        note = f"a 1x1 convolution in channels_last, faster than the product ({peak.get('tflops', 0):.4g} TFLOP/s)"
        peak = rival
    sweep.keep(peak | {"workload": "matmul", "model": "matmul-peak", "note": run.join(note, peak["note"])})


def run_sweep(settings, host, path, _):
    """Run everything, then say what was found; returns the exit status."""
    networks_only = [precision for precision in settings.precision if precision.startswith("mixed")]
    if networks_only:
        raise SettingError(f"PRECISION={networks_only[0]!r} is for networks: name the 16-bit precision itself")
    sweep = Sweep(settings, host, path)
    try:
        for precision in sweep.precisions:
            sweep_sizes(sweep, precision)
            find_peak(sweep, precision)
            if sweep.best(precision):
                conv3x3 = operators.convolution_3x3(sweep.device.device)
                rate = 1e12 * sweep.best(precision)["tflops"]
                if math.prod(size_of(sweep.best(precision))) < math.prod(LOOK_SIZE):
                    rate = max(rate, look(sweep, precision) or 0)
                if not sweep.leaves_out(conv3x3, precision, rate):
                    sweep.keep(sweep.measure(conv3x3, precision))
        for model, formula in operators.BANDWIDTHS.items():
            sweep.keep(sweep.measure(operators.bandwidth(model, formula), "float32"))
        status = "ok" if any(row["status"] == "ok" for row in sweep.rows) else "failed"
    except KeyboardInterrupt:
        status = "interrupted"
    finally:
        sweep.bar.close()
    print(describe(sweep, results.read(path) if path.exists() else []))
    if status == "ok":
        draw(settings.results_dir)
    print(f"added to {os.path.relpath(path)}")
    return EXIT_STATUS.get(status, 1)


def describe(sweep, stored):
    """The closing table: TFLOP/s by size and precision, the best of each marked, then peaks and GB/s."""
    first = f"TFLOP/s, {sweep.settings.framework} {sweep.device.framework_version}"
    lines = [f"{first} on {sweep.device.device_name or sweep.host.cpu_name} ({sweep.device.device})"]
    ok = [row for row in sweep.rows if row["status"] == "ok"]
    shown = [precision for precision in sweep.precisions if sweep.best(precision)]
    lines.append(f"  {'':16}" + "".join(f"{precision:>12}" for precision in shown))
    table = []
    cells = {
        (row["model"], row["matrix_size"] if row["model"] == "matmul" else "", row["precision"]): row
        for row in ok
        if row.get("matrix_size") or row["model"] == "conv3x3"
    }
    for size in sorted(sweep.settings.sizes, key=math.prod):
        table.append(describe_line(cells, "matmul", operators.name_size(size), shown, sweep))
    for model, label in (("conv1x1", "1x1 convolution"), ("conv3x3", "3x3 convolution"), ("matmul-peak", "peak")):
        table.append(describe_line(cells, model, "", shown, sweep, label))
    lines += [line for line in table if line]
    failed = [row for row in sweep.rows if row["status"] != "ok"]
    lines += [f"{row['precision']} {row['model']}: {row['status']}: {row['note']}" for row in failed]
    moved = [f"{row['model']} {row['throughput']:.4g} GB/s" for row in ok if row["workload"] == "bandwidth"]
    lines += ["bandwidth, float32: " + ", ".join(moved)] if moved else []
    flags = {flag for row in ok for flag in row["flags"].split()} - {"few_windows", "ci_not_met"}
    lines += [report.explain(flags)] if flags else []
    return "\n".join(lines + peaks.compare_frameworks(stored, sweep.device.device))


def describe_line(cells, model, size, precisions, sweep, label=None):
    """One line of the closing table; "" where no precision has anything in it."""
    if not any((model, size, precision) in cells for precision in precisions):
        return ""
    line = f"  {label or size:<16}"
    for precision in precisions:
        row = cells.get((model, size, precision))
        mark = "*" if row is sweep.best(precision) else " "
        line += f"{row['tflops']:>11.4g}{mark}" if row else f"{'':12}"
    return line.rstrip()


def draw(folder):
    """The picture of all sweeps that are stored; without pandas and matplotlib there is none."""
    try:
        import plot_results
    except ImportError as error:
        log.warning("no picture: it needs the package %s", error.name)
        return
    path = plot_results.draw_tflops(folder)
    if path:
        print(f"drawn as {os.path.relpath(path)}")


def first_size(settings):
    """The Workload of a sweep that ended without a word."""
    return operators.matmul(settings.sizes[0])


if __name__ == "__main__":
    sys.exit(main("tflops", first_size, run_sweep))
