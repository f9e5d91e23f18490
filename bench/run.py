"""The parent process: reads the runs, starts their processes, stores and prints what they measured.

docs/contributing.md defines the words: run, process, round, row, result.

A fresh process starts with nothing allocated, compiled or tuned, and repetitions in fresh processes show how much
results differ between them (RUNS). A child only writes lines (bench/child.py), which become rows as soon as it has
ended; no child writes into results/. The parent imports no framework.
"""

import logging
import math
import os
import sys
import time
import uuid

from bench import child, process
from bench.frameworks import TAKEN, Device
from bench.host import environment, meters, ranks
from bench.packages import python_of
from bench.records import report, results
from bench.records.columns import describe_work
from bench.records.rows import make_rows
from bench.records.verdict import compare_runs
from bench.settings import COMPARED, LACKS, PARTS, ROOT, WORKLOADS, Run, SettingError, read_runs

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
        return child.main(command, make_workload, measure)
    return process.run_script(lambda: measure_command(command, make_workload, measure, describe_rows))


def measure_command(command, make_workload, measure, describe_rows):
    """Measure every run of the environment's settings; store each round, and print each run when its last has ended.

    Returns:
        The exit status: 0 if at least one row has a result; 130 after Ctrl-C, which ends everything.
    """
    runs = read_runs(command)
    if ranks.read_ranks().are_many:
        return measure_as_rank(runs, make_workload, measure, describe_rows)
    host = read_machine(runs)
    runs = plan_runs(runs, make_workload)
    groups = group_runs(runs)
    measured, status = [], 0
    for group in groups:
        rows_by_run = {run: [] for run in group}
        count = count_processes(group[0], is_compared=len(group) > 1)
        try:
            with report.progress(count * len(group)) as show:
                measure_rounds(rows_by_run, host, show, range(1, count + 1))
        except SettingError as error:
            if isinstance(error, results.ResultsError) or len(groups) == 1:
                raise
            log.error("%s", error)
        except KeyboardInterrupt:
            log.info("interrupted: what was complete is stored")
            status = process.INTERRUPTED
        from bench.records import tables  # only here: pandas takes a while, and no child needs it

        for found in map(tables.combine_rows, filter(None, rows_by_run.values())):
            print(describe_rows(found, tables.read(runs[0].settings.results_dir)))
            measured += found
        for run in group[1:]:
            chosen = [name.lower() for name in run.differences]
            if comparison := compare_runs(rows_by_run[run], rows_by_run[group[0]], chosen):
                print(report.describe_comparison(comparison, run.differences, group[0].differences))
        sys.stdout.flush()
        if status:
            break
    if table := report.describe_scaling(measured):
        print(table)
    print_paths(runs[0].settings.results_dir, measured)
    return status or (0 if has_result(measured) else 1)


def measure_as_rank(runs, make_workload, measure, describe_rows):
    """Measure one run as a rank of the user's own torchrun or Slurm, in this process; rank 0 stores it."""
    me = ranks.read_ranks()
    run, *others = runs
    if run.command not in WORKLOADS or "num_devices" in LACKS[run.settings.framework]:
        ranks.refuse_ranks(f"make {run.command}")
    if others or run.settings.runs not in (None, 1):
        what = "measures one combination once: set RUNS=1, and one value of MODEL and of every other setting"
        raise SettingError(f"WORLD_SIZE='{me.world_size}' (torchrun) {what}")
    os.environ["NUM_DEVICES"] = str(me.world_size)  # the child's part refuses settings that need a single device
    host = environment.read_host(run.settings.machine)
    lines, folder = [], run.settings.results_dir
    status = child.main(run.command, make_workload, measure, lines.append)
    if status == process.MISTAKE:
        raise SettingError(lines[-1]["mistake"])
    if me.rank or not lines:
        return status
    rows = make_rows(host, lines, run_id=run.run_id, process=1)
    with process.deferred_interrupts():
        store(folder, rows)
    from bench.records import tables

    print(describe_rows(tables.combine_rows(rows), tables.read(folder)))
    print_paths(folder, rows)
    return status or (0 if has_result(rows) else 1)


