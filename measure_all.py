"""Measure the standard set on this machine, and draw a card that shows the results.

    make all                              17 to 30 minutes on two CPU cores
    QUICK=1 make all                      a few minutes: fewer workloads, one short process each, wider intervals
    FRAMEWORK=tensorflow make all

bench/workloads/standard_set.py lists what is measured: the machine's peaks, then one process of each workload, then the
second of each, so that those of one are minutes apart. After an interruption, run the same command again: it goes on
where it was. What other programs or swapping disturbed is measured again.
"""

import hashlib
import logging
import math
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace

from bench import child, process
from bench.host import environment, resources
from bench.plots import card, table
from bench.records import results, tables
from bench.records.likeness import choose_peaks
from bench.records.rows import complete_row
from bench.run import find_device, has_result, measure_rounds, progress, read_machine
from bench.settings import ROOT, Run, SettingError, read_runs
from bench.workloads.standard_set import RUNS, SIXTEEN, STANDARD_SET, SWEEP
from tflops_sweep import describe_sweep

log = logging.getLogger("bench")

LIMIT = 2400  # seconds after which a process is ended; the first may download data or compile kernels
FAST = 0.9  # a precision of 16 bits is left out if its best matmul is slower than this, compared with float32
FASTER = 1.1  # float16 takes the place of bfloat16 if its best matmul is faster than this: T4, V100, M1
# Columns that agree in all processes of a run of the set, besides the programs.
AGREEING = ("python", "framework", "framework_version", "machine", "device", "device_name", "allocator")
AGREEING += ("cpu_id", "num_threads", "seed")


def plan_benchmarks(run: Run, device, sixteen, memory_gb=math.inf):
    """Return {name: run} of the benchmarks of the set for a Run of `make all` on a Device; print what is left out.

    Args:
        sixteen: the precision of 16 bits that is fast on the device; "" if none is.
        memory_gb: the device's memory in units of 2**30 bytes, if it is known.
    """
    settings = run.settings
    is_shared = resources.shares_memory(device)
    runs = {}
    for benchmark in STANDARD_SET:
        is_left_out = settings.quick and not benchmark.is_quick
        if benchmark.below_gb and settings.framework == "torch" and not is_shared:
            is_left_out = is_left_out or memory_gb >= benchmark.below_gb  # a larger batch is measured
        if is_left_out or not benchmark.suits(device.type, settings.framework):
            continue
        for precision in benchmark.list_precisions(device.type, sixteen):
            needed = benchmark.needed_gb(precision, is_shared)
            why = benchmark.compile and device.why_not_compiled
            if memory_gb < needed:
                why = f"it needs {needed} GiB, and the memory has {memory_gb:.3g}"
            if why:
                print(f"skipping {benchmark.title}, {benchmark.phase}, batch {benchmark.batch_size}: {why}")
                continue
            change = benchmark.environ(device.type, settings.framework, precision, device.why_not_compiled == "")
            if settings.quick:
                change |= {"MAX_SECONDS": "1", "SCOPE": "device"}
            count = settings.runs or (1 if settings.quick or benchmark.is_latency else RUNS)
            with suppress(SettingError):  # this framework does not have it
                planned = run.with_settings(benchmark.workload, **change, RUNS=str(count))
                runs[f"{benchmark.workload} {change}"] = planned
    return runs


def choose_sixteen(peaks, device):
    """Return the precision of 16 bits for a kind of device from {precision: its best TFLOP/s}; "" if none is fast.

    A device without an arithmetic unit for a precision emulates it, which is slower than float32.
    """
    float32, float16, bfloat16 = (peaks.get(name, 0.0) for name in ("float32", "float16", "bfloat16"))
    if device != "cpu" and float16 > max(FASTER * bfloat16, FAST * float32):
        return "float16"
    return "bfloat16" if bfloat16 > FAST * float32 else ""


def find_programs(commit):
    """Return the newest commit that changed a program, as the column `commit` has it: new rows do not count."""
    newest = environment.ask_git(ROOT, "log", "-1", "--format=%H", "--", ".", ":!results") or ""
    return newest[:12] + ("-dirty" if commit and commit.endswith("-dirty") else "")


def has_died(row):
    """Return whether a row is that of a process that ended in the middle of its work: it may have had more to do."""
    return row["status"] in ("crashed", "timed_out") or row["note"].startswith(("ended by signal", child.COMPARING))


def judge_process(rows):
    """Return what a process did, from its rows: "undisturbed", "disturbed", "failed" or "interrupted"."""
    statuses = {row["status"] for row in rows}
    if "interrupted" in statuses or any(row["note"] == child.STOPPED for row in rows):  # all of it is measured again
        return "interrupted"
    if "ok" not in statuses or any(map(has_died, rows)):
        return "failed"
    return "disturbed" if any(row["is_disturbed"] for row in rows) else "undisturbed"


def is_missing(run: Run, processes, begun):
    """Return whether a run needs another process: fewer than RUNS are undisturbed, and it has not failed twice.

    Args:
        processes: {number: what it did}.
        begun: how many this call of `make all` has begun: at most twice RUNS.
    """
    counts = Counter(processes.values())
    return counts["undisturbed"] < run.settings.runs and counts["failed"] < 2 and begun < 2 * run.settings.runs


