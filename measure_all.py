"""Measure the standard set on this machine, and draw a card that shows the results.

    make all                              20 to 30 minutes on two CPU cores; on a GPU perhaps 40 to 100
    QUICK=1 make all                      a few minutes: fewer workloads, one short process each, wider intervals
    FRAMEWORK=tensorflow make all

bench/workloads/standard_set.py lists what is measured: the machine's peaks, then each workload in several fresh
processes. After an interruption, run the same command again: work that has its processes with the same commit and
versions is skipped. What other programs or swapping disturbed is measured once more.
"""

import importlib
import math
import sys
from contextlib import suppress

from tqdm import tqdm

from bench import doctor, processes
from bench.host import resources
from bench.host.ranks import refuse_ranks
from bench.parent import combine_rounds, find_device, measure_and_store, plan_processes, read_machine
from bench.plots import card, table
from bench.records import columns, report, results
from bench.records.columns import disturbing_flags, format_number
from bench.records.rows import complete_row, work_cells
from bench.settings import SCOPES, Run, SettingError, read_fixed_run
from bench.workloads import standard_set
from bench.workloads.standard_set import STANDARD_SET

LIMIT = 600  # seconds after which a process is ended, except the first one
FAST = 0.9  # a format of 16 bits is left out if its best matmul is slower than this, compared with float32
BAR = "{percentage:3.0f} % |{bar:40}| {elapsed} so far, about {remaining} left"
UNFINISHED = ("crashed", "timed_out", "interrupted")  # such as by LIMIT on a busy machine: tried again
# Columns that agree in the rows of this run and those that an earlier one has stored.
AGREEING = ("commit", "python", "framework", "framework_version", "machine", "device", "device_name", "allocator")


def plan_work(run: Run, device, formats, shared_gb=math.inf):
    """Return the runs of the set on this device, in these formats of numbers.

    Args:
        run: the Run of `make all`.
        shared_gb: memory in units of 2**30 bytes, if the device shares the system's.
    """
    is_quick = run.settings.quick
    usual = {"RUNS": str(run.settings.runs or (1 if is_quick else standard_set.RUNS))}
    names = {device, "cpu" if device == "cpu" else "gpu"}
    runs = []
    for work in STANDARD_SET:
        if names.isdisjoint(work.devices) or (is_quick and not work.is_quick):
            continue
        if work.framework not in ("", run.settings.framework):
            continue
        for numbers in (numbers for numbers in formats if numbers in work.numbers):
            if shared_gb < work.shared_gb:
                say(f"{work.title}, batch {work.batch_size}, is skipped: it needs {work.shared_gb} GB of shared memory")
                continue
            change = usual | work.change(numbers)
            if is_quick:
                change |= standard_set.QUICK
                if work.workload == "image":
                    change["SCOPE"] = "device"
            with suppress(SettingError):  # this framework does not have it
                runs.append(run.with_settings(work.workload, **change))
    return runs


def workload_of_command(command, settings):
    """Return the Workload of a command ("image": image_benchmark.py) with these settings."""
    script = importlib.import_module(f"{command}_benchmark")
    return getattr(script, f"{command}_workload")(settings)


def is_done(stored, run: Run, device):
    """Return whether rows have the work of a run, and none of its scopes has to be measured again.

    Args:
        stored: rows of this machine, device, commit and versions, as text.
    """
    settings = run.settings.on(device)
    workload = workload_of_command(run.command, settings)
    for scope in settings.scope or SCOPES:
        cells = work_cells(settings, workload, scope)
        wanted = {name: cells[name] for name in columns.WORK if name in cells}
        if settings.num_threads:
            wanted["num_threads"] = settings.num_threads
        texts = {name: "" if value is None else str(value) for name, value in wanted.items()}
        rows = [row for row in stored if texts.items() <= row.items()]
        # Only the first process measures a pipeline, if there is one.
        count = plan_processes(run) if scope == "device" else 1
        if not is_settled(rows, count) and (rows or scope == "device"):
            return False
    return True


def is_settled(rows, count):
    """Return whether rows of a work end it: a failure, an undisturbed result, or a second one, of enough processes."""
    failed = any(row["status"] not in ("ok", *UNFINISHED) for row in rows)
    done = [row for row in rows if row["status"] == "ok" and len(row["process_rates"].split()) >= count]
    return failed or len(done) > 1 or not all(map(disturbing_flags, done))


def find_peaks(rows):
    """Return {precision: TFLOP/s of the best matmul} of rows of `make tflops`."""
    peaks = [row for row in rows if row["model"] == "matmul-peak" and row["status"] == "ok"]
    return {row["precision"]: float(row["tflops"]) for row in sorted(peaks, key=lambda row: float(row["tflops"]))}


