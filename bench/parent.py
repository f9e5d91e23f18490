"""The parent process: reads the runs, starts their processes, stores and prints what they measured.

docs/contributing.md defines the words: run, process, turn, quantity, row, result.

A fresh process starts with nothing allocated, compiled or tuned, and repetitions in fresh processes show how much
results differ between them (RUNS). A child only writes lines (bench/child.py), which this process shows, and stores as
rows as soon as the child has ended; no child writes into results/. The parent imports no framework.
"""

import logging
import math
import os
import signal
import sys
from collections import Counter
from dataclasses import asdict, replace

from bench import child, processes
from bench.frameworks import TAKEN, Device
from bench.host import environment, meters, ranks
from bench.packages import python_of
from bench.processes import BEGUN
from bench.records import report, results
from bench.records.columns import COLUMNS, WORK
from bench.records.combine import combine, compare_runs, convert
from bench.records.rows import complete_row
from bench.settings import (
    COMPARED,
    FRAMEWORKS,
    PARTS,
    ROOT,
    WORKLOADS,
    Run,
    SettingError,
    new_id,
    parse_settings,
    read_runs,
)

log = logging.getLogger("bench")

DEFAULT_PROCESSES = 3  # of each run
COMPARED_PROCESSES = 5  # of each run of a list that is compared
MOST_INTERLEAVED = 4  # processes of a list at the same time
# By command: the script that a child runs.
SCRIPTS = {workload: f"{workload}_benchmark.py" for workload in WORKLOADS} | {"tflops": "tflops_sweep.py"}


def main(command, make_workload=None, measure_work=child.measure_quantities, describe_rows=report.describe_run):
    """Run one benchmark from the environment's settings: the main function of every benchmark script.

    Args:
        command: what follows make: "image".
        make_workload: Settings -> Workload, a record; None if the command measures several.
        measure_work: what a child does, as child.measure_quantities() does.
        describe_rows: (results of a run, those that are stored) -> the text to print.

    Returns:
        The exit status: 0 measured, 1 tried and failed (the rows say why), and those of bench/processes.py.
    """

    def start():
        if processes.TASK in os.environ:  # a child is the same script, see make_child()
            return child.main(command, make_workload, measure_work)
        if ranks.read_ranks().are_many:
            return measure_as_rank(command, make_workload, measure_work, describe_rows)
        return measure_command(command, make_workload, describe_rows)

    return processes.run_script(start)


def measure_command(command, make_workload, describe_rows):
    """Measure every run of the environment's settings; store and print each group of runs as soon as it is measured.

    Returns:
        The exit status: 0 if at least one row has a result; 130 after Ctrl-C, which ends everything.
    """
    # Read the settings and the machine
    runs = read_runs(command)
    host = read_machine(runs)
    folder = runs[0].settings.results_dir

    # Plan: devices and data, which only this machine knows
    runs = plan_runs(runs, make_workload)

    # Measure each group
    measured = []
    comparisons = []
    rounds = Counter()  # of each run
    status = 0
    groups = group_runs(runs)
    for group in groups:
        if len(runs) > 1:
            numbers = " and ".join(str(runs.index(run) + 1) for run in group)
            choices = (" ".join(f"{name}={text}" for name, text in run.choices.items()) for run in group)
            log.info("combination %s of %d: %s", numbers, len(runs), "; ".join(choices))
        rows_of = {run: [] for run in group}
        count = plan_processes(group[0], is_compared=len(group) > 1)
        begun = rounds[group[0]]  # the parts of a long list have the same first run, whose processes are numbered on
        rounds[group[0]] += count
        try:
            with report.progress(count * len(group), quiet=False) as show:
                for of_round in measure_rounds(group, host, show, range(begun + 1, begun + count + 1)):
                    for run, rows in of_round.items():
                        rows_of[run] += rows
        except SettingError as error:
            if len(groups) == 1 and not any(rows_of.values()):
                raise
            log.error("%s", error)
            status = processes.MISTAKE if isinstance(error, results.ResultsError) else 0
        except KeyboardInterrupt:
            log.info("interrupted: what was complete is stored")
            status = processes.INTERRUPTED

        # Print
        for found in map(combine, filter(None, rows_of.values())):
            print(describe_rows(found, read_stored(folder, found)))
            measured += found if status != processes.MISTAKE else []  # else it was not stored
        for run in group[1:]:
            if comparison := compare_runs(rows_of[run], rows_of[group[0]], map(str.lower, run.differences)):
                print(report.describe_comparison(comparison, run.differences, group[0].differences))
                comparisons.append(comparison)
        sys.stdout.flush()
        if status:
            break
    tables = [report.describe_scaling(measured), report.describe_parts(measured), report.describe_chance(comparisons)]
    for table in filter(None, tables):
        print(table)
    for path in dict.fromkeys(results.path_of(folder, row) for row in measured):
        print(f"added to {results.display_path(path)}", flush=True)

    if host.busy:  # said at the start, too
        log.warning("%s, then measure again", host.busy)

    # Status
    return status or (0 if has_result(measured) else 1)


