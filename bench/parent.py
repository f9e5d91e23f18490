"""The parent process: reads the runs, starts their processes, combines, prints and stores what they measured.

docs/contributing.md defines the words: run, process, turn, quantity, row.

A fresh process starts with nothing allocated, compiled or tuned, and repetitions in fresh processes show how much
results differ between them (RUNS). A child writes only lines (bench/child.py), and its progress to stderr; nobody but
this process writes into results/. It imports no framework.
"""

import functools
import itertools
import json
import logging
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import uuid
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from bench import child, cli
from bench.host import environment, ranks, resources, versions
from bench.records import report, results
from bench.records.columns import COLUMNS
from bench.records.combine import combine
from bench.records.rows import complete_row
from bench.records.verdict import compare_pairs
from bench.settings import ALL, AUTO, ROOT, WORKLOADS, Run, SettingError, read_runs

log = logging.getLogger("bench")

DEFAULT_PROCESSES = 5  # of each run
# Lists whose values are compared, the first of them in turn. Lists of other settings are different work.
COMPARED = ("FRAMEWORK_VERSION", "USE_GPU", "BATCH_SIZE", "PRECISION", "COMPILE", "MEMORY_FORMAT")
COMPARED += ("LORA_RANK", "CHECKPOINTING")
MOST_IN_TURN = 4  # processes of a list at the same time
MIN_GAIN = 1.02  # times faster that two doublings of the batch size must be together, or they are the last
# By command: the script that a child runs.
SCRIPTS = {workload: f"{workload}_benchmark.py" for workload in WORKLOADS} | {"tflops": "tflops_sweep.py"}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a child process; `rows` is what it had measured."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows


def main(command, make_workload=None, measure_work=child.measure_quantities, describe_rows=report.describe_run):
    """Run one benchmark from the environment's settings: the main function of every benchmark script.

    Args:
        command: what follows make: "image".
        make_workload: Settings -> Workload, a record; None if the command measures several.
        measure_work: what a child does, as child.measure_quantities() does.
        describe_rows: (combined rows of a run, stored rows) -> the text to print.

    Returns:
        The exit status: 0 measured, 1 tried and failed (the rows say why), and those of bench/cli.py.
    """
    role = functools.partial(measure_command, command, make_workload, describe_rows)
    if child.TASK in os.environ:  # a child is the same script, see child_in_turns()
        role = functools.partial(child.main, command, make_workload, measure_work)
    elif ranks.read_ranks().are_many:
        role = functools.partial(measure_as_rank, command, make_workload, measure_work, describe_rows)
    return cli.run_script(role)


def measure_command(command, make_workload, describe_rows):
    """Measure every run of the environment's settings; print and store each as soon as it is measured.

    Returns:
        The exit status: 0 if at least one row has a result; 130 after Ctrl-C, which ends everything.
    """
    runs = read_runs(command)
    host = environment.read_host(runs[0].settings.machine)
    folder = runs[0].settings.results_dir
    results.check_writable(folder)
    runs = plan_runs(runs, make_workload)
    runs = [choose_batch_size(run, host) if run.settings.batch_size == AUTO else run for run in runs]
    measured = []
    comparisons = []
    status = 0
    groups = group_runs(runs)
    for group in groups:
        if len(runs) > 1:
            numbers = " and ".join(str(runs.index(run) + 1) for run in group)
            log.info("combination %s of %d: %s", numbers, len(runs), "; ".join(map(name_choices, group)))
        rounds = []
        try:
            for rows_of in measure_rounds(group, host, quiet=False):
                rounds.append(rows_of)
        except SettingError as error:
            if len(groups) == 1 and not rounds:
                raise
            log.error("%s", error)
        except KeyboardInterrupt:
            log.info("interrupted: what was complete is stored")
            status = cli.INTERRUPTED
        lines = []
        for run in group[1:]:
            comparison = compare_runs(rounds, run, group[0])
            if comparison:
                lines.append(report.describe_comparison(comparison, run.choices, group[0].choices))
                comparisons.append(comparison)
            if run.python != group[0].python:
                lines.append(versions.describe_difference(group[0].python, run.python))
        combined = list(combine_rounds(rounds).values())
        print_and_store(folder, combined, describe_rows, lines)
        measured += itertools.chain(*combined)
        if status:
            break
    tables = [report.describe_scaling(measured), report.describe_chance(comparisons)]
    for table in filter(None, tables):
        print(table)
    for path in dict.fromkeys(results.path_of(folder, row) for row in measured):
        print(f"added to {cli.display_path(path)}", flush=True)
    return status or (0 if any(row["status"] == "ok" for row in measured) else 1)


