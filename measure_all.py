"""Measure the standard set on this machine, and draw a card that shows the results.

    make all                              20 to 30 minutes on two CPU cores
    QUICK=1 make all                      a few minutes: fewer workloads, one short process each, wider intervals
    FRAMEWORK=tensorflow make all

bench/workloads/standard_set.py lists what is measured: the machine's peaks, then each workload in several fresh
processes. They are measured in rounds, one process of each benchmark, then the second of each: those of one are minutes
apart, and a card is drawn after each round. After an interruption, run the same
command again: it goes on where it was. What other programs or swapping disturbed is measured again.
"""

import hashlib
import math
import sys
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace

from bench import process  # isort: skip  # first, because it tells of a missing package

from tqdm import tqdm

from bench.host import resources
from bench.host.ranks import refuse_ranks
from bench.plots import card, table
from bench.records import columns, report, results
from bench.records.columns import disturbing_flags, format_number
from bench.records.combine import combine, convert
from bench.records.rows import complete_row
from bench.run import count_processes, find_device, has_result, measure_rounds, read_machine
from bench.settings import Run, SettingError, read_runs
from bench.workloads import standard_set
from bench.workloads.standard_set import STANDARD_SET

LIMIT = 600  # seconds after which a process is ended, except the first one of each benchmark, which may compile
FAST = 0.9  # a precision of 16 bits is left out if its best matmul is slower than this, compared with float32
FASTER = 1.1  # float16 takes the place of bfloat16 if its best matmul is faster than this: T4, V100, M1
UNFINISHED = ("crashed", "timed_out")  # such as by LIMIT on a busy machine: tried once more
# Columns that agree in all processes of a run of the set.
AGREEING = ("commit", "python", "framework", "framework_version", "machine", "device", "device_name", "allocator")
AGREEING += ("cpu_id", "num_threads", "seed")


def plan_benchmarks(run: Run, device, sixteen, memory_gb=math.inf, is_shared=True):
    """Return {name: run} of the lines of the set on this Device, in the order of measuring; say what is left out.

    Args:
        run: the Run of `make all`.
        sixteen: the precision of 16 bits that is fast on the device; "" if none is.
        memory_gb: the device's memory in units of 2**30 bytes, if it is known.
        is_shared: whether that is the system's.
    """
    settings = run.settings
    is_quick = settings.quick
    runs = {}
    uncompiled = []
    small = []
    for line in STANDARD_SET:
        if not line.suits(device.type, settings.framework) or (is_quick and not line.is_quick):
            continue
        if line.below_gb and not is_shared and memory_gb >= line.below_gb and settings.framework == "torch":
            continue  # the larger batch is measured
        if line.compile and device.why_not_compiled:
            uncompiled.append(line.title)
            continue
        usual = 1 if is_quick or line.is_latency else standard_set.RUNS
        for precision in line.list_precisions(device.type, sixteen):
            needed = line.needed_gb(precision, is_shared)
            if memory_gb < needed:
                small.append(f"{line.title} {line.phase}, batch {line.batch_size} ({needed} GB)")
                continue
            change = line.environ(device.type, settings.framework, precision, device.why_not_compiled == "")
            if is_quick:
                change["MAX_SECONDS"] = "1"
                if line.workload == "image":
                    change["SCOPE"] = "device"
            with suppress(SettingError):  # this framework does not have it
                count = str(settings.runs or usual)
                runs[f"{line.workload} {change}"] = run.with_settings(line.workload, **change, RUNS=count)
    if uncompiled:
        say(f"{'; '.join(uncompiled)} are skipped: {device.why_not_compiled}")
    if small:
        memory = "shared memory" if is_shared else "memory of the card"
        say(f"{'; '.join(small)}: skipped, because the {memory} has {memory_gb:.3g} GB")
    return runs


