"""The parent process: reads the runs, starts their processes, stores and prints what they measured.

docs/contributing.md defines the words: run, process, round, row, result.

A fresh process starts with nothing allocated, compiled or tuned, and repetitions in fresh processes show how much
results differ between them (RUNS). A child only writes lines (bench/child.py), which become rows as soon as it has
ended; no child writes into results/. The parent imports no framework.
"""

import logging
import os
import re
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager

from tqdm import tqdm
from tqdm.contrib.logging import tqdm_logging_redirect

from bench import child, process
from bench.frameworks import Device
from bench.host import environment, meters, ranks, resources
from bench.packages import python_of
from bench.records import report, results
from bench.records.columns import describe_work, format_number
from bench.records.rows import make_rows
from bench.records.verdict import compare_runs
from bench.settings import COMPARED, PARTS, ROOT, WORKLOADS, Run, SettingError, read_runs

log = logging.getLogger("bench")

PROCESSES, COMPARED_PROCESSES = 3, 5  # for each run, and in a list that is compared
SAMPLE_SECONDS = 0.3  # to see other programs, before anything is measured
SLICE_SECONDS, LEAST_SLICES, MOST_SLICES = 0.25, 2, 100  # for windows, before another process works
REFRESH_SECONDS = 1.0
BAR = "{desc} [{elapsed}<{remaining}]"
LOGGED = re.compile(r"^\d\d:\d\d:\d\d  ")  # how a line of the log begins
logged = set()  # by child processes
# By command: the script that a child runs.
SCRIPTS = {workload: f"{workload}_benchmark.py" for workload in WORKLOADS} | {"tflops": "tflops_sweep.py"}


def main(command, make_workload=None, measure=child.measure_workload, describe_results=report.describe_run):
    """Run one benchmark from the environment's settings: the main function of every benchmark script.

    Args:
        command: what follows make: "image".
        make_workload: Settings -> Workload; None if the command measures several.
        measure: what a child does, as child.measure_workload() does.
        describe_results: (results of a run, those that are stored) -> the text to print.

    Returns:
        The exit status: 0 measured, 1 tried and failed (the rows say why), and those of bench/process.py.
    """
    if process.TASK in os.environ:  # a child is the same script
        return child.main(command, make_workload, measure)
    return process.run_script(lambda: measure_command(command, describe_results, make_workload))


def measure_command(command, describe_results, make_workload=None):
    """Measure every run of the environment's settings; store each round, and print each group when it has ended.

    Args:
        describe_results, make_workload: as of main().

    Returns:
        The exit status: 1 if all rows are failures; 130 after Ctrl-C, which ends everything.

    Raises:
        SettingError: a mistake, which ends everything, too.
    """
    runs = read_runs(command)
    folder = runs[0].settings.results_dir
    host = read_machine(runs)
    if make_workload:  # refuses a MODEL, and finds the data here, so that all processes have the same
        runs = [run.with_settings(DATA=make_workload(run.settings).columns["data"]) for run in runs]
    entries, status = [], 0
    compared, *others = [name for name in COMPARED if len({run.choices.get(name) for run in runs}) > 1] or [""]
    for group in group_runs(runs, compared):
        rows_by_run = {run: [] for run in group}
        count = count_processes(group[0], is_compared=len(group) > 1)
        try:
            with progress(count * len(group)) as show:
                measure_rounds(rows_by_run, host, show, range(1, count + 1))
        except KeyboardInterrupt:
            log.info("interrupted: what was complete is stored")
            status = process.INTERRUPTED
        from bench.records import tables  # only now: pandas takes half a second, and no child needs it

        warnings = []
        found = tables.read(folder, warnings.append)
        latest = tables.latest(found)
        for run in filter(rows_by_run.get, group):  # not those before which Ctrl-C came
            found_of_run = tables.to_dicts(found[found["run_id"] == run.run_id])
            if not found_of_run:
                raise SettingError(f"what was measured cannot be read: {'; '.join(warnings)}")
            print(describe_results(found_of_run, latest), flush=True)
            ratio = ""
            if run is not group[0] and has_result(rows_by_run[run]) and has_result(rows_by_run[group[0]]):
                pairs = compare_runs(rows_by_run[run], rows_by_run[group[0]], run.choices)
                ratio = report.describe_comparison(pairs, f"{compared}={group[0].choices[compared]}")
            entries.append((" ".join(map("=".join, run.choices.items())), found_of_run, ratio))
        if status:
            break
    if len(entries) > 1 and command in WORKLOADS:
        print(report.describe_list(entries))
    if any(ratio for *_, ratio in entries):
        print(f"compared: {compared}" + (f"; for {' or '.join(others)} name it alone" if others else ""))
    measured = [row for _, rows, _ in entries for row in rows]
    for path in dict.fromkeys(results.path_of(folder, row) for row in measured):
        print(f"added to {results.display_path(path)}", flush=True)
    # A machine without rank 0 has no rows at all.
    return status or int(bool(measured) and not has_result(measured))