def measure_as_rank(command, make_workload, measure_work, describe_rows):
    """Measure one run as a rank of the user's own torchrun or Slurm, in this process; rank 0 stores it."""
    me = ranks.read_ranks()
    lines = []
    # With NUM_DEVICES, settings for one device are refused.
    run, *others = read_runs(command, os.environ | {"NUM_DEVICES": str(me.world_size)})
    settings = run.settings
    if others or settings.runs not in (None, 1) or settings.batch_size == AUTO or settings.framework_version:
        raise SettingError(
            f"WORLD_SIZE='{me.world_size}' (torchrun) measures one combination once: set a single value of MODEL and "
            "of every other setting, RUNS=1 and no FRAMEWORK_VERSION, or set NUM_DEVICES instead of using torchrun"
        )
    host = environment.read_host(run.settings.machine)
    status = child.open_and_measure(run.settings, make_workload, measure_work, child.Task(), lines.append)
    run_id = uuid.uuid4().hex[:12]
    rows = [complete_row(host, run_id, line) for line in lines if line["status"] != child.BEGUN]
    if me.rank == 0 and rows:
        print_and_store(run.settings.results_dir, [combine([rows])], describe_rows)
        print(f"added to {cli.display_path(results.path_of(run.settings.results_dir, rows[0]))}", flush=True)
    return status


def print_and_store(folder, rows_of_runs, describe_rows, lines=()):
    """Print the combined rows of each run, and more lines; then add all rows to the files of their machines."""
    for rows in rows_of_runs:
        stored = []
        with suppress(SettingError):  # append() raises it again, when everything is printed
            stored = results.read(results.path_of(folder, rows[0]))
        print(describe_rows(rows, stored))
    for line in lines:
        print(line)
    sys.stdout.flush()
    for rows in rows_of_runs:
        results.append(results.path_of(folder, rows[0]), *rows)


def plan_runs(runs, make_workload):
    """Return the runs with what only this machine knows: the number of GPUs, the data of `make mlp`.

    Raises:
        SettingError: a run cannot be measured, which the user learns before anything is.
    """
    runs = [versions.install(run) if run.settings.framework_version else run for run in runs]
    runs = [count_devices(run) if run.settings.has_ranks else run for run in runs]
    if make_workload is None:
        return runs
    # Only a child knows the device; this is a guess, for mistakes and for the data of `make mlp`.
    guess = "gpu" if environment.find_card() or sys.platform == "darwin" else "cpu"
    for index, run in enumerate(runs):
        workload = make_workload(run.settings.on("cpu" if run.settings.use_gpu is False else guess))
        if run.command == "mlp":  # all processes of a run have the same data
            runs[index] = run.with_settings(DATA=workload.columns["data"])
    return runs


def count_devices(run: Run):
    """Return the run with the number of GPUs instead of NUM_DEVICES=all; raises SettingError if there are too few."""
    settings = run.settings
    count = find_device(settings).count if settings.use_gpu is not False else 0
    if settings.num_devices == ALL:
        if count == 0:
            raise SettingError("NUM_DEVICES='all' means all GPUs, but none can be used: set a number of processes")
        return run.with_settings(NUM_DEVICES=str(count))
    if 0 < count < settings.num_devices:
        raise SettingError(f"NUM_DEVICES='{settings.num_devices}': the number of GPUs here is {count}: set that")
    return run


def find_device(settings):
    """Return the Device that the settings' framework finds, in a process of its own."""
    try:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawn, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
            return pool.submit(child.find_device, settings).result()
    except BrokenProcessPool:
        raise SettingError(f"FRAMEWORK={settings.framework!r} crashes: `make doctor` says why") from None


