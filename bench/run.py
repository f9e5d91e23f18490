"""The parent process: reads the runs, starts their processes, stores and prints what they measured.

docs/contributing.md defines the words: run, process, round, row, result.

A fresh process starts with nothing allocated, compiled or tuned, and repetitions in fresh processes show how much
results differ between them (RUNS). A child only writes lines (bench/child.py), which become rows as soon as it has
ended; no child writes into results/. The parent imports no framework.
"""

import logging
import math
import os
import subprocess
import sys
import time
import uuid

from bench import child, process
from bench.frameworks import TAKEN, Device
from bench.host import environment, ranks
from bench.packages import python_of
from bench.records import report, results
from bench.records.columns import describe_work
from bench.records.rows import make_rows
from bench.records.verdict import compare_runs
from bench.settings import COMPARED, PARTS, ROOT, WORKLOADS, Run, SettingError, read_runs

log = logging.getLogger("bench")

PROCESSES, COMPARED_PROCESSES = 3, 5  # of each run, and in a list that is compared
SLICE_SECONDS, LEAST_SLICES, MOST_SLICES = 0.25, 2, 100  # of windows, before another process works
# By command: the script that a child runs.
SCRIPTS = {workload: f"{workload}_benchmark.py" for workload in WORKLOADS} | {"tflops": "tflops_sweep.py"}


def benchmark(command, make_workload=None, measure=child.measure_workload, describe_rows=report.describe_run):
    """Run one benchmark from the environment's settings: the main function of every benchmark script.

    Args:
        command: what follows make: "image".
        make_workload: Settings -> Workload; None if the command measures several.
        measure: what a child does, as child.measure_workload() does.
        describe_rows: (results of a run, those that are stored) -> the text to print.

    Returns:
        The exit status: 0 measured, 1 tried and failed (the rows say why), and those of bench/process.py.
    """
    if process.TASK in os.environ:  # a child is the same script
        return child.main(command, make_workload, measure)
    return process.run_script(lambda: measure_command(command, make_workload, describe_rows))


def measure_command(command, make_workload, describe_rows):
    """Measure every run of the environment's settings; store each round, and print each group when it has ended.

    Returns:
        The exit status: 1 if all rows are failures; 130 after Ctrl-C, which ends everything.

    Raises:
        SettingError: a mistake, which ends everything, too.
    """
    runs = read_runs(command)
    folder = runs[0].settings.results_dir
    host = read_machine(runs[0])
    for index, run in enumerate(runs if make_workload else []):
        workload = make_workload(run.settings)  # so that an unknown MODEL is noticed before anything is measured
        if command == "mlp":  # all processes of a run have the same data
            runs[index] = run.with_settings(DATA=workload.columns["data"])
    measured, status = [], 0
    for group in group_runs(runs):
        rows_by_run = {run: [] for run in group}
        count = count_processes(group[0], is_compared=len(group) > 1)
        try:
            with report.progress(count * len(group)) as show:
                measure_rounds(rows_by_run, host, show, range(1, count + 1))
        except KeyboardInterrupt:
            log.info("interrupted: what was complete is stored")
            status = process.INTERRUPTED
        from bench.records import tables  # only here: pandas takes a while, and no child needs it

        lines = tables.read(folder)
        for found in map(tables.combine_rows, filter(None, rows_by_run.values())):
            print(describe_rows(found, lines))
            measured += found
        for run in group[1:]:
            chosen = [name.lower() for name in run.differences]
            if comparison := compare_runs(rows_by_run[run], rows_by_run[group[0]], chosen):
                print(report.describe_comparison(comparison, run.differences, group[0].differences))
        sys.stdout.flush()
        if status:
            break
    print_paths(folder, measured)
    # A machine without rank 0 has no rows at all.
    return status or int(bool(measured) and not has_result(measured))


def print_paths(folder, rows):
    """Print in which files of a folder rows are."""
    for path in dict.fromkeys(results.path_of(folder, row) for row in rows):
        print(f"added to {results.display_path(path)}", flush=True)


def read_machine(run: Run):
    """Return what describes this computer; keep it awake, and refuse what is in the way of a command."""
    if ranks.read_ranks().are_many:
        raise SettingError("RANK and WORLD_SIZE are torchrun's, but make starts it: see docs/scaling.md, unset them")
    settings = run.settings  # MACHINE and RESULTS_DIR cannot be lists
    host = environment.read_host(settings.machine)
    card = environment.find_card()
    machine = host["machine"] or environment.name_machine(host, card and card.name)
    results.append(results.path_of(settings.results_dir, {"machine": machine}))  # finds out whether this is possible
    if sys.platform == "darwin":
        subprocess.Popen(["caffeinate", "-i", "-w", str(os.getpid())], start_new_session=True)
    return host


def find_device(run: Run):
    """Return the Device that a run's framework finds, in a process of its own, which warns if a GPU is missing."""
    with report.progress(1) as show:
        found = make_child(run, show, task=process.FIND_DEVICE)
        error = work([found], is_together=False, seconds=0)
    if mistake := find_mistake(found):
        error = SettingError(mistake)
    if error:
        raise error
    return Device(**found.lines[0])


def count_processes(run: Run, is_compared=False):
    """Return the number of processes of a run: RUNS, or three, five if compared, one if it hardly varies."""
    settings = run.settings
    if ranks.NODES in os.environ:  # the machines would have to begin each round together
        return 1
    is_single = run.command == "tflops" or settings.sustain or settings.epochs
    return settings.runs or (1 if is_single else COMPARED_PROCESSES if is_compared else PROCESSES)


