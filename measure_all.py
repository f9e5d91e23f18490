"""Measure the standard set on this machine, and draw a card that shows the results.

    make all                              20 to 30 minutes on two CPU cores; not measured yet on a GPU
    QUICK=1 make all                      three minutes: fewer workloads, one short process each, wider intervals
    FRAMEWORK=tensorflow make all

bench/workloads/standard_set.py lists what is measured: the machine's peaks, then each workload in several fresh
processes. After an interruption, run the same command again: work that has its processes with the same commit and
versions is skipped.
"""

import math
import os
import sys
from contextlib import suppress

from tqdm import tqdm

import tflops_sweep
from bench import cli, doctor
from bench.host import environment, resources
from bench.host.ranks import refuse_ranks
from bench.launch import Interrupted, Launcher, find_device
from bench.plots import card
from bench.records import cells, columns, report, results
from bench.records.columns import format_number
from bench.settings import TRAINING, SettingError, read_settings, refuse_other_settings
from bench.workloads import standard_set
from bench.workloads.standard_set import STANDARD_SET
from best_settings import WORKLOADS, open_launcher

LIMIT = 600  # seconds after which a process is ended
FAST = 0.9  # a format of 16 bits is left out if its best matmul is slower than this, compared with float32
BAR = "{percentage:3.0f} % |{bar:40}| {elapsed} so far, about {remaining} left"
UNFINISHED = ("crashed", "interrupted")  # such as by LIMIT on a busy machine: tried again


def plan_work(device, formats, is_quick, shared_gb=math.inf):
    """Return the work in these formats and GiB of shared memory: (script, change of the environment, its settings)."""
    found = []
    for work in (work for work in STANDARD_SET if device in work.devices and (work.is_quick or not is_quick)):
        for numbers in (numbers for numbers in formats if numbers in work.numbers):
            if shared_gb < work.shared_gb:
                say(f"{work.title}, batch {work.batch_size}, is skipped: it needs {work.shared_gb} GB of shared memory")
                continue
            change = work.change(numbers) | {"MAKEFLAGS": ""}
            if is_quick:
                change |= standard_set.QUICK | ({"SCOPE": "device"} if work.script == "image" else {})
            with suppress(SettingError):  # this framework does not have it
                found.append((work.script, change, read_settings(work.script, os.environ | change).on(device)))
    return found


def is_done(stored, script, settings, runs):
    """Return whether rows have this work, in at least `runs` processes or as a failure.

    Args:
        stored: rows of this machine, device, commit and versions, as text.
    """
    work = cells.of_work(settings, WORKLOADS[script](settings), settings.phase, "device")
    wanted = {name: work[name] for name in columns.WORK if name in work}
    if settings.num_threads:
        wanted["num_threads"] = settings.num_threads
    texts = {name: "" if value is None else str(value) for name, value in wanted.items()}
    return any(
        len(row["process_rates"].split()) >= runs if row["status"] == "ok" else row["status"] not in UNFINISHED
        for row in stored
        if texts.items() <= row.items()
    )


def find_peaks(rows):
    """Return {precision: TFLOP/s of the best matmul} of rows of `make tflops`."""
    peaks = [row for row in rows if row["model"] == "matmul-peak" and row["status"] == "ok"]
    return {row["precision"]: float(row["tflops"]) for row in peaks}


def list_fast(peaks, formats):
    """List float32 and the formats of 16 bits in which the best matmul is as fast; say which are left out.

    A device without an arithmetic unit for a format emulates it, which is slower than float32.
    """
    slow = [name for name in formats if name not in peaks or peaks[name] < FAST * peaks.get("float32", 0)]
    for name in slow:
        say(f"{name} is skipped: its best matmul failed or is slower than that of float32")
    return ["float32", *(name for name in formats if name not in slow)]