def choose_batch_size(run: Run, host):
    """Return the run with the fastest batch size that fits instead of BATCH_SIZE=auto.

    Batch sizes are doubled from 1, with a short process of each, until one fails or two doublings together gain less
    than 2 %. A step that would take longer than MAX_SECONDS, or more of the system's memory than is free, is not tried.
    """
    log.info("BATCH_SIZE=auto doubles the batch size until it fails or gains less than 2 %: this may take minutes")
    short = run.with_settings(MAX_SECONDS="0.5", SCOPE="device", SUSTAIN=None, NUM_IMAGES=None)
    shares_memory = resources.shares_memory(find_device(run.settings))
    rates = {}
    size = 1
    while True:
        row = run_child(short.with_settings(BATCH_SIZE=str(size)), host, has_extras=False, compares_with_cpu=False)[-1]
        log.info("BATCH_SIZE=%d: %s", size, report.describe_rate(row))
        if row["status"] != "ok":
            break
        rates[size] = row["throughput"]
        gains = max(rates.values()) > MIN_GAIN * rates.get(size // 4, 0)
        free = resources.available_bytes() if shares_memory else None
        needs_too_much = free and 2 * (row.get("peak_memory_bytes") or 0) > free
        if not gains or 2 * row["step_seconds_median"] > run.settings.max_seconds or needs_too_much:
            break
        size *= 2
    fastest = max(rates, key=rates.__getitem__, default=1)  # if 1 fails, measuring it says why
    return run.with_settings(BATCH_SIZE=str(fastest))


def plan_processes(run: Run):
    """Return the number of processes of a run: RUNS, or five, or one for work that takes a given time.

    The same is true of work that hardly varies (`make tflops`).
    """
    settings = run.settings
    if settings.runs:
        return settings.runs
    return 1 if run.command == "tflops" or settings.sustain or settings.epochs else DEFAULT_PROCESSES


def group_runs(runs):
    """Return lists of runs: those that are compared, each with the first one of its list, and each other by itself.

    The runs of a list differ in the first of COMPARED that has several values, and take turns. One run gives [[run]].
    """
    compared = next((name for name in COMPARED if len({run.choices.get(name) for run in runs}) > 1), None)
    groups = {}
    for run in runs:
        settings = run.settings
        takes_turns = run.command in WORKLOADS and not (settings.has_ranks or settings.sustain or settings.epochs)
        shared = [item for item in run.choices.items() if not takes_turns or item[0] != compared]
        groups.setdefault(tuple(shared), []).append(run)
    cut = []
    for first, *others in groups.values():
        starts = range(0, max(1, len(others)), MOST_IN_TURN - 1)
        cut += [[first, *others[start : start + MOST_IN_TURN - 1]] for start in starts]
    return cut


def measure_rounds(runs, host, limit=math.inf, quiet=True, has_extras=True):
    """Measure a run, or runs that are compared, in rounds: a fresh process of each run.

    The processes of a round are alive at the same time and take turns. If memory is too small for that, each works to
    its end. Every second round begins with the last run. After a process without any result, its run is left out.

    Args:
        limit: seconds of work after which a process is killed.
        quiet: nothing is printed.
        has_extras: the first process of a run also measures what one process is enough for (child.Task).

    Yields:
        {run: rows of its process} of each round, when it is complete. After Ctrl-C in the first one, what is known of
        it comes before the KeyboardInterrupt.

    Raises:
        SettingError: a mistake that only a child finds, such as a MODEL that resembles no known one.
    """
    count = plan_processes(runs[0])
    takes_turns = len(runs) > 1
    remaining = list(runs)
    for number in range(count):
        if not remaining:
            return
        if count > 1 and not quiet:
            log.info("process %d of %d%s", number + 1, count, " of each" if takes_turns else "")
        is_first = number == 0
        make_child = functools.partial(
            child_in_turns, host=host, has_extras=is_first and has_extras, compares_with_cpu=is_first, limit=limit
        )
        order = remaining[::-1] if number % 2 else remaining
        rows_of = {}
        try:
            run_children({run: make_child(run, quiet=quiet, takes_turns=takes_turns) for run in order}, rows_of)
            if takes_turns and any(row["status"] == "out_of_memory" for rows in rows_of.values() for row in rows):
                log.warning("memory is too small for these combinations at the same time: they run one after the other")
                takes_turns = False
                rows_of.clear()
                run_children({run: make_child(run, quiet=quiet) for run in order}, rows_of)
        except (KeyboardInterrupt, SettingError):
            if is_first and rows_of:
                yield rows_of
            raise
        remaining = [run for run in remaining if any(row["status"] == "ok" for row in rows_of[run])]
        if len(remaining) < len(order):  # the others may fit together
            takes_turns = len(remaining) > 1
        yield {run: rows_of[run] for run in order}


def combine_rounds(rounds):
    """Return {run: its combined rows, one for each quantity} of what measure_rounds() yields."""
    runs = dict.fromkeys(run for rows_of in rounds for run in rows_of)
    return {run: combine([rows_of[run] for rows_of in rounds if run in rows_of]) for run in runs}


def compare_runs(rounds, run, base):
    """Return the Comparison of a run with another one of the same rounds; None without a pair."""
    pairs = [(rows_of[run], rows_of[base]) for rows_of in rounds if {run, base} <= rows_of.keys()]
    return compare_pairs(pairs, [name.lower() for name in run.choices])


def name_choices(run):
    """Return a run's entries of the lists: "COMPILE=1 PHASE=training"."""
    return " ".join(f"{name}={text}" for name, text in run.choices.items())


def run_children(children, rows_of):
    """Let child processes work in turn until each has ended, and fill {run: its rows}; after Ctrl-C, as far as known.

    Args:
        children: {run: child_in_turns() of it}, in the order of their turns.
    """
    try:
        while children:
            for run, turns in list(children.items()):
                try:
                    next(turns)  # to the end, if this child takes no turns
                except StopIteration as ended:
                    rows_of[run] = ended.value
                    del children[run]
                except Interrupted as error:
                    if error.rows:
                        rows_of[run] = error.rows
                    raise
    finally:
        for turns in children.values():
            turns.close()


def run_child(run: Run, host, **options):
    """Run one process of a run to its end, as child_in_turns() does with these options, and return its rows."""
    rows_of = {}
    run_children({run: child_in_turns(run, host, **options)}, rows_of)
    return rows_of[run]


def child_in_turns(
    run: Run, host, has_extras=True, compares_with_cpu=True, limit=math.inf, quiet=True, takes_turns=False
):
    """Run one process of a run, or one for each of NUM_DEVICES under torchrun.

    This is a generator that pauses between turns; nothing starts before the first next().

    Args:
        host: this machine.
        has_extras: the process also measures what one process is enough for (child.Task).
        compares_with_cpu: the model is compared with the CPU.
        limit: seconds of work after which the process is killed.
        quiet: the process prints nothing.
        takes_turns: it ends its turn now and then; next() is its next one.

    Returns the rows of read_rows(), or raises SettingError or Interrupted as it does.
    """
    environ = dict(run.environ)
    command = [run.python, str(ROOT / SCRIPTS[run.command])]
    if run.settings.has_ranks:
        environ.setdefault("LOGLEVEL", "ERROR")  # torchrun reads it
        # 127.0.0.1, because a laptop's own name often has no address.
        options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={run.settings.num_devices}"]
        command[1:1] = ["-m", "torch.distributed.run", *options]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "lines")
        file.touch()
        environ[child.TASK] = json.dumps(asdict(child.Task(str(file), has_extras, compares_with_cpu, takes_turns)))
        exit_status = yield from cli.run_process(command, environ, limit, quiet)
        texts = file.read_text().split("\n")[:-1]  # what follows the last line end is incomplete
    return read_rows(run, host, texts, exit_status)