class StoredRuns:
    """The rows of a machine's file by run, and how many processes of a run are sound.

    Attributes:
        rows_by_id: {run_id: rows}; rows that are measured are added.
    """

    def __init__(self, folder, blank):
        """Read the file that a row without a result, blank, belongs to."""
        self.blank = blank
        self.path = results.path_of(folder, blank)
        self.rows_by_id = defaultdict(list)
        for row in results.read(self.path):
            self.rows_by_id[row["run_id"]].append(convert(row))

    def name_run(self, benchmark, run: Run):
        """Return the run with the name that it has in each command on the same machine, setup and versions."""
        words = repr((benchmark, [str(self.blank[name]) for name in AGREEING]))
        return replace(run, run_id=hashlib.sha256(words.encode()).hexdigest()[:12])

    def list_processes(self, run):
        """List the rows of each process of a run, in order."""
        by_process = defaultdict(list)
        for row in self.rows_by_id[run.run_id]:
            by_process[int(row["process"])].append(row)
        return list(by_process.values())

    def is_missing(self, run):
        """Return whether a run needs another process, because fewer than RUNS have an undisturbed result.

        It needs none after a failure, but what crashed or timed out is tried once more, nor after twice RUNS processes.
        """
        processes = self.list_processes(run)
        failed = [rows for rows in processes if not has_result(rows)]
        if len(failed) > 1 or any(rows[-1]["status"] not in UNFINISHED for rows in failed):
            return False
        sound = [rows for rows in processes if has_result(rows) and not any(map(disturbing_flags, rows))]
        count = count_processes(run)
        return len(sound) < count and len(processes) - len(failed) < 2 * count

    def measure(self, run, host, show, limit):
        """Measure one more process of a run, and keep its rows; raises SettingError as measure_rounds() does."""
        number = 1 + max((int(rows[0]["process"]) for rows in self.list_processes(run)), default=0)
        for rows_by_run in measure_rounds([run], host, show, [number], limit):
            self.rows_by_id[run.run_id] += rows_by_run.get(run, [])


def find_peaks(rows):
    """Return {precision: TFLOP/s of the best matmul} of rows of `make tflops`."""
    peaks = [row for row in rows if row["model"] == "matmul-peak" and row["status"] == "ok"]
    return {row["precision"]: float(row["tflops"]) for row in sorted(peaks, key=lambda row: float(row["tflops"]))}


def choose_sixteen(peaks, device):
    """Return the precision of 16 bits for a kind of device, "" if none is fast, which it says.

    A device without an arithmetic unit for a precision emulates it, which is slower than float32.

    Args:
        peaks: as find_peaks() returns them.
    """
    bfloat16, float16 = (peaks.get(name, 0) for name in standard_set.SIXTEEN)
    name = "float16" if device != "cpu" and float16 > FASTER * bfloat16 else "bfloat16"
    if peaks.get(name, 0) >= max(FAST * peaks.get("float32", 0), 1e-9):
        return name
    say("16 bits are skipped: their best matmul failed or is slower than that of float32")
    return ""


def describe_results(rows, _):
    """Describe the results of a run, a line each."""
    lines = []
    for row in rows:
        result = f"{row['status']}: {row['note']}"
        if row["status"] == "ok":
            flags = f" [{row['flags']}]" if row["flags"] else ""
            result = f"{format_number(row['throughput'])} {row['unit']}, {report.describe_interval(row)}{flags}"
        lines.append(f"{columns.describe_work(row)}: {result}")
    return "\n".join(lines)


def say(words):
    """Print a line above the bar."""
    tqdm.write(words, file=sys.stdout)
    sys.stdout.flush()


