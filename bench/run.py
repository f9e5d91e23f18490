"""The parent process: reads the runs, starts their processes, stores and prints what they measured.

docs/contributing.md defines the words: run, process, round, row, result.

A fresh process starts with nothing allocated, compiled or tuned, and repetitions in fresh processes show how much
results differ between them (RUNS). A child only writes lines (bench/child.py), which become rows as soon as it has
ended; no child writes into results/. The parent imports no framework.
"""

import logging
import math
import os
import signal
import sys
import time

from bench import child, process
from bench.frameworks import TAKEN, Device
from bench.host import environment, meters, ranks
from bench.packages import python_of
from bench.process import BEGUN
from bench.records import report, results
from bench.records.columns import COLUMNS, WORK, describe_work
from bench.records.combine import combine, compare_runs, read_stored
from bench.records.rows import complete_row
from bench.settings import (
    COMPARED,
    FRAMEWORKS,
    PARTS,
    ROOT,
    WORKLOADS,
    Run,
    SettingError,
    is_used,
    new_id,
    parse_settings,
    read_runs,
)

log = logging.getLogger("bench")

PROCESSES, COMPARED_PROCESSES = 3, 5  # of each run, and in a list that is compared
MOST_LOGGED = 4  # results of a process, in a line
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
        return process.run_script(lambda: child.main(command, make_workload, measure))
    return process.run_script(
        lambda: (
            measure_as_rank(command, make_workload, measure, describe_rows)
            if ranks.read_ranks().are_many
            else measure_command(command, make_workload, describe_rows)
        )
    )


def measure_command(command, make_workload, describe_rows):
    """Measure every run of the environment's settings; store each round, and print each run when its last has ended.

    Returns:
        The exit status: 0 if at least one row has a result; 130 after Ctrl-C, which ends everything.
    """
    runs = read_runs(command)
    host = read_machine(runs)
    runs = plan_runs(runs, make_workload)
    folder = runs[0].settings.results_dir
    measured, status = [], 0
    groups = group_runs(runs)
    for group in groups:
        if len(runs) > 1:
            choices = (" ".join(f"{name}={text}" for name, text in run.choices.items()) for run in group)
            log.info("measuring %s", "; ".join(choices))
        rows_by_run = {run: [] for run in group}
        count = count_processes(group[0], is_compared=len(group) > 1)
        try:
            with report.progress(count * len(group)) as show:
                for rows_of_round in measure_rounds(group, host, show, range(1, count + 1)):
                    for run, rows in rows_of_round.items():
                        rows_by_run[run] += rows
        except SettingError as error:
            if isinstance(error, results.ResultsError) or not (len(groups) > 1 or any(rows_by_run.values())):
                raise
            log.error("%s", error)
        except KeyboardInterrupt:
            log.info("interrupted: what was complete is stored")
            status = process.INTERRUPTED

        for found in map(combine, filter(None, rows_by_run.values())):
            print(describe_rows(found, read_stored(folder)))
            measured += found
        for run in group[1:]:
            chosen = [name.lower() for name in run.differences]
            if comparison := compare_runs(rows_by_run[run], rows_by_run[group[0]], chosen):
                print(report.describe_comparison(comparison, run.differences, group[0].differences))
        sys.stdout.flush()
        if status:
            break
    for table in filter(None, [report.describe_scaling(measured), report.describe_parts(measured)]):
        print(table)
    for path in dict.fromkeys(results.path_of(folder, row) for row in measured):
        print(f"added to {results.display_path(path)}", flush=True)
    return status or (0 if has_result(measured) else 1)


def measure_as_rank(command, make_workload, measure, describe_rows):
    """Measure one run as a rank of the user's own torchrun or Slurm, in this process; rank 0 stores it."""
    me = ranks.read_ranks()
    lines = []
    if command not in WORKLOADS or not FRAMEWORKS[parse_settings(command, os.environ).framework].runs_on_many:
        ranks.refuse_ranks(f"make {command}")
    os.environ["NUM_DEVICES"] = str(me.world_size)  # settings that need a single device are refused
    run, *others = read_runs(command)
    if others or run.settings.runs not in (None, 1):
        what = "measures one combination once: set RUNS=1, and one value of MODEL and of every other setting"
        raise SettingError(f"WORLD_SIZE='{me.world_size}' (torchrun) {what}")
    host = environment.read_host(run.settings.machine)
    status = child.main(command, make_workload, measure, lines.append)
    for line in lines:
        if "mistake" in line:
            raise SettingError(line["mistake"])
    rows = make_rows(host, lines, run_id=run.run_id, process=1)
    if me.rank == 0 and rows:
        with process.deferred_interrupts():
            store(run.settings.results_dir, rows)
        found = combine(rows)
        print(describe_rows(found, read_stored(run.settings.results_dir)))
        print(f"added to {results.display_path(results.path_of(run.settings.results_dir, rows[0]))}", flush=True)
    return status or (0 if me.rank or has_result(rows) else 1)