def read_rows(run: Run, host, texts, exit_status):
    """Make rows of the JSON lines that a process wrote before it ended.

    Returns:
        The rows, at least one: typed cells, with status and note if the process failed or died. Nothing is stored.

    Raises:
        SettingError: a mistake in the settings, or the process died before it began to measure.
        Interrupted: after Ctrl-C, with the rows so far.
    """
    rows = []
    run_id = uuid.uuid4().hex[:12]  # of this process
    for line in map(json.loads, texts):
        if "mistake" in line:
            raise SettingError(line["mistake"])
        if rows and rows[-1]["status"] == child.BEGUN:
            rows.pop()
        rows.append(complete_row(host, run_id, line))
        if run.python != sys.executable:
            rows[-1]["flags"] = f"{rows[-1]['flags']} other_version".strip()
    begun = rows.pop() if rows and rows[-1]["status"] == child.BEGUN else None
    if exit_status == cli.INTERRUPTED:
        raise Interrupted(rows)
    # After a good row, 1 means that Python itself failed.
    if rows and (exit_status == 0 or (exit_status == 1 and rows[-1]["status"] != "ok")):
        return rows
    death, why = explain_death(exit_status, run.settings.has_ranks)
    if not begun and not rows:
        raise SettingError(f"before it measured anything, {why}: `make doctor` may say why")
    unknown = dict.fromkeys(name for name, column in COLUMNS.items() if column.role == "result")
    return [*rows, (begun or rows[-1]) | unknown | {"status": death, "note": why, "flags": ""}]


def explain_death(status, has_ranks):
    """Return the status and the note of the row of a process that died with this exit status."""
    if status == -signal.SIGKILL:
        why = f"it was ended by signal {-status}, probably because memory ran out: choose a smaller BATCH_SIZE or MODEL"
        return "out_of_memory", why
    if status == -signal.SIGALRM:
        return "crashed", "it was ended by its time limit"
    if has_ranks:
        return "crashed", "a rank failed, see above"
    if status >= 0:
        return "crashed", f"it ended with exit status {status}"
    return "crashed", f"it was ended by signal {-status}"
