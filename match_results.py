"""Measure here what was published of another machine, and set the results side by side.

    make match B="NVIDIA RTX 3090"                    three processes of each work, in passes; RUNS=1 is the quick one
    make match                                        which machines there are, and about how many minutes each takes
    A=nvidia-h200 B="NVIDIA RTX 3090" make compare    the same table of stored results

Precision, memory format, compilation, sizes and scope are those of the source, as far as it states them. After an
interruption, run the same command again: it goes on where it was.
"""

import math
import os
import sys
from dataclasses import replace

from bench import processes
from bench.host import resources
from bench.host.ranks import refuse_ranks
from bench.parent import workload_of_command
from bench.plots import frames, table
from bench.records import match, peaks, report, results
from bench.records.likeness import work_of
from bench.records.rows import work_cells
from bench.settings import Run, SettingError, read_fixed_run
from bench.workloads import standard_set
from bench.workloads.standard_set import STANDARD_SET
from measure_all import Kept, find_place, measure_passes, say

SECONDS, COMPILED_SECONDS, SWEEP_SECONDS = 25, 75, 90  # that a process takes, more or less
LONGEST = 120  # seconds of a process, at the best that the machine's matmuls reach
LEAST_STEPS = 20  # of a process: the first ones, the check, the windows


def plan(run: Run, rows, kind, peak=0.0, memory_gb=math.inf):
    """Return ({name: Run} that measure these published rows, the standard set's first; reasons of what is left out).

    Args:
        run: that of `make match`.
        kind: "cpu", "cuda" or "mps": the device that measures.
        peak: TFLOP/s of this machine's best matmul, if it is known.
        memory_gb: of the device, in units of 2**30 bytes, if it is known.
    """
    runs = {}
    reasons = []
    of_set = {(line.model, line.phase): place for place, line in enumerate(STANDARD_SET)}
    works = match.one_of_each_work(rows).items()
    for work, row in sorted(works, key=lambda each: of_set.get((each[1]["model"], each[1]["phase"]), len(of_set))):
        try:
            command, environ = match.settings_of(row, run.settings.framework)
            if command == "tflops":
                environ = standard_set.PEAKS["cpu" if kind == "cpu" else "gpu"] | {"RUNS": "1"}
                runs[f"tflops {environ}"] = run.with_settings("tflops", **environ)
                continue
            count = str(run.settings.runs or standard_set.RUNS)
            planned = run.with_settings(command, **environ, RUNS=count)
            settings, workload = make_workload(planned, kind)
            refuse_other_work(settings, workload, work)
            refuse_large_work(workload, peak, memory_gb)
        except SettingError as error:
            reasons.append(str(error))
        else:
            runs[f"{command} {environ}"] = planned
    return runs, reasons


def make_workload(run: Run, kind):
    """Return (settings on this kind of device, Workload) of a run; nothing is downloaded.

    Raises:
        SettingError: the reason why there is none.
    """
    settings = replace(run.settings.on(kind), data="synthetic")
    try:
        return settings, workload_of_command(run.command, settings)
    except SettingError:
        raise SettingError("a model that is not ours") from None


def refuse_other_work(settings, workload, work):
    """Raise SettingError, with the reason, if a Workload is other work than that of a published row."""
    scope, *_ = settings.scope or ("device",)
    cells = {name: "" if cell is None else str(cell) for name, cell in work_cells(settings, workload, scope).items()}
    ours = dict(work_of({"measured_precision": "", "compile": "", "weight_bits": ""} | cells))
    if differing := [name for name, value in work if ours[name] != value]:
        raise SettingError(f"another {' and '.join(differing)} than can be measured")


def refuse_large_work(workload, peak, memory_gb):
    """Raise SettingError, with the reason, if a Workload does not fit or takes too long here."""
    if workload.resident_bytes > memory_gb * 2**30:
        raise SettingError("not enough memory")
    flops = LEAST_STEPS * workload.items_per_step * (workload.flops_per_item or 0)
    if peak and flops / (1e12 * peak) > LONGEST:
        raise SettingError("more than two minutes a process here")


def find_peak(stored, place):
    """Return TFLOP/s of the best stored matmul of the chip of a row, 0.0 if there is none."""
    own = stored.lines.loc[~stored.lines["published"]].to_dict("records")
    here = [row for row in own if row["model"] == "matmul-peak" and peaks.chip_of(row) == peaks.chip_of(place)]
    return max(peaks.measured_peaks(here).values(), default=0.0)


def list_machines(run: Run, published, *here):
    """List the machines with what can be measured of each, and the minutes: lines, the most results first.

    Args:
        here: kind, peak and memory_gb as plan() takes them.
    """
    found = []
    for name, rows in published.items():
        runs, reasons = plan(run, rows, *here)
        seconds = sum(each.settings.runs * seconds_of(each) for each in runs.values())
        if runs:
            minutes = f"about {max(1, round(seconds / 60))} minutes"
            count = len(match.one_of_each_work(rows)) - len(reasons)
            found.append((count, f"  {name}: {count} results, {minutes}"))
    return [line for _, line in sorted(found, key=lambda each: -each[0])]


def seconds_of(run: Run):
    """Estimate the seconds of one process."""
    if run.command == "tflops":
        return SWEEP_SECONDS
    return COMPILED_SECONDS if run.settings.compile else SECONDS


def main(environ=os.environ):
    """Measure what was published of the machine B, and print the table; return the exit status."""
    refuse_ranks("make match")
    run = read_fixed_run("match", environ)
    folder = run.settings.results_dir
    host, device, blank = find_place(run)
    stored = frames.load(folder, say)
    published = match.group_published(stored.lines)
    peak = find_peak(stored, blank)
    kind = "cpu" if device.type == "cpu" else "gpu"
    memory_gb = host.memory_gb if resources.shares_memory(device) else resources.read_card_gb()
    typed = environ.get("B", "").strip()
    if not typed:
        print(*list_machines(run, published, device.type, peak, memory_gb), "\nset B to one of them", sep="\n")
        return 0
    name = match.choose_name(typed, published)
    kept = Kept(folder, blank)
    if not peak:  # without it nobody knows what takes too long
        say("first the best matmul of this machine")
        sweep = run.with_settings("tflops", **standard_set.QUICK_PEAKS[kind] | {"OPS": "matmul", "RUNS": "1"})
        measure_passes({"tflops for make match": sweep}, kept, host, report.describe_sweep, draws=False)
        peak = find_peak(frames.load(folder, say), blank)
    runs, reasons = plan(run, published[name], device.type, peak, memory_gb)
    if not runs:
        raise SettingError(f"B={typed!r} has nothing that can be measured here: {', '.join(dict.fromkeys(reasons))}")
    say(f"{len(runs)} works of {name} are measured; Ctrl-C keeps what is complete, and the same command goes on")
    measure_passes(runs, kept, host, draws=False)
    own = frames.load(folder, say).valid
    own = own.loc[~own["published"] & (own[table.SIDE] == [blank[each] for each in table.SIDE]).all(axis=1)]
    lines = match.describe_matches(own.to_dict("records"), published[name], reasons)
    print("", f"{blank['machine']} / {name}", *lines, sep="\n")
    print(f"the rows are in {results.display_path(results.path_of(folder, blank))}")
    return 0


if __name__ == "__main__":
    sys.exit(processes.run_script(main))
