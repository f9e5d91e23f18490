"""Measure the standard set on this machine, and draw a card that shows the results.

    make all                              20 to 30 minutes on two CPU cores
    QUICK=1 make all                      a few minutes: fewer workloads, one short process each, wider intervals
    FRAMEWORK=tensorflow make all

bench/workloads/standard_set.py lists what is measured: the machine's peaks, then each workload in several fresh
processes. They are measured in rounds, one process of each benchmark, then the second of each: those of one are minutes
apart, and a card is drawn after each round. After an interruption, run the same command again: it goes on where it was.
What other programs or swapping disturbed is measured again.
"""

import hashlib
import itertools
import math
import sys
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace

from bench import process  # isort: skip  # first, because it tells of a missing package

from tqdm import tqdm

from bench.host import resources
from bench.plots import card, table
from bench.records import report, results, tables
from bench.records.columns import disturbing_flags
from bench.records.rows import complete_row
from bench.run import find_device, has_result, measure_rounds, read_machine
from bench.settings import Run, SettingError, read_runs
from bench.workloads import standard_set
from bench.workloads.standard_set import STANDARD_SET

LIMIT = 2400  # seconds after which a process is ended; the first may download data or compile kernels
FAST = 0.9  # a precision of 16 bits is left out if its best matmul is slower than this, compared with float32
FASTER = 1.1  # float16 takes the place of bfloat16 if its best matmul is faster than this: T4, V100, M1
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
    runs, left_out = {}, defaultdict(list)
    for line in STANDARD_SET:
        if not line.suits(device.type, settings.framework) or (settings.quick and not line.is_quick):
            continue
        if line.below_gb and not is_shared and memory_gb >= line.below_gb and settings.framework == "torch":
            continue  # the larger batch is measured
        if line.compile and device.why_not_compiled:
            left_out[device.why_not_compiled].append(line.title)
            continue
        usual = 1 if settings.quick or line.is_latency else standard_set.RUNS
        for precision in line.list_precisions(device.type, sixteen):
            needed = line.needed_gb(precision, is_shared)
            if memory_gb < needed:
                title = f"{line.title} {line.phase}, batch {line.batch_size} ({needed} GB)"
                left_out[f"the memory has {memory_gb:.3g} GB"].append(title)
                continue
            change = line.environ(device.type, settings.framework, precision, device.why_not_compiled == "")
            if settings.quick:
                change |= {"MAX_SECONDS": "1"} | ({"SCOPE": "device"} if line.workload == "image" else {})
            with suppress(SettingError):  # this framework does not have it
                count = str(settings.runs or usual)
                runs[f"{line.workload} {change}"] = run.with_settings(line.workload, **change, RUNS=count)
    for why, titles in left_out.items():
        say(f"{'; '.join(titles)}: skipped, because {why}")
    return runs


def choose_sixteen(rows, device):
    """Return the precision of 16 bits for a kind of device, "" if none is fast, which it says.

    A device without an arithmetic unit for a precision emulates it, which is slower than float32.

    Args:
        rows: those of `make tflops`.
    """
    peaks = dict.fromkeys(("float32", *standard_set.SIXTEEN), 0.0)
    for row in rows:
        if row["model"] == "matmul-peak" and row["status"] == "ok":
            peaks[row["precision"]] = max(peaks.get(row["precision"], 0.0), float(row["tflops"]))
    is_faster = device != "cpu" and peaks["float16"] > FASTER * peaks["bfloat16"]
    name = "float16" if is_faster else "bfloat16"
    if peaks[name] > FAST * peaks["float32"]:
        return name
    say("16 bits are skipped: their best matmul failed or is slower than that of float32")
    return ""


def say(words):
    """Print a line above the bar."""
    tqdm.write(words, file=sys.stdout)
    sys.stdout.flush()


def name_run(benchmark, run: Run, blank):
    """Return the run with the name that it has in each command on the same machine, setup and versions."""
    words = repr((benchmark, [str(blank[name]) for name in AGREEING]))
    return replace(run, run_id=hashlib.sha256(words.encode()).hexdigest()[:12])


def list_processes(rows):
    """List the rows of each process of a run, in order."""
    by_process = defaultdict(list)
    for row in rows:
        by_process[int(row["process"])].append(row)
    return list(by_process.values())