def read_machine(runs):
    """Return what describes this computer; refuse a folder that cannot be written to, and warn of busy programs."""
    settings = runs[0].settings  # MACHINE and RESULTS_DIR cannot be lists
    host = environment.read_host(settings.machine)
    card = environment.find_card()
    machine = host["machine"] or environment.name_machine(host, card and card.name)
    results.check_writable(settings.results_dir, [machine])
    if busy := meters.describe_load():
        log.warning("%s", busy)
    return host


def store(folder, rows):
    """Append rows to the files of their machines; if that fails, print them as lines of CSV below their header.

    Raises:
        ResultsError: some were only printed.
    """
    of_path = {}
    for row in rows:
        of_path.setdefault(results.path_of(folder, row), []).append(row)
    for path, some in of_path.items():
        try:
            results.append(path, *some)
        except results.ResultsError as error:
            print(results.to_text([], some), end="", flush=True)
            kept = f"the rows are only in the lines above: save these as rows.csv, then `cat rows.csv >>{path}`"
            raise results.ResultsError(f"{error}; {kept}") from None


def plan_runs(runs, make_workload):
    """Return the runs with the number of GPUs and the data of make mlp; build the workload of each, to find mistakes.

    Raises:
        SettingError: a run cannot be measured, which the user learns before anything is.
    """
    runs = [count_devices(run) if run.settings.has_ranks else run for run in runs]
    # Only a child knows the device; this is a guess.
    guess = "gpu" if environment.find_card() or sys.platform == "darwin" else "cpu"
    for index, run in enumerate(runs):
        if make_workload:
            workload = make_workload(run.settings.on("cpu" if run.settings.use_gpu is False else guess))
            if run.command == "mlp":  # all processes of a run have the same data
                runs[index] = run.with_settings(DATA=workload.columns["data"])
    return runs


def count_devices(run: Run):
    """Return the run with the number of GPUs instead of NUM_DEVICES=all; raises SettingError if there are too few."""
    settings = run.settings
    count = find_device(run).count if settings.use_gpu is not False else 0
    if settings.num_devices == "all":
        if count == 0:
            raise SettingError("NUM_DEVICES='all' means all GPUs, but none can be used: set a number of processes")
        return run.with_settings(NUM_DEVICES=str(count))
    if 0 < count < settings.num_devices:
        raise SettingError(f"NUM_DEVICES='{settings.num_devices}': the number of GPUs here is {count}: set that")
    return run


def find_device(run: Run):
    """Return the Device that a run's framework finds, in a process of its own, which warns if a GPU is missing."""
    with report.progress(1) as show:
        found = make_child(run, show, task=process.FIND_DEVICE)
        try:
            found.finish()
        finally:
            found.close()
    if mistake := find_mistake(run, found):
        raise SettingError(mistake)
    return Device(**found.lines[0])


def can_be_compared(run: Run):
    """Return whether a run is measured in slices: not what takes a given time or number of items, parts, or ranks."""
    settings = run.settings
    is_fixed = settings.sustain or settings.epochs or settings.num_images or settings.phase in PARTS
    return run.command in WORKLOADS and not (is_fixed or settings.has_ranks)


def count_processes(run: Run, is_compared=False):
    """Return the number of processes of a run: RUNS, or three, five if compared, one if it hardly varies."""
    settings = run.settings
    is_single = run.command == "tflops" or settings.sustain or settings.epochs
    return settings.runs or (1 if is_single else COMPARED_PROCESSES if is_compared else PROCESSES)


def group_runs(runs):
    """Return groups, lists of runs: those that are compared, and each of the others by itself.

    The runs of a group differ in the first of COMPARED that has several values, and are compared with its first run, by
    default in the scope device only.
    """
    compared = next((name for name in COMPARED if len({run.choices.get(name) for run in runs}) > 1), None)
    groups = {}
    for run in runs:
        is_single = not can_be_compared(run) or not compared
        same = tuple(run.choices[name] for name in run.choices if is_single or name != compared)
        if not is_single and is_used("scope", run.command) and not run.settings.scope:
            run = run.with_settings(SCOPE="device")
        groups.setdefault((is_single, same), []).append(run)
    return list(groups.values())