def read_machine(runs):
    """Return what describes this computer; keep it awake, and refuse what is in the way of these runs of a command."""
    if ranks.read_ranks().are_many:
        raise SettingError("RANK and WORLD_SIZE are torchrun's, but make starts it: see docs/scaling.md, unset them")
    resources.check_threads()
    settings = runs[0].settings  # MACHINE and RESULTS_DIR cannot be lists
    host = environment.read_host(settings.machine)
    card = environment.find_card()
    for use_gpu in {run.settings.use_gpu for run in runs}:
        gpu_name = card.name if card and use_gpu is not False else None
        machine = settings.machine or environment.name_machine(host, gpu_name)
        results.append(results.path_of(settings.results_dir, {"machine": machine}))  # finds out if this is possible
    if sys.platform == "darwin":
        subprocess.Popen(["caffeinate", "-i", "-w", str(os.getpid())], start_new_session=True)
    watch = meters.Watch(meters.Instruments())
    watch.start()
    time.sleep(SAMPLE_SECONDS)
    if "contended" in watch.stop()[0] and watch.cores > 0.5:
        log.warning("other programs use %.1f cores: results will be marked", watch.cores)
    return host


@contextmanager
def progress(count):
    """Show what child processes do: a bar with their number and rate, below what they print; yields a Child's `show`.

    What processes log is shown once, however many log it. At most `count` processes follow.
    """
    options = {"miniters": 0, "mininterval": REFRESH_SECONDS, "smoothing": 0, "dynamic_ncols": True, "disable": None}
    with tqdm_logging_redirect(total=count, bar_format=BAR, file=sys.stderr, leave=False, **options) as bar:

        def show(child, printed):
            for text in printed:
                words = LOGGED.sub("", text)
                if words == text or words not in logged:
                    tqdm.write(text, file=sys.stderr)
                logged.add(words)
            bar.n = min(bar.n + (child.exit_status is not None), count)  # disturbed ones are repeated
            line = child.lines[-1] if child.lines else {"status": process.BEGUN, "note": "starting"}
            rate = f", {format_number(line['throughput'])} {line['unit']}" if line.get("throughput") else ""
            doing = f"{line['note']} " if line.get("status") == process.BEGUN else ""
            bar.desc = f"processes ended: {bar.n} of {count}{rate}: {doing}{describe_work(line)}"
            bar.update(0)

        yield show


def find_device(run: Run):
    """Return the Device that a run's framework finds, in a process of its own, which warns if a GPU is missing."""
    with progress(1) as show:
        found = make_child(run.with_settings(**{process.TASK: process.FIND_DEVICE}), show)
        try:
            found.start().finish()
        finally:
            process.close([found])
    if mistake := found.find_mistake():
        raise SettingError(mistake)
    return Device(**found.lines[0])


def count_processes(run: Run, is_compared=False):
    """Return the number of processes of a run: RUNS, or three, five if compared, one if it hardly varies."""
    settings = run.settings
    if ranks.NODES in os.environ:  # the machines would have to begin each round together
        return 1
    is_single = run.command == "tflops" or settings.sustain or settings.epochs
    return settings.runs or (1 if is_single else COMPARED_PROCESSES if is_compared else PROCESSES)


def group_runs(runs, compared):
    """Return groups, lists of runs: those that differ only in the setting `compared`, and each of the others by itself.

    Those of a group of several are compared with its first one; images in the scope device unless SCOPE is set.
    """
    groups = {}
    for run in runs:
        key = run
        if compared and run.command in WORKLOADS and not run.settings.has_ranks:
            key = tuple(run.choices[name] for name in run.choices if name != compared)
        groups.setdefault(key, []).append(run)
    for group in groups.values():
        settings = group[0].settings
        if len(group) > 1 and group[0].command == "image" and not (settings.scope or settings.sustain):
            group[:] = [run.with_settings(SCOPE="device") for run in group]
    return list(groups.values())