def measure_benchmarks(benchmarks, blank, host, path):
    """Measure what is missing of benchmarks: always a process of the one that has the fewest.

    Args:
        benchmarks: {name: run with RUNS}.
        blank: a row of this machine and device without a result.
        path: the machine's results file.

    Returns:
        The results of all of them, new or stored, as a frame.

    Raises:
        SettingError: a process has no row in the file afterwards.
    """
    programs = find_programs(blank["commit"])
    runs = {}
    for name, run in benchmarks.items():
        words = repr((name, programs, [str(blank[column]) for column in AGREEING]))
        run_id = hashlib.sha256(words.encode()).hexdigest()[:12]
        runs[run_id] = replace(run, run_id=run_id, limit=LIMIT)
    processes = read_processes(path, runs)
    left = sum(max(0, run.settings.runs - len(processes[run_id])) for run_id, run in runs.items())
    begun = Counter()
    with progress(max(1, left)) as show:
        while missing := [each for each in runs if is_missing(runs[each], processes[each], begun[each])]:
            run_id = min(missing, key=lambda each: len(processes[each]))
            run, earlier = runs[run_id], processes[run_id]
            name = f"{run.command} {run.settings.model or ''}".strip()
            number = max(earlier, default=0) + 1
            if disturbed := [each for each in earlier if earlier[each] == "disturbed"]:
                log.info("process %d, because process %d was disturbed", number, max(disturbed))
            begun[run_id] += 1
            try:
                measure_rounds({run: []}, host, show, [number])
            except results.ResultsError:
                raise
            except SettingError as error:
                log.error("%s: %s", name, error)
                del runs[run_id]
                continue
            warnings = []
            processes = read_processes(path, runs, warnings.append)
            if number not in processes[run_id]:
                why = "; ".join(warnings) or "`make doctor` may explain it"
                raise SettingError(f"process {number} of {name} has no row in {path}: {why}")
    found = tables.load([path])
    return tables.combine(found[found["run_id"].isin(runs)])


def read_processes(path, runs, warn=lambda line: None):
    """Return {run_id: {number of a process: what it did}} of the rows of these runs in a file: see tables.load()."""
    found = tables.load([path], warn)
    processes = {run_id: {} for run_id in runs}
    for (run_id, number), rows in found[found["run_id"].isin(runs)].groupby(["run_id", "process"], sort=False):
        if number.isdecimal():  # else it was damaged
            processes[run_id][int(number)] = judge_process(tables.to_dicts(rows[["status", "note", "is_disturbed"]]))
    return processes


def main():
    """Measure the set, print and draw the card, and return the exit status: 1 if nothing was measured."""
    (run,) = read_runs("all")  # the set is the same on every machine
    settings = run.settings
    host = read_machine([run])
    device = find_device(run.with_settings("tflops"))
    cells = {name: getattr(device, name) for name in ("device_name", "framework_version", "num_threads")}
    cells |= {"device": device.type, "framework": settings.framework, "seed": settings.seed}
    blank = complete_row(host, cells)
    print(f"\nthe standard set on {blank['machine']} ({device.type}), {settings.framework} {device.framework_version}")
    path = results.path_of(settings.results_dir, blank)
    print(f"Ctrl-C keeps what is complete in {results.display_path(path)}, the same command goes on", flush=True)
    is_cpu = device.type == "cpu"
    change = SWEEP["cpu" if is_cpu else "gpu"] | ({"MAX_SECONDS": "0.5"} if settings.quick else {})
    sweep = run.with_settings("tflops", **change, RUNS="1")
    found = measure_benchmarks({f"tflops {change}": sweep}, blank, host, path)
    measured = tables.to_dicts(found)
    if measured:
        print(describe_sweep(measured, None), flush=True)
    best = choose_peaks(found[found["status"] == "ok"], [])
    peaks = dict(zip(best["precision"], best["value"], strict=True))
    sixteen = "" if is_cpu and settings.quick else choose_sixteen(peaks, device.type)
    if peaks.keys().isdisjoint(SIXTEEN) and (died := [*filter(has_died, measured)]):
        print(f"16 bits are left out: `make tflops` {died[0]['status']}: {died[0]['note']}", flush=True)
    card_gb = math.ceil(device.memory_bytes / 2**30) if device.memory_bytes else math.inf  # as it is sold
    memory_gb = host["memory_gb"] if resources.shares_memory(device) else card_gb
    benchmarks = plan_benchmarks(run, device, sixteen, memory_gb)
    measured += tables.to_dicts(measure_benchmarks(benchmarks, blank, host, path))
    print("\n".join(card.finish(settings.results_dir, blank["machine"], settings.framework)))
    print("\nall results of this machine (older runs fill in for disturbed or single-process ones):")
    print(table.describe_set(settings.results_dir, print, [blank[name] for name in table.SIDE]))
    done = {row["run_id"] for row in measured if row["undisturbed"]}  # are not measured again
    if disturbed := sum(row["status"] == "ok" and row["run_id"] not in done for row in measured):
        print(f"{disturbed} of {len(measured)} results are disturbed: run `make all` again when the machine is idle")
    print("`make submit` checks the rows and prints how to send them")
    return 0 if has_result(measured) else 1


if __name__ == "__main__":
    sys.exit(process.run_script(main))