def group_runs(runs):
    """Return groups, lists of runs: those that are compared, and each of the others by itself.

    The runs of a group differ in the first of COMPARED that has several values, and are compared with its first run, by
    default in the scope device only. What takes a given time or number of items, parts, and ranks are not compared.
    """
    compared = next((name for name in COMPARED if len({run.choices.get(name) for run in runs}) > 1), None)
    groups = {}
    for run in runs:
        key, settings = run, run.settings
        is_fixed = settings.sustain or settings.epochs or settings.num_images or settings.phase in PARTS
        if compared and run.command in WORKLOADS and not (is_fixed or settings.has_ranks):
            key = tuple(run.choices[name] for name in run.choices if name != compared)
            if run.command == "image" and not settings.scope:
                run = run.with_settings(SCOPE="device")
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def measure_rounds(rows_by_run, host, show, numbers, limit=math.inf):
    """Measure a run, or runs that are compared, in rounds: a fresh process of each run. Store the rows of each round.

    A run without any result is left out of the rounds that follow.

    Args:
        rows_by_run: {run: its rows}, to which those of each round are added.
        show, limit: as Child takes them.
        numbers: those of the rounds.

    Raises:
        SettingError: a mistake that only a child finds, such as a MODEL that resembles no known one; a full disk.
        KeyboardInterrupt: Ctrl-C; what is known of the round is stored.
    """
    runs = list(rows_by_run)
    is_together = len(runs) > 1
    group = uuid.uuid4().hex[:12] if is_together else ""
    for number in numbers:
        while True:
            children = {run: make_child(run, show, limit) for run in (runs if number % 2 else runs[::-1])}
            error = work(list(children.values()), is_together, runs[0].settings.max_seconds)
            if error or not is_together or not ran_out(children.values()):
                break
            log.warning("not enough memory to run these side by side: running them one at a time")
            is_together = False
        with process.deferred_interrupts():
            found = {}
            for run, each in children.items():
                death = each.explain_death()
                rows = make_rows(host, each.lines, death, run_id=run.run_id, process=number, group=group)
                if rows:
                    choices = " ".join(f"{name}={run.environ[name]}" for name in run.choices)
                    rate = report.describe_rate(rows[0])
                    log.info("process %d: %s: %s", number, choices or describe_work(rows[0]), rate)
                found[run] = rows
                rows_by_run[run] += rows
            store(runs[0].settings.results_dir, [row for rows in found.values() for row in rows])
        mistakes = [*filter(None, map(find_mistake, children.values()))]
        if error or mistakes:
            raise error or SettingError(mistakes[0])
        runs = [run for run in runs if has_result(found[run])]
        if not runs:
            return


def store(folder, rows):
    """Append rows to the files of their machines; if that fails, print them as CSV and raise ResultsError."""
    for path in dict.fromkeys(results.path_of(folder, row) for row in rows):
        some = [row for row in rows if results.path_of(folder, row) == path]
        try:
            results.append(path, *some)
        except results.ResultsError as error:
            print(results.HEADER + results.to_text(some), end="", flush=True)
            raise results.ResultsError(f"{error}; the rows are in the lines above: save them as a CSV file") from None


def work(children, is_together, seconds):
    """Let the processes of a round work, one after the other or in slices, and close them; return a KeyboardInterrupt.

    Args:
        seconds: of windows, for each.
    """
    try:
        if is_together:
            work_in_slices(children, seconds)
        else:
            for each in children:
                each.finish({"seconds": seconds}, {"check": True})
    except KeyboardInterrupt as interrupt:
        return interrupt
    finally:
        for each in children:
            each.close()


def work_in_slices(children, seconds):
    """Let children measure slices of their windows, one at a time, in changing order; then check, one at a time.

    Each gets equally many slices, of so many seconds together. If one finds no room, none is measured.
    """
    waiting = [each for each in children if each.work()]
    if ran_out(children):
        return
    began = time.monotonic()
    count = 0
    while waiting and (count < LEAST_SLICES or time.monotonic() - began < seconds * len(waiting)):
        waiting = [each for each in waiting if each.work({"slice": max(SLICE_SECONDS, seconds / MOST_SLICES)})]
        waiting.reverse()
        count += 1
    for each in waiting:
        each.finish({"check": True})


def ran_out(children):
    """Return whether a process may have failed because another one has the memory, or the whole card."""
    lines = [line for each in children for line in each.lines]
    return any(line.get("status") == "out_of_memory" or TAKEN in line.get("note", "") for line in lines)


def has_result(rows):
    return any(row["status"] == "ok" for row in rows)


def make_child(run: Run, show, limit=math.inf, task=process.MEASURE):
    """Return the Child for one process of a run, or for one of each of NUM_DEVICES under torchrun."""
    environ = environment.glibc_keep_memory(run.settings.use_gpu) | run.environ | {process.TASK: task}
    command = [python_of(run.settings.framework), str(ROOT / SCRIPTS[run.command])]
    if run.settings.has_ranks and task == process.MEASURE:
        environ.setdefault("LOGLEVEL", "ERROR")  # torchrun reads it
        count = "gpu" if run.settings.num_devices == "all" else run.settings.num_devices
        # 127.0.0.1, because a laptop's own name often has no address. Several machines set torchrun's variables PET_...
        options = [] if ranks.NODES in environ else ["--standalone", "--local-addr=127.0.0.1"]
        command[1:1] = ["-m", "torch.distributed.run", *options, f"--nproc-per-node={count}"]
    return process.Child(command, environ, show, limit)


def find_mistake(ended):
    """Return the mistake in the settings that a closed Child found, or that it died at once; "" if it did neither."""
    if (death := ended.explain_death()) and not ended.lines:
        return f"the process ended before it measured anything ({death[1]}): `make doctor` may explain it"
    return next((line["mistake"] for line in ended.lines if "mistake" in line), "")