def measure_as_rank(command, make_workload, measure_work, describe_rows):
    """Measure one run as a rank of the user's own torchrun or Slurm, in this process; rank 0 stores it."""
    me = ranks.read_ranks()
    lines = []
    if command not in WORKLOADS or not FRAMEWORKS[parse_settings(command, os.environ).framework].runs_on_many:
        ranks.refuse_ranks(f"make {command}")
    # NUM_DEVICES lets read_runs() refuse settings that need a single device.
    run, *others = read_runs(command, os.environ | {"NUM_DEVICES": str(me.world_size)})
    settings = run.settings
    if others or settings.runs not in (None, 1):
        what = "measures one combination once: set RUNS=1, and one value of MODEL and of every other setting"
        raise SettingError(f"WORLD_SIZE='{me.world_size}' (torchrun) {what}")
    host = environment.read_host(settings.machine)
    status = child.open_and_measure(settings, make_workload, measure_work, child.Task(), lines.append)
    rows = make_rows(host, lines, run_id=run.run_id, process=1)
    if me.rank == 0 and rows:
        with processes.interrupts_held():
            store(settings.results_dir, rows)
        found = combine(rows)
        print(describe_rows(found, read_stored(settings.results_dir, found)))
        print(f"added to {results.display_path(results.path_of(settings.results_dir, rows[0]))}", flush=True)
    return status


def read_machine(runs):
    """Return this machine's Host; refuse a folder that cannot be written to, and warn if other programs are busy."""
    settings = runs[0].settings  # MACHINE and RESULTS_DIR cannot be lists
    environment.refuse_wrong_clock()
    host = environment.read_host(settings.machine)
    results.check_writable(settings.results_dir, environment.possible_machines(host))
    busy, is_half = meters.describe_load()
    if busy:
        log.warning("%s", busy)
    uses_gpu = any(run.settings.use_gpu is not False for run in runs)
    return replace(host, busy=busy if is_half else "", card_is_shared=uses_gpu and meters.is_card_shared())


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


def read_stored(folder, rows):
    """Return the results in the file of these rows; [] if it cannot be read."""
    try:
        return combine(map(convert, results.read(results.path_of(folder, rows[0]))))
    except (results.ResultsError, OSError):
        return []


def plan_runs(runs, make_workload):
    """Return the runs with the number of GPUs and the data of make mlp; build the workload of each, to find mistakes.

    Raises:
        SettingError: a run cannot be measured, which the user learns before anything is.
    """
    runs = [count_devices(run) if run.settings.has_ranks else run for run in runs]
    if make_workload is None:
        return runs
    # Only a child knows the device; this is a guess.
    guess = "gpu" if environment.find_card() or sys.platform == "darwin" else "cpu"
    for index, run in enumerate(runs):
        workload = make_workload(run.settings.on("cpu" if run.settings.use_gpu is False else guess))
        if run.command == "mlp":  # all processes of a run have the same data
            runs[index] = run.with_settings(DATA=workload.columns["data"])
    return runs


def count_devices(run: Run):
    """Return the run with the number of GPUs instead of NUM_DEVICES=all; raises SettingError if there are too few."""
    for name in ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"):
        if os.environ.get(name, "false").lower() != "false":  # importing PyTorch then binds torchrun to a core
            raise SettingError(f"{name}={os.environ[name]!r} binds torchrun and its ranks to one core: unset it")
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
    with report.progress(1, quiet=False) as show:
        process = make_child(run, show, finds_device=True)
        processes.work_interleaved([process])
    if mistake := find_mistake(run, process):
        raise SettingError(mistake)
    return Device(**process.lines[0])


