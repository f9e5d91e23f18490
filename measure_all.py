"""Measure the standard set on this machine, and draw a card that shows the results.

    make all                              20 to 30 minutes on two CPU cores, an estimated 15 on a GPU
    QUICK=1 make all                      three minutes: fewer workloads, one short process each, wider intervals
    FRAMEWORK=tensorflow make all

bench/workloads/standard_set.py lists what is measured: the machine's peaks, then each workload in several fresh
processes. After an interruption, run the same command again: work that has its processes with the same commit and
versions is skipped.
"""

import os
import sys

from tqdm import tqdm

from bench import cli, doctor
from bench.host import environment
from bench.host.ranks import refuse_ranks
from bench.launch import Launcher, find_device
from bench.plots import card
from bench.records import columns, results
from bench.records.columns import format_number
from bench.settings import DECLARED, FRAMEWORKS, ROOT, SettingError, find_given, is_used, list_runs, read_settings
from bench.workloads import standard_set
from bench.workloads.standard_set import STANDARD_SET
from best_settings import WORKLOADS
from tflops_sweep import first_size

LIMIT = 600  # seconds after which a process is ended
PEAKS_WEIGHT = 3  # the peaks take as long as this number of other processes
FAST = 0.9  # a format of 16 bits is left out if its best matmul is slower than this, compared with float32
BAR = "{percentage:3.0f} % |{bar:40}| {elapsed} so far, about {remaining} left"
UNFINISHED = ("crashed", "interrupted")  # such as by LIMIT on a busy machine: tried again


def plan_work(settings, device, formats):
    """Return the work of the set, as (script, change of the environment).

    Args:
        formats: of 16 bits that are fast on the device.
    """
    found = []
    for work in STANDARD_SET:
        if device not in work.devices or (settings.quick and not work.is_quick):
            continue
        for numbers in ["float32"] if settings.quick else ["float32", *formats]:
            change = work.change(numbers) | {"MAKEFLAGS": ""}
            if settings.quick:
                change |= standard_set.QUICK | ({"SCOPE": "device"} if work.script == "image" else {})
            try:
                read_settings(work.script, os.environ | change)
            except SettingError:  # this framework does not have it
                continue
            if numbers in work.numbers:
                found.append((work.script, change))
    return found


def is_done(stored, script, change, runs):
    """Return whether rows have this work, in at least `runs` processes or as a failure.

    Args:
        stored: rows of this machine, device, commit and versions, as text.
    """
    settings = read_settings(script, os.environ | change)
    settings = settings.on(stored[0]["device"]) if stored else settings
    cells = {name: getattr(settings, name, None) for name in columns.WORK} | WORKLOADS[script](settings).columns
    cells |= {"workload": script, "scope": "device", "world_size": 1, "num_threads": settings.num_threads}
    # A blank cell is one that the phase does not use.
    texts = {name: ("", str(int(v) if isinstance(v, bool) else v)) for name, v in cells.items() if v is not None}
    for row in stored:
        if all(row[name] in allowed for name, allowed in texts.items()):
            if row["status"] == "ok" and len(row["process_rates"].split()) >= runs:
                return True
            if row["status"] not in ("ok", *UNFINISHED):
                return True
    return False


def find_peaks(rows):
    """Return {precision: TFLOP/s of the best matmul} of rows of `make tflops`."""
    peaks = [row for row in rows if row["model"] == "matmul-peak" and row["status"] == "ok" and row.get("tflops")]
    return {row["precision"]: float(row["tflops"]) for row in peaks}


def list_fast(peaks, formats):
    """List the formats of 16 bits that are as fast as float32 in the best matmul; say which are left out.

    A device without an arithmetic unit for a format emulates it, which is slower than float32.
    """
    fast = [name for name in formats if name in peaks and peaks[name] >= FAST * peaks.get("float32", 0)]
    for name in [each for each in formats if each not in fast]:
        say(f"{name} is skipped: its best matmul failed or is slower than that of float32")
    return fast


def describe(rows):
    """Describe in lines what the combined rows of one work give; of the matmuls only the peaks."""
    for row in rows:
        words = columns.describe_work(row)
        if row["status"] != "ok":
            yield f"{words}: {row['status']}: {row['note']}"
        elif row["model"] == "matmul-peak":
            yield f"{words}: {format_number(row['tflops'], '{:.3g}')} TFLOP/s"
        elif row["model"] != "matmul" and row["phase"] not in ("forward", "backward", "optimizer"):
            low, high = map(format_number, (row["throughput_low"], row["throughput_high"]))
            yield f"{words}: {format_number(row['throughput'])} {row['unit']}" + (f", {low} to {high}" if low else "")