def list_fast(peaks, formats):
    """List float32 and the formats of 16 bits in which the best matmul is as fast; say which are left out.

    A device without an arithmetic unit for a format emulates it, which is slower than float32.
    """
    slow = [name for name in formats if name not in peaks or peaks[name] < FAST * peaks.get("float32", 0)]
    for name in slow:
        say(f"{name} is skipped: its best matmul failed or is slower than that of float32")
    return ["float32", *(name for name in formats if name not in slow)]


def describe_lines(rows, _):
    """Describe the combined rows of a run, a line each."""
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


def measure(run: Run, host, limit=LIMIT, describe_rows=describe_lines):
    """Measure a run, store and say its result; return its rows, none after a mistake in the settings."""
    rounds = []
    try:
        measure_and_store([run], host, rounds, limit=limit)
    except results.ResultsError:
        raise
    except SettingError as error:
        say(f"{run.command} {run.settings.model or ''}: {error}")
    finally:  # after Ctrl-C, too
        rows = combine_rounds(rounds).get(run, [])
        if rows:
            say(describe_rows(rows, None))
    return rows


def measure_set(run: Run, host, device, blank):
    """Measure everything that is missing; say each result, or why there is none.

    Args:
        run: the Run of `make all`.
        device: the Device that its framework finds.
        blank: a row of this machine and device without a result.

    Returns:
        Whether there is any result, new or stored.
    """
    is_quick = run.settings.quick
    stored = results.read(results.path_of(run.settings.results_dir, blank))
    stored = [row for row in stored if all(row[name] == (blank[name] or "") for name in AGREEING)]
    statuses = [row["status"] for row in stored]
    formats = standard_set.FORMATS[:1] if device.kind == "cpu" else standard_set.FORMATS
    peaks = find_peaks(stored)
    has_full_sweep = any(row["matrix_size"] == standard_set.ONLY_FULL for row in stored)
    is_disturbed = any(disturbing_flags(row) for row in stored if row["workload"] in ("matmul", "bandwidth"))
    is_first = sum(row["model"] == "matmul-peak" and row["precision"] == "float32" for row in stored) == 1
    if "float32" not in peaks or not (is_quick or has_full_sweep) or (is_disturbed and is_first):
        sizes = standard_set.QUICK_PEAKS if is_quick else standard_set.PEAKS
        sweep = run.with_settings("tflops", **sizes, PRECISION=",".join(["float32", *formats]), RUNS="1")
        rows = measure(sweep, host, LIMIT if statuses else processes.FIRST_LIMIT, report.describe_sweep)
        statuses += [row["status"] for row in rows]
        peaks = find_peaks([*stored, *rows])
    formats = ["float32"] if is_quick else list_fast(peaks, formats)
    shared_gb = host.memory_gb if resources.shares_memory(device) else math.inf
    planned = plan_work(run, device.kind, formats, shared_gb)
    missing = [run for run in planned if not is_done(stored, run, device.kind)]
    if len(missing) < len(planned):
        say(f"skipping {len(planned) - len(missing)} of {len(planned)}, measured with this commit and versions")
    count = sum(map(plan_processes, missing))
    say(f"up to {count} processes follow; on a terminal the bar estimates how long they take")
    with tqdm(missing, bar_format=BAR, smoothing=0, disable=None, leave=False, file=sys.stderr) as bar:
        for run in bar:
            statuses += [row["status"] for row in measure(run, host)]
    return "ok" in statuses


def main():
    """Measure the set, print and draw the card, and return the exit status: 1 if nothing was measured."""
    refuse_ranks("make all")
    run = read_fixed_run("all")  # the set is the same on every machine
    settings = run.settings
    if not settings.quick and doctor.examine((settings.framework,)):
        return 1
    device = find_device(run.with_settings("tflops"))
    host = read_machine(settings)
    line = {"device": device.kind, "device_name": device.device_name, "framework_version": device.framework_version}
    blank = complete_row(host, "", line | {"framework": settings.framework})
    say(f"\nthe standard set on {blank['machine']} ({device.kind}), {settings.framework} {device.framework_version}")
    say("20 to 30 minutes on two CPU cores, an estimated 40 to 100 on a GPU; a few with QUICK=1")
    say("after an interruption, run the same command again to measure the rest")
    has_result = measure_set(run, host, device, blank)
    for words in card.finish(settings.results_dir, blank["machine"], settings.framework):
        say(words)
    say(table.describe_set(settings.results_dir, say, [blank[name] for name in table.SIDE]))
    path = results.path_of(settings.results_dir, blank)
    say(f"added to {results.display_path(path)}; `make submit` prints how to send the results")
    if device.kind == "mps" and settings.framework != "mlx":
        say("`FRAMEWORK=mlx make all` measures the language models in MLX")
    return 0 if has_result else 1


if __name__ == "__main__":
    sys.exit(processes.run_script(main))