def plan_processes(run: Run, is_compared=False):
    """Return the number of processes of a run: RUNS, or three, or five if it is compared.

    One is enough for work that takes a given time, and for work that hardly varies (`make tflops`).
    """
    settings = run.settings
    if settings.runs:
        return settings.runs
    if run.command == "tflops" or settings.sustain or settings.epochs:
        return 1
    return COMPARED_PROCESSES if is_compared else DEFAULT_PROCESSES


def group_runs(runs):
    """Return groups, lists of runs: those that are compared, and each of the others by itself.

    The runs of a group differ in the first of COMPARED that has several values, and are compared
    with its first run. A larger group is split, and each part begins with that run.
    """
    compared = next((name for name in COMPARED if len({run.choices.get(name) for run in runs}) > 1), None)
    groups = {}
    for run in runs:
        settings = run.settings
        pauses = not (settings.has_ranks or settings.sustain or settings.epochs or settings.phase in PARTS)
        can_pause = run.command in WORKLOADS and pauses
        same = tuple(run.choices[name] for name in run.choices if not (can_pause and name == compared))
        groups.setdefault((can_pause, same), []).append(run)
    split = []
    for first, *others in groups.values():
        starts = range(0, max(1, len(others)), MOST_INTERLEAVED - 1)
        split += [[first, *others[start : start + MOST_INTERLEAVED - 1]] for start in starts]
    return split


def measure_rounds(runs, host, show, round_numbers, group="", limit=math.inf, choose=list, **task):
    """Measure a run, or runs that are compared, in rounds: a fresh process of each run.

    The processes of a round are interleaved. If the GPU or its memory has no room for that, they work one after the
    other. After a process without any result, its run is left out.

    Args:
        show, limit: as Child takes them.
        round_numbers: the numbers of the rounds.
        group: its name; "" makes one, if there are several runs.
        choose: {run: rows of its process} of a round -> the runs of the next round; those that failed are left out.
        task: other fields of child.Task.

    Yields:
        {run: rows of its process} of each round, once they are stored; after Ctrl-C those that had ended, and in the
        first round what is known of the others.

    Raises:
        SettingError: a mistake that only a child finds, such as a MODEL that resembles no known one; a full disk.
    """
    group = group or (new_id() if len(runs) > 1 else "")
    remaining = list(runs)
    interleaves = len(runs) > 1
    devices = {}
    for number in round_numbers:
        is_first = number == round_numbers[0]
        of_round = {"card_is_shared": host.card_is_shared, "warns": is_first} | task
        for takes_turns in (True, False) if interleaves else (False,):
            of_round["takes_turns"] = takes_turns
            children = {run: make_child(run, show, limit, **of_round, device=devices.get(run, "")) for run in remaining}
            rows_of, error = run_children(children, host, number, group, keeps_parts=is_first)
            if error or not takes_turns or not is_crowded(rows_of):
                break
            log.warning("there is no room for these combinations at the same time: they run one after the other")
            interleaves = False
        yield rows_of
        if error:
            raise error
        devices = {run: rows[0]["device"] for run, rows in rows_of.items()} | devices
        count = len(remaining)
        chosen = choose(rows_of)
        remaining = [run for run in remaining if run in chosen and has_result(rows_of.get(run, []))]
        if not remaining:
            return
        if len(remaining) < count:  # the others may fit together
            interleaves = len(remaining) > 1


def has_result(rows):
    return any(row["status"] == "ok" for row in rows)


def is_crowded(rows_of):
    """Return whether a process of a round may have failed because another one has the memory, or the whole card."""
    rows = [row for rows in rows_of.values() for row in rows]
    return any(row["status"] == "out_of_memory" or TAKEN in row["note"] for row in rows)