def say(words):
    """Print a line above the bar."""
    tqdm.write(words, file=sys.stdout)
    sys.stdout.flush()


def measure_set(settings, host, found, path):
    """Measure everything that is missing; say each result, or why there is none, in a line.

    Returns:
        Whether there is any result, new or stored.
    """
    same = {"commit": host.commit, "python": host.python, "framework": settings.framework, "machine": host.machine}
    same |= {"framework_version": found.framework_version, "device": found.device, "allocator": host.allocator}
    stored = [row for row in results.read(path) if all(row[name] == (text or "") for name, text in same.items())]
    has_result = any(row["status"] == "ok" for row in stored)
    formats = [name for name in standard_set.FORMATS if found.device != "cpu" or name != "float16"]
    runs = settings.runs or (1 if settings.quick else standard_set.RUNS)

    def measure(script, change, runs):
        """Measure and store one piece of work, and say its result."""
        file = "tflops_sweep.py" if script == "tflops" else f"{script}_benchmark.py"
        launcher = Launcher(script, WORKLOADS.get(script, first_size), [str(ROOT / file)], host)
        try:
            rows = launcher.measure(change, runs, LIMIT)
        except SettingError as error:
            say(f"{script} {change.get('MODEL', '')}: {error}")
            return []
        results.append(path, *rows)
        for line in describe(rows):
            say(line)
        return rows

    def list_missing(formats):
        works = plan_work(settings, found.device, formats)
        return [(script, change) for script, change in works if not is_done(stored, script, change, runs)]

    total = PEAKS_WEIGHT + runs * len(list_missing(formats))
    with tqdm(total=total, bar_format=BAR, smoothing=0, disable=None, leave=False, file=sys.stderr) as bar:
        sizes = standard_set.QUICK_PEAKS if settings.quick else standard_set.PEAKS
        second, peaks = "x".join([sizes["SIZES"].split(",")[1]] * 3), find_peaks(stored)
        if "float32" not in peaks or not any(row["matrix_size"] == second for row in stored):
            precisions = {"PRECISION": ",".join(["float32", *formats])}
            peaks = find_peaks(measure("tflops", sizes | precisions | {"MAKEFLAGS": ""}, 1))
        formats = list_fast(peaks, formats)
        missing, planned = list_missing(formats), plan_work(settings, found.device, formats)
        if len(missing) < len(planned):
            say(f"skipping {len(planned) - len(missing)} of {len(planned)}, measured with this commit and versions")
        bar.total = PEAKS_WEIGHT + runs * len(missing)
        bar.update(PEAKS_WEIGHT)
        for script, change in missing:
            has_result |= any(row["status"] == "ok" for row in measure(script, change, runs))
            bar.update(runs)
    return has_result


def main():
    """Measure the set, print and draw the card, and return the exit status: 1 if nothing was measured."""
    refuse_ranks("make all")
    settings = read_settings("all")
    for given in (find_given(name, os.environ) for name in DECLARED if not is_used(name, "all")):
        if given:  # the set is the same on every machine
            raise SettingError(f"{given}={os.environ[given]!r} would change the set of `make all`: unset {given}")
    if len(list_runs("all")) > 1:
        raise SettingError(f"USE_GPU={os.environ['USE_GPU']!r}: `make all` measures one device: set a single value")
    if not settings.quick and doctor.examine(settings.results_dir, (settings.framework,)):
        return 1
    found = find_device(settings)
    host = environment.describe_host(settings.machine)
    path = settings.results_dir / f"{host.machine}.csv"
    results.prepare(path)
    say(f"\nthe standard set on {host.machine} ({found.device}), {settings.framework} {found.framework_version}")
    if settings.quick:
        say("QUICK=1: one short process per workload, so the intervals do not include variation between processes")
    if "llm" not in FRAMEWORKS[settings.framework].workloads:
        say(f"language models are skipped: {settings.framework} does not run them here")
    try:
        has_result = measure_set(settings, host, found, path)
    except KeyboardInterrupt:
        say("run the same command again to measure the rest")
        raise
    for words in card.finish(settings.results_dir, host.machine, settings.framework):
        say(words)
    say(f"added to {cli.display_path(path)}; `make submit` prints how to send the results")
    return 0 if has_result else 1


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