def measure_benchmarks(benchmarks, stored: StoredRuns, host, describe_rows=describe_results):
    """Measure one process of each benchmark, then the second of each, and so on; say each result so far.

    Args:
        benchmarks: {name: run}.

    Returns:
        The results of all of them.
    """
    runs = [stored.name_run(name, run) for name, run in benchmarks.items()]
    missing = list(filter(stored.is_missing, runs))
    if len(missing) < len(runs):
        say(f"skipping {len(runs) - len(missing)} of {len(runs)}: {results.display_path(stored.path)} has them")
    begun = {run: len(stored.list_processes(run)) for run in runs}
    with report.progress(sum(max(1, count_processes(run) - begun[run]) for run in missing)) as show:
        while missing:
            least = min(begun[run] for run in missing)  # an interrupted round goes on
            for run in [run for run in missing if begun[run] == least]:
                try:
                    stored.measure(run, host, show, LIMIT if begun[run] else process.FIRST_LIMIT)
                    say(describe_rows(combine(stored.rows_by_id[run.run_id]), None))
                except SettingError as error:
                    say(f"{run.command} {run.settings.model or ''}: {error}")
                    if isinstance(error, results.ResultsError):
                        raise
                    runs.remove(run)
                begun[run] += 1
            missing = list(filter(stored.is_missing, runs))
            if missing:
                say(card.finish(stored.path.parent, stored.blank["machine"], stored.blank["framework"])[-1])
    return [row for run in runs for row in combine(stored.rows_by_id[run.run_id])]


def measure_set(run: Run, host, device, blank):
    """Measure everything that is missing; say each result, or why there is none.

    Args:
        run: the Run of `make all`.
        device: the Device that its framework finds.
        blank: a row of this machine and device without a result.

    Returns:
        Whether there is any result, new or stored.
    """
    kind = "cpu" if device.type == "cpu" else "gpu"
    change = (standard_set.QUICK_PEAKS if run.settings.quick else standard_set.PEAKS)[kind]
    stored = StoredRuns(run.settings.results_dir, blank)
    sweep = run.with_settings("tflops", **change, RUNS="1")
    rows = measure_benchmarks({f"tflops {change}": sweep}, stored, host, report.describe_sweep)
    has_sixteen = kind == "gpu" or not run.settings.quick  # a quick set on a CPU is in float32
    sixteen = choose_sixteen(find_peaks(rows), device.type) if has_sixteen else ""
    is_shared = resources.shares_memory(device)
    memory_gb = host.memory_gb if is_shared else resources.read_card_gb()
    rows += measure_benchmarks(plan_benchmarks(run, device, sixteen, memory_gb, is_shared), stored, host)
    return has_result(rows)


def find_place(run: Run):
    """Return (Host, Device, a row of both without a result) of what measures here; warn as read_machine() does."""
    host = read_machine([run])
    device = find_device(run.with_settings("tflops"))
    line = {name: getattr(device, name) for name in ("device_name", "framework_version", "num_threads")}
    line |= {"device": device.type, "framework": run.settings.framework, "seed": run.settings.seed}
    return host, device, complete_row(host, line)


def main():
    """Measure the set, print and draw the card, and return the exit status: 1 if nothing was measured."""
    refuse_ranks("make all")
    (run,) = read_runs("all")  # the set is the same on every machine
    settings = run.settings
    host, device, blank = find_place(run)
    say(f"\nthe standard set on {blank['machine']} ({device.type}), {settings.framework} {device.framework_version}")
    say("20 to 30 minutes on two CPU cores, a few minutes with QUICK=1")
    say(
        "measured in rounds, one process of each benchmark: Ctrl-C keeps what is complete, and the same command goes on"
    )
    is_ok = measure_set(run, host, device, blank)
    for words in card.finish(settings.results_dir, blank["machine"], settings.framework):
        say(words)
    say("\nall results of this machine: earlier ones count where new ones were disturbed, or are of one process")
    say(table.describe_set(settings.results_dir, say, [blank[name] for name in table.SIDE]))
    path = results.path_of(settings.results_dir, blank)
    say(f"the rows are in {results.display_path(path)}: `make plot` draws them, `make submit` prints how to send them")
    if device.type == "mps" and settings.framework != "mlx":
        say("`FRAMEWORK=mlx make all` measures the language models in MLX")
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(process.run_script(main))