def measure_rounds(rows_by_run, host, show, numbers):
    """Measure a run, or runs that are compared, in rounds: a fresh process of each run. Store the rows of each round.

    A run without any result is left out of the rounds that follow.

    Args:
        rows_by_run: {run: its rows}, to which those of each round are added.
        show: as Child takes it.
        numbers: those of the rounds.

    Raises:
        SettingError: a mistake that only a child finds, such as a MODEL that resembles no known one; a full disk.
        KeyboardInterrupt: Ctrl-C; what is known of the round is stored.
    """
    runs = list(rows_by_run)
    settings = runs[0].settings
    is_fixed = settings.sustain or settings.epochs or settings.num_images or settings.phase in PARTS
    is_together = len(runs) > 1 and not is_fixed and "device" in (settings.scope or ["device"])  # so in slices
    group = uuid.uuid4().hex[:12] if len(runs) > 1 else ""
    for number in numbers:
        ordered = runs if number % 2 else runs[::-1]
        children, is_interrupted = measure_round(ordered, is_together, show)
        if is_together and not is_interrupted and any(each.ran_out() for each in children.values()):
            log.warning("not enough memory to run these side by side: running them one at a time")
            is_together = False
            children, is_interrupted = measure_round(ordered, is_together, show)
        with process.deferred_interrupts():
            found = {}
            for run, each in children.items():
                cells = {"run_id": run.run_id, "process": number, "group": group}
                found[run] = rows = make_rows(host, each.lines, each.explain_death(), **cells)
                rows_by_run[run] += rows
                if rows:
                    choices = " ".join(f"{name}={run.environ[name]}" for name in run.choices)
                    rate = report.describe_rate(rows[0])
                    log.info("process %d: %s: %s", number, choices or describe_work(rows[0]), rate)
            store(settings.results_dir, [row for rows in found.values() for row in rows])
        if is_interrupted:
            raise KeyboardInterrupt
        if mistakes := [*filter(None, (each.find_mistake() for each in children.values()))]:
            raise SettingError(mistakes[0])
        runs = [run for run in runs if has_result(found[run])]
        if not runs:
            return


def measure_round(runs, is_together, show):
    """Measure a process of each run, in slices or one after the other.

    Returns:
        ({run: its Child, which has ended}, whether Ctrl-C has ended the round).
    """
    children = {run: make_child(run, show) for run in runs}
    seconds = runs[0].settings.max_seconds
    try:
        if is_together:
            work_in_slices(list(children.values()), seconds)
        else:
            for each in children.values():
                each.start().finish(process.WINDOWS, process.CHECK)
        return children, False
    except KeyboardInterrupt:
        return children, True
    finally:
        process.close(children.values())


def work_in_slices(children, seconds):
    """Let children measure slices of their windows, one at a time, in changing order; then check, one at a time.

    Each gets equally many slices, whose sum is `seconds`. It ends early if one finds no room.
    """
    waiting = [each for each in children if each.start().wait()]  # they build and compile on all cores
    request = {"slice": max(SLICE_SECONDS, seconds / MOST_SLICES)}
    began = time.monotonic()
    count = 0
    while waiting and (count < LEAST_SLICES or time.monotonic() - began < seconds * len(waiting)):
        if any(each.ran_out() for each in children):
            return
        waiting = [each for each in waiting if each.ask(request).wait()][::-1]
        count += 1
    for each in waiting:
        each.finish(process.CHECK)


def store(folder, rows):
    """Append rows to the files of their machines, and print as CSV those that cannot be stored; then ResultsError."""
    errors = []
    for path in dict.fromkeys(results.path_of(folder, row) for row in rows):
        some = [row for row in rows if results.path_of(folder, row) == path]
        try:
            results.append(path, *some)
        except results.ResultsError as error:
            errors.append(error)
            print(results.HEADER + results.to_text(some), end="", flush=True)
    if errors:
        raise results.ResultsError(f"{errors[0]}; the rows are in the lines above: save them as a CSV file")


def has_result(rows):
    return any(row["status"] == "ok" for row in rows)


def make_child(run: Run, show):
    """Return the Child for one process of a run, or for one of each of NUM_DEVICES under torchrun."""
    environ = {process.TASK: process.MEASURE} | run.environ
    command = [python_of(run.settings.framework), str(ROOT / SCRIPTS[run.command])]
    if run.settings.has_ranks and environ[process.TASK] == process.MEASURE:
        environ.setdefault("LOGLEVEL", "ERROR")  # torchrun reads it
        count = "gpu" if run.settings.num_devices == "all" else run.settings.num_devices
        # 127.0.0.1, because a laptop's own name often has no address. Several machines set torchrun's variables PET_...
        options = [] if ranks.NODES in environ else ["--standalone", "--local-addr=127.0.0.1"]
        command[1:1] = ["-m", "torch.distributed.run", *options, f"--nproc-per-node={count}"]
    return process.Child(command, environ, show, run.limit)