def is_missing(run: Run, rows):
    """Return whether a run needs another process, because fewer than RUNS have an undisturbed result.

    It needs none after two failures, nor after twice RUNS processes.
    """
    measured = [each for each in list_processes(rows) if has_result(each)]
    failures = len(list_processes(rows)) - len(measured)
    sound = [each for each in measured if not any(map(disturbing_flags, each))]
    return len(sound) < run.settings.runs and failures < 2 and len(measured) < 2 * run.settings.runs


def measure_benchmarks(benchmarks, blank, host, folder):
    """Measure one process of each benchmark that is missing, then the second of each, and so on.

    Args:
        benchmarks: {name: run with RUNS}.
        blank: a row of this machine and device without a result.

    Returns:
        The results of all of them, new or stored.
    """
    stored, path = defaultdict(list), results.path_of(folder, blank)
    for row in tables.to_rows(tables.load([path])):
        stored[row["run_id"]].append(row)
    runs = [name_run(name, run, blank) for name, run in benchmarks.items()]
    rows_by_run = {run: stored[run.run_id] for run in runs}
    missing = [run for run in runs if is_missing(run, rows_by_run[run])]
    if len(missing) < len(runs):
        say(f"skipping {len(runs) - len(missing)} of {len(runs)}: {results.display_path(path)} has them")
    still = sum(max(1, run.settings.runs - len(list_processes(rows_by_run[run]))) for run in missing)
    with report.progress(still) as show:
        for number in itertools.count(1):
            for run in missing:
                rows = rows_by_run[run]
                if len(list_processes(rows)) >= number:  # an earlier command has measured this round
                    continue
                try:
                    measure_rounds({run: rows}, host, show, [number], LIMIT)
                except results.ResultsError:
                    raise
                except SettingError as error:
                    say(f"{run.command} {run.settings.model or ''}: {error}")
                    del rows_by_run[run]
            missing = [run for run, rows in rows_by_run.items() if is_missing(run, rows)]
            if not missing:
                break
            say(card.finish(folder, blank["machine"], blank["framework"])[-1])
    return [row for rows in rows_by_run.values() for row in tables.combine_rows(rows)]


def main():
    """Measure the set, print and draw the card, and return the exit status: 1 if nothing was measured."""
    (run,) = read_runs("all")  # the set is the same on every machine
    settings = run.settings
    host = read_machine(run)
    device = find_device(run.with_settings("tflops"))
    line = {name: getattr(device, name) for name in ("device_name", "framework_version", "num_threads")}
    line |= {"device": device.type, "framework": settings.framework, "seed": settings.seed}
    blank = complete_row(host, line)
    say(f"\nthe standard set on {blank['machine']} ({device.type}), {settings.framework} {device.framework_version}")
    say("20 to 30 minutes on two CPU cores, a few minutes with QUICK=1")
    say("in rounds, one process of each benchmark: Ctrl-C keeps what is complete, and the same command goes on")

    kind = "cpu" if device.type == "cpu" else "gpu"
    change = (standard_set.QUICK_PEAKS if settings.quick else standard_set.PEAKS)[kind]
    sweep = run.with_settings("tflops", **change, RUNS="1")
    measured = measure_benchmarks({f"tflops {change}": sweep}, blank, host, settings.results_dir)
    if measured:
        say(report.describe_sweep(measured, None))
    has_sixteen = kind == "gpu" or not settings.quick  # a quick set on a CPU is in float32
    sixteen = choose_sixteen(measured, device.type) if has_sixteen else ""
    is_shared = resources.shares_memory(device)
    memory_gb = host["memory_gb"] if is_shared else resources.read_card_gb()
    benchmarks = plan_benchmarks(run, device, sixteen, memory_gb, is_shared)
    measured += measure_benchmarks(benchmarks, blank, host, settings.results_dir)

    for words in card.finish(settings.results_dir, blank["machine"], settings.framework):
        say(words)
    say("\nall results of this machine: earlier ones count where new ones were disturbed, or are of one process")
    say(table.describe_set(settings.results_dir, say, [blank[name] for name in table.SIDE]))
    path = results.path_of(settings.results_dir, blank)
    say(f"the rows are in {results.display_path(path)}: `make plot` draws them, `make submit` prints how to send them")
    return 0 if has_result(measured) else 1


if __name__ == "__main__":
    sys.exit(process.run_script(main))