def print_paths(folder, rows):
    """Print in which files of a folder rows are."""
    for path in dict.fromkeys(results.path_of(folder, row) for row in rows):
        print(f"added to {results.display_path(path)}", flush=True)


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
    for path in dict.fromkeys(results.path_of(folder, row) for row in rows):
        some = [row for row in rows if results.path_of(folder, row) == path]
        try:
            results.append(path, *some)
        except results.ResultsError as error:
            print(results.HEADER + results.to_text(some), end="", flush=True)
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
    if settings.num_devices == "all" and count:
        return run.with_settings(NUM_DEVICES=str(count))
    if settings.num_devices == "all" or 0 < count < settings.num_devices:
        raise SettingError(f"NUM_DEVICES='{settings.num_devices}', but GPUs that can be used: {count}: set a number")
    return run


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
        key = run
        if compared and can_be_compared(run):
            key = tuple(run.choices[name] for name in run.choices if name != compared)
            if run.command == "image" and not run.settings.scope:
                run = run.with_settings(SCOPE="device")
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def measure_rounds(rows_by_run, host, show, numbers, limit=math.inf, is_over=lambda: False):
    """Measure a run, or runs that are compared, in rounds: a fresh process of each run. Store the rows of each round.

    A run without any result is left out of the rounds that follow.

    Args:
        rows_by_run: {run: its rows}, to which those of each round are added.
        show, limit: as Child takes them.
        numbers: those of the rounds.
        is_over: () -> whether no other round begins.

    Raises:
        SettingError: a mistake that only a child finds, such as a MODEL that resembles no known one; a full disk.
        KeyboardInterrupt: Ctrl-C; what is known of the round is stored.
    """
    runs = list(rows_by_run)
    is_together = len(runs) > 1
    group = uuid.uuid4().hex[:12] if is_together else ""
    for number in numbers:
        if not runs or is_over():
            return
        while True:
            children = {run: make_child(run, show, limit) for run in (runs if number % 2 else runs[::-1])}
            error = work(list(children.values()), is_together, runs[0].settings.max_seconds)
            if error or not is_together or not ran_out(children.values()):
                break
            log.warning("not enough memory to run these side by side: running them one at a time")
            is_together = False
        with process.deferred_interrupts():
            found, mistake = read_round(children, rows_by_run, host, process=number, group=group)
            for run, rows in found.items():
                rows_by_run[run] += rows
            store(runs[0].settings.results_dir, [row for rows in found.values() for row in rows])
        if error or mistake:
            raise error or SettingError(mistake)
        runs = [run for run in runs if has_result(found[run])]


def read_round(children, rows_by_run, host, **of_round):
    """Return ({run: the rows of its closed Child}, the first mistake, "" without one).

    Args:
        children: {run: Child}.
        rows_by_run: earlier rows of the same runs. A process that has used another device has no row.
        of_round: the cells process and group.
    """
    found, mistakes = {}, []
    for run, each in children.items():
        rows = make_rows(host, each.lines, each.explain_death(), run_id=run.run_id, **of_round)
        mistakes.append(find_mistake(each))
        devices = [some[0]["device"] for some in (rows_by_run[run], rows) if some]
        if len(set(devices)) > 1:
            rows = []
            mistakes.append("{} was measured, but only {} is found now: run `make doctor`".format(*devices))
        if rows:
            log.info("process %d: %s", of_round["process"], describe_process(run, rows))
        found[run] = rows
    return found, next(filter(None, mistakes), "")


def describe_process(run: Run, rows):
    """Describe the rates of a process in a line, or only their number if there are many, as in a sweep."""
    rates = "; ".join(map(report.describe_rate, rows)) if len(rows) <= MOST_LOGGED else f"{len(rows)} results"
    choices = " ".join(f"{name}={run.environ[name]}" for name in run.choices)  # of a search, its own values
    return f"{choices or describe_work(rows[0])}: {rates}"


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
    environ = environment.keep_memory(run.settings.use_gpu) | run.environ | {process.TASK: task}
    command = [python_of(run.settings.framework), str(ROOT / SCRIPTS[run.command])]
    if run.settings.has_ranks and task == process.MEASURE:
        environ.setdefault("LOGLEVEL", "ERROR")  # torchrun reads it
        # 127.0.0.1, because a laptop's own name often has no address.
        options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={run.settings.num_devices}"]
        command[1:1] = ["-m", "torch.distributed.run", *options]
    return process.Child(command, environ, show, limit)


def find_mistake(ended):
    """Return the mistake in the settings that a closed Child found, or that it died at once; "" if it did neither."""
    if (death := ended.explain_death()) and not ended.lines:
        return f"the process ended before it measured anything ({death[1]}): `make doctor` may explain it"
    return next((line["mistake"] for line in ended.lines if "mistake" in line), "")