def measure_rounds(runs, host, show, numbers, limit=math.inf):
    """Measure a run, or runs that are compared, in rounds: a fresh process of each run. Store the rows of each round.

    Args:
        show, limit: as Child takes them.
        numbers: those of the rounds.

    Yields:
        {run: rows of its process} of each round; after Ctrl-C what is known of it. A run without any result is left
        out of the rounds that follow.

    Raises:
        SettingError: a mistake that only a child finds, such as a MODEL that resembles no known one; a full disk.
    """
    group = new_id() if len(runs) > 1 else ""
    is_together = len(runs) > 1
    devices = {}
    for number in numbers:
        for _ in range(2):
            children = {run: make_child(run, show, limit) for run in (runs if number % 2 else runs[::-1])}
            error = work(list(children.values()), is_together, runs[0].settings.max_seconds)
            if error or not is_together or not ran_out(children.values()):
                break
            log.warning("not enough memory to run these side by side: running them one at a time")
            is_together = False
        rows_by_run = {}
        try:
            with process.deferred_interrupts():
                for run, each in children.items():
                    mistake = find_mistake(run, each)
                    if rows := read_rows(run, host, each, number, group):
                        device = rows[0]["device"]
                        if devices.setdefault(run, device) == device:
                            rows_by_run[run] = rows
                            log.info("process %d: %s", number, describe_process(run, rows))
                        else:
                            mistake = f"{devices[run]} was measured, but only {device} is found now: run `make doctor`"
                    error = error or (SettingError(mistake) if mistake else None)
                store(runs[0].settings.results_dir, [row for rows in rows_by_run.values() for row in rows])
        except (KeyboardInterrupt, results.ResultsError) as last:
            error = last
        yield rows_by_run
        if error:
            raise error
        runs = [run for run in runs if has_result(rows_by_run.get(run, []))]
        if not runs:
            return


def describe_process(run: Run, rows):
    """Describe the rates of a process in a line, or only their number if there are many, as in a sweep."""
    rates = "; ".join(map(report.describe_rate, rows)) if len(rows) <= MOST_LOGGED else f"{len(rows)} results"
    choices = " ".join(f"{name}={text}" for name, text in run.choices.items())
    return f"{choices or describe_work(rows[0])}: {rates}"


def work(children, is_together, seconds):
    """Let the processes of a round work, one after the other or in slices, and close them; return a KeyboardInterrupt.

    Args:
        seconds: of windows, for each.
    """
    error = None
    try:
        if is_together:
            work_in_slices(children, seconds)
        else:
            for each in children:
                each.finish({"seconds": seconds}, {"check": True})
    except KeyboardInterrupt as interrupt:
        error = interrupt
    for each in children:
        each.close()
    return error


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
    environ = environment.keep_memory(run.settings.use_gpu) | run.environ | {process.TASK: task}
    command = [python_of(run.settings.framework), str(ROOT / SCRIPTS[run.command])]
    if run.settings.has_ranks and task == process.MEASURE:
        environ.setdefault("LOGLEVEL", "ERROR")  # torchrun reads it
        # 127.0.0.1, because a laptop's own name often has no address.
        options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={run.settings.num_devices}"]
        command[1:1] = ["-m", "torch.distributed.run", *options]
    return process.Child(command, environ, show, limit)


def find_mistake(run: Run, ended):
    """Return the mistake in the settings that a closed Child found, or that it died at once; "" if it did neither."""
    if ended.lines or ended.exit_status in (None, process.INTERRUPTED):
        return next((line["mistake"] for line in ended.lines if "mistake" in line), "")
    _, why = explain_death(ended, run.settings.has_ranks)
    return f"the process ended before it measured anything ({why}): `make doctor` may explain it"


def make_rows(host, lines, **run_cells):
    """Make the row of each work, from its last line that has a result: typed cells."""
    rows = [complete_row(host, line, **run_cells) for line in lines if line.get("status", BEGUN) != BEGUN]
    return list({tuple(row[name] for name in WORK): row for row in rows}.values())


def read_rows(run: Run, host, ended, number, group):
    """Make the rows of a closed Child, and one with status and note if it died while something was begun."""
    run_cells = {"run_id": run.run_id, "process": number, "group": group}
    rows = make_rows(host, ended.lines, **run_cells)
    last = ended.lines[-1] if ended.lines else {}
    if last.get("status") != BEGUN or ended.exit_status in (0, process.MISTAKE, process.INTERRUPTED):
        return rows
    death, why = explain_death(ended, run.settings.has_ranks)
    unknown = dict.fromkeys(name for name, column in COLUMNS.items() if column.role == "result")
    return [*rows, complete_row(host, last, **run_cells) | unknown | {"status": death, "note": why, "flags": ""}]


def explain_death(ended, has_ranks):
    """Return the status and the note of the row of a closed Child that died."""
    status = ended.exit_status
    if status == -signal.SIGKILL:
        why = f"ended by signal {-status}, probably because memory ran out: choose a smaller BATCH_SIZE or MODEL"
        return "out_of_memory", why
    if status == -signal.SIGALRM:
        return "timed_out", f"stopped after {ended.limit:.0f} s"
    if has_ranks:
        return "crashed", "a rank failed, see above"
    return "crashed", f"exit status {status}" if status >= 0 else f"ended by signal {-status}"