def run_children(children, host, number, group="", keeps_parts=False):
    """Let the Children of a round, {run: Child}, work until they have ended, and store their rows.

    Even rounds begin with the last one. A round without room for all at the same time is not stored.

    Args:
        number, group: cells of the rows.
        keeps_parts: Ctrl-C leaves what is known of processes that had not ended.

    Returns:
        ({run: rows of its process}, the exception that ends the measuring or None: KeyboardInterrupt, SettingError).
    """
    error = None
    try:
        processes.work_interleaved(list(children.values())[:: 1 if number % 2 else -1])
    except KeyboardInterrupt as interrupt:
        error = interrupt
    rows_of = {}
    try:
        with processes.interrupts_held():
            for run, process in children.items():
                rows = read_rows(run, host, process, number, group)
                if rows and (keeps_parts or process.exit_status != processes.INTERRUPTED):
                    rows_of[run] = rows
                if mistake := find_mistake(run, process):
                    error = error or SettingError(mistake)
            takes_turns = any(process.task.get("takes_turns") for process in children.values())
            if error or not (takes_turns and is_crowded(rows_of)):
                folder = next(iter(children)).settings.results_dir
                store(folder, [row for rows in rows_of.values() for row in rows])
    except (KeyboardInterrupt, results.ResultsError) as last:
        error = last
    return rows_of, error


def make_child(run: Run, show, limit=math.inf, **task):
    """Return the Child for one process of a run, or for one of each of NUM_DEVICES under torchrun.

    Args:
        show, limit: as Child takes them.
        task: fields of child.Task.
    """
    environ = run.environ | environment.keep_memory(run.environ, run.settings.use_gpu)
    command = [python_of(run.settings.framework), str(ROOT / SCRIPTS[run.command])]
    if run.settings.has_ranks and not task.get("finds_device"):
        environ.setdefault("LOGLEVEL", "ERROR")  # torchrun reads it
        # 127.0.0.1, because a laptop's own name often has no address.
        options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={run.settings.num_devices}"]
        command[1:1] = ["-m", "torch.distributed.run", *options]
    return processes.Child(command, environ, asdict(child.Task(**task)), limit, show)


def find_mistake(run: Run, process):
    """Return the mistake in the settings that a closed Child found, or that it died at once; "" if it did neither."""
    if process.lines or process.exit_status in (None, processes.INTERRUPTED):
        return next((line["mistake"] for line in process.lines if "mistake" in line), "")
    _, why = explain_death(process, run.settings.has_ranks)
    return f"the process ended before it measured anything ({why}): `make doctor` may explain it"


def make_rows(host, lines, **of_run):
    """Make the row of each work, from its last line that has a result: typed cells."""
    rows = [complete_row(host, line, **of_run) for line in lines if line.get("status", BEGUN) != BEGUN]
    return list({tuple(row[name] for name in WORK): row for row in rows}.values())


def read_rows(run: Run, host, process, number, group):
    """Make the rows of a closed Child, and one with status and note if it died while something was begun."""
    of_run = {"run_id": run.run_id, "process": number, "group": group}
    rows = make_rows(host, process.lines, **of_run)
    last = process.lines[-1] if process.lines else {}
    if last.get("status") != BEGUN or process.exit_status in (0, processes.MISTAKE, processes.INTERRUPTED):
        return rows
    death, why = explain_death(process, run.settings.has_ranks)
    unknown = dict.fromkeys(name for name, column in COLUMNS.items() if column.role == "result")
    return [*rows, complete_row(host, last, **of_run) | unknown | {"status": death, "note": why, "flags": ""}]


def explain_death(process, has_ranks):
    """Return the status and the note of the row of a closed Child that died."""
    status = process.exit_status
    if status == -signal.SIGKILL:
        why = f"ended by signal {-status}, probably because memory ran out: choose a smaller BATCH_SIZE or MODEL"
        return "out_of_memory", why
    if status == -signal.SIGALRM:
        last = process.lines[-1] if process.lines else {}
        if last.get("compile") and (last["status"], last["note"]) == (BEGUN, child.WARMING_UP):
            return "compiling", f"did not finish compiling within {process.limit:.0f} s: set COMPILE=0"
        return "timed_out", f"stopped after {process.limit:.0f} s"
    if has_ranks:
        return "crashed", "a rank failed, see above"
    return "crashed", f"exit status {status}" if status >= 0 else f"ended by signal {-status}"