def describe(rows, _):
    """Describe the combined rows of a workload, a line each."""
    lines = []
    for row in (row for row in rows if row["phase"] not in TRAINING[1:]):
        said = f"{row['status']}: {row['note']}"
        if row["status"] == "ok":
            said = f"{format_number(row['throughput'])} {row['unit']}, {report.describe_interval(row)}"
        lines.append(f"{columns.describe_work(row)}: {said}")
    return "\n".join(lines)


def say(words):
    """Print a line above the bar."""
    tqdm.write(words, file=sys.stdout)
    sys.stdout.flush()


def measure_set(settings, host, found, path):
    """Measure everything that is missing; say each result, or why there is none.

    Returns:
        Whether there is any result, new or stored.
    """
    same = {"commit": host.commit, "python": host.python, "framework": settings.framework, "machine": host.machine}
    same |= {"framework_version": found.framework_version, "device": found.device, "allocator": host.allocator}
    stored = [row for row in results.read(path) if all(row[name] == (text or "") for name, text in same.items())]
    has_result = any(row["status"] == "ok" for row in stored)
    runs = settings.runs or (1 if settings.quick else standard_set.RUNS)

    def measure(launcher, change, runs, describe):
        """Measure and store one piece of work, and say its result."""
        try:
            rows = launcher.measure(change, runs, LIMIT)
        except Interrupted as error:
            results.append(path, *error.rows)
            raise
        except SettingError as error:
            say(f"{launcher.script} {change.get('MODEL', '')}: {error}")
            return []
        results.append(path, *rows)
        say(describe(rows, stored))
        return rows

    formats = standard_set.FORMATS[:1] if found.device == "cpu" else standard_set.FORMATS
    sizes = standard_set.QUICK_PEAKS if settings.quick else standard_set.PEAKS
    # A quick sweep lacks the second size of a full one.
    second, peaks = "x".join([sizes["SIZES"].split(",")[1]] * 3), find_peaks(stored)
    if "float32" not in peaks or not (settings.quick or any(row["matrix_size"] == second for row in stored)):
        sweep = Launcher("tflops", tflops_sweep.first_size, [tflops_sweep.__file__], host)
        asked = sizes | {"PRECISION": ",".join(["float32", *formats]), "MAKEFLAGS": ""}
        peaks = find_peaks(measure(sweep, asked, 1, tflops_sweep.describe))
    formats = ["float32"] if settings.quick else list_fast(peaks, formats)
    shared_gb = host.memory_gb if resources.shares_memory(found.device) else math.inf
    planned = plan_work(found.device, formats, settings.quick, shared_gb)
    missing = [(script, change) for script, change, asked in planned if not is_done(stored, script, asked, runs)]
    if len(missing) < len(planned):
        say(f"skipping {len(planned) - len(missing)} of {len(planned)}, measured with this commit and versions")
    say(f"up to {runs * len(missing)} processes follow; on a terminal the bar estimates how long they take")
    with tqdm(missing, bar_format=BAR, smoothing=0, disable=None, leave=False, file=sys.stderr) as bar:
        for script, change in bar:
            rows = measure(open_launcher(script, host), change, runs, describe)
            has_result |= any(row["status"] == "ok" for row in rows)
    return has_result


def main():
    """Measure the set, print and draw the card, and return the exit status: 1 if nothing was measured."""
    refuse_ranks("make all")
    settings = read_settings("all")
    refuse_other_settings("all")  # the set is the same on every machine
    if not settings.quick and doctor.examine((settings.framework,)):
        return 1
    found = find_device(settings)
    host = environment.describe_host(settings.machine)
    path = settings.results_dir / f"{host.machine}.csv"
    results.prepare(path)
    say(f"\nthe standard set on {host.machine} ({found.device}), {settings.framework} {found.framework_version}")
    say("after an interruption, run the same command again to measure the rest")
    has_result = measure_set(settings, host, found, path)
    for words in card.finish(settings.results_dir, host.machine, settings.framework):
        say(words)
    say(f"added to {cli.display_path(path)}; `make submit` prints how to send the results")
    return 0 if has_result else 1


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
