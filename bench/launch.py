"""The parent process: plans the runs, starts child processes, combines, prints and stores what they measured.

A fresh process starts with nothing allocated, compiled or tuned, and repetitions in fresh processes show how much
results differ between them (RUNS). A child only writes lines (bench/run.py); nobody but this process writes into
results/. It imports no framework.
"""

import atexit
import json
import logging
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import cli, processes, run
from bench.frameworks import Device
from bench.host import environment, ranks, resources
from bench.records import cells, peaks, report, results
from bench.records.combine import combine
from bench.records.verdict import Rate, name_bottleneck
from bench.settings import ALL, AUTO, FRAMEWORKS, MODELS, ROOT, SCOPES, SettingError, list_runs, read_settings
from bench.workloads import TRAIN_IMAGES

log = logging.getLogger("bench")

DEFAULT_RUNS, LONG_RUNS = 5, 3  # processes of each combination; LONG_RUNS if the second takes longer than LONG_SECONDS
LONG_SECONDS = 60
SCOPE_SECONDS = 30  # if the first process takes longer, the others measure only the model, unless SCOPE is set
MIN_GAIN = 1.02  # of a doubled batch size; two in a row below it end the doubling


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a child process or between two; `rows` is what was complete."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows


def main(script, describe_workload, measure_work=run.measure_workload, describe=report.describe):
    """Run one benchmark from the environment's settings: the main function of every benchmark script.

    Args:
        script: its name in the settings' declarations ("image").
        describe_workload: Settings -> Workload.
        measure_work: what a child does, as in run.measure_settings().
        describe: (rows of one combination, stored rows) -> the text to print.

    Returns:
        The exit status: 0 measured, 1 tried and failed (the rows say why), and those of bench/cli.py.
    """

    def start():
        if task := run.read_task():
            processes.end_with_parent()
            status = run.run_child(script, describe_workload, measure_work, task)
            if ranks.read_ranks().are_many:
                # Gloo's threads outlive the group and may abort an ending interpreter (pytorch/pytorch, 179291).
                atexit._run_exitfuncs()
                os._exit(status)
            return status
        host = environment.describe_host(read_settings(script).machine)
        launcher = Launcher(script, describe_workload, sys.argv, host)
        if ranks.read_ranks().are_many:
            return measure_as_rank(launcher, measure_work, describe)
        return run_all(launcher, describe)

    return cli.run_script(start)


@dataclass(frozen=True)
class Launcher:
    """Starts the child processes of one benchmark.

    Args:
        script, describe_workload: as main() takes them.
        command: of a child, after the interpreter.
        host: this machine, which names the results file.
    """

    script: str
    describe_workload: Callable
    command: list[str]
    host: environment.Environment

    def path(self, settings):
        """Return the path of the results file."""
        return settings.results_dir / f"{self.host.machine}.csv"

    def run_child(self, change, limit=None, compares=True, brief=False, quiet=True, on_row=lambda row: None):
        """Run one child process to its end, or one for each of NUM_DEVICES under torchrun.

        Args:
            change: of the environment: {variable: text, or None to unset it}.
            limit: seconds after which the child is killed; None means no limit.
            compares: the model is compared with the CPU, and the parts of training are measured.
            brief: only the rate is measured.
            quiet: the child prints nothing.
            on_row: called with each row as soon as it is measured.

        Returns:
            The rows, at least one: typed cells, with status and note if the child failed or died. Nothing is stored.

        Raises:
            SettingError: a mistake in the settings.
            Interrupted: after Ctrl-C, with the rows so far.
        """
        environ = {name: text for name, text in (os.environ | change).items() if text is not None}
        settings = read_settings(self.script, environ)
        run_id, rows, texts = uuid.uuid4().hex[:12], [], []
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "lines")
            file.touch()

            def read_lines():
                new = file.read_text().split("\n")[len(texts) : -1]  # what follows the last line end is incomplete
                texts.extend(new)
                for line in map(json.loads, new):
                    if "mistake" in line:
                        raise SettingError(line["mistake"])
                    rows.append(complete_row(self.host, run_id, line))
                    on_row(rows[-1])

            environ[run.TASK] = json.dumps(asdict(run.Task(str(file), compares, brief)))
            # The first card is then the same one for CUDA and for nvidia-smi.
            environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            environ.setdefault("LOGLEVEL", "ERROR")  # of torchrun
            command = [sys.executable, *torchrun(settings.num_devices), *self.command]
            status = processes.run_process(command, environ, limit, quiet, read_lines).status
            read_lines()
        if status == cli.INTERRUPTED:
            raise Interrupted(rows)
        if status not in (0, 1) or not rows or (status == 1 and rows[-1]["status"] == "ok"):
            rows.append(cells.of_host(self.host, run_id) | describe_death(settings, self.describe_workload, status))
            on_row(rows[-1])
        return rows

    def measure(self, change, runs=None, limit=None, quiet=True):
        """Measure one combination in several fresh processes, and combine them.

        RUNS is their number. Without it there are five, or one for work that takes a given time or does not vary
        (SUSTAIN, EPOCHS, `make tflops`). If the first one takes over half a minute, the others measure only the model,
        without the input pipeline, unless SCOPE asks for it. If the second one takes over a minute, three are enough.

        Returns:
            The combined rows, one for each quantity. After a failure there is no further process.

        Raises:
            SettingError, and Interrupted with the combined rows of the complete processes, or else of the first one.
        """
        settings = read_settings(self.script, os.environ | {k: v for k, v in change.items() if v is not None})
        is_single = self.script not in MODELS or settings.sustain or settings.epochs
        asked = runs or settings.runs
        runs, complete = asked or (1 if is_single else DEFAULT_RUNS), []

        def show(row):
            if not quiet:
                log.info("process %d of %d: %s", len(complete) + 1, runs, report.describe_rate(row))

        while len(complete) < runs:
            began = time.monotonic()
            try:
                complete.append(self.run_child(change, limit, not complete, quiet=quiet, on_row=show))
            except Interrupted as error:
                raise Interrupted(describe_limits(combine(complete or [error.rows]))) from None
            if complete[-1][-1]["status"] != "ok":
                break
            seconds = time.monotonic() - began
            if len(complete) == 2 and asked is None and seconds > LONG_SECONDS:
                runs = min(runs, LONG_RUNS)
            has_scopes = len(settings.scope or ()) > 1 and "SCOPE" not in os.environ
            if len(complete) == 1 < runs and seconds > SCOPE_SECONDS and has_scopes:
                change = change | {"SCOPE": "device"}
                log.info("processes take long: the others measure only `device`, unless SCOPE is set")
        return describe_limits(combine(complete))


def complete_row(host, run_id, line):
    """Return the row of a child's line: with the cells of its host, and a flag if it is implausible."""
    row = cells.of_host(host, run_id) | line
    return peaks.flag_implausible(row | {"device_name": row["device_name"] or host.cpu_name})


def describe_limits(rows):
    """Return the rows, the one of the end-to-end rate with the part that limits it."""
    by_scope = {
        row["scope"]: row for row in rows if row["status"] == "ok" and row["phase"] in ("inference", "training")
    }
    if set(SCOPES) <= set(by_scope):
        row = by_scope["end_to_end"]
        rates = (Rate.of_row(by_scope[scope]) for scope in SCOPES)
        row["bottleneck"], why = name_bottleneck(*rates, shares_cores=row["device"] == "cpu")
        row["note"] = "; ".join(filter(None, [why, row["note"]]))
        if row["bottleneck"] == "device":  # the queue was full at the end too: being full at the start added nothing
            row["flags"] = " ".join(flag for flag in row["flags"].split() if flag != "short")
    return rows


def run_all(launcher: Launcher, describe):
    """Measure every combination of the environment's settings; print and store each as soon as it is measured.

    Returns:
        The exit status: 0 if at least one row has a result; 130 after Ctrl-C, which ends everything.
    """
    script = launcher.script
    changes, settings = list_runs(script), read_settings(script)
    path = launcher.path(settings)
    results.prepare(path)
    changes = [count_all(script, change) for change in changes]
    changes = [check(script, change, launcher.describe_workload) for change in changes]
    changes = [choose_batch_size(launcher, change) for change in changes]
    found, status = [], 1
    for number, change in enumerate(changes, 1):
        if len(changes) > 1:
            wanted = ", ".join(f"{name}={text}" for name, text in change.items())
            log.info("combination %d of %d: %s", number, len(changes), wanted)
        try:
            rows = launcher.measure(change, quiet=False)
        except Interrupted as error:
            rows, status = error.rows, cli.INTERRUPTED
            log.info("interrupted: what was complete is stored")
        if rows:
            store(path, rows, describe)
        found += rows
        if status == cli.INTERRUPTED:
            break
    if table := report.describe_scaling(found):
        print(table)
    if status != cli.INTERRUPTED and any(row["status"] == "ok" for row in found):
        status = 0
    if found:
        print(f"added to {cli.display_path(path)}", flush=True)
    return status


def store(path, rows, describe):
    """Print the rows of one combination and add them to the results file."""
    stored = results.read(path)
    try:
        results.append(path, *rows)
    finally:  # print the rows even if they cannot be stored
        print(describe(rows, stored), flush=True)


def measure_as_rank(launcher: Launcher, measure_work, describe):
    """Measure one combination as a rank of the user's own torchrun or Slurm, in this process; rank 0 stores it."""
    me, settings = ranks.read_ranks(), read_settings(launcher.script)
    is_single = len(list_runs(launcher.script)) == 1 and settings.runs in (None, 1) and settings.batch_size != AUTO
    if not is_single or settings.epochs:
        raise SettingError(
            f"WORLD_SIZE='{me.world_size}' (torchrun) measures one combination once: set a single value of MODEL and "
            "of every other setting, RUNS=1 and no EPOCHS, or set NUM_DEVICES instead of using torchrun"
        )
    if not FRAMEWORKS[settings.framework].runs_on_many:
        raise SettingError(f"FRAMEWORK={settings.framework!r} runs on one device here: start it without torchrun")
    os.environ["NUM_DEVICES"] = str(me.world_size)
    lines, run_id = [], uuid.uuid4().hex[:12]
    status = run.measure_settings(launcher.script, launcher.describe_workload, measure_work, run.Task(), lines.append)
    if me.rank == 0 and lines:
        path, rows = launcher.path(settings), [complete_row(launcher.host, run_id, line) for line in lines]
        store(path, describe_limits(combine([rows])), describe)
        print(f"added to {cli.display_path(path)}", flush=True)
    return status


def count_all(script, change):
    """Return the change with the number of GPUs instead of NUM_DEVICES=all; raises SettingError if there is none."""
    settings = read_settings(script, os.environ | change)
    if settings.num_devices != ALL:
        return change
    count = 0 if settings.use_gpu is False else find_device(settings).count
    if count == 0:
        raise SettingError("NUM_DEVICES='all' means all GPUs, but none can be used: set a number of CPU processes")
    return change | {"NUM_DEVICES": str(count)}


def check(script, change, describe_workload):
    """Raise SettingError for a combination that cannot run, before anything is measured.

    Returns:
        The change, with the data that were downloaded, or could not be: no child tries that again.
    """
    settings = guess_device(read_settings(script, os.environ | change))
    workload = describe_workload(settings)
    return change | ({"DATA": workload.columns["data"]} if script == "mlp" else {})


def guess_device(settings):
    """Return the settings with the defaults of a GPU if this machine seems to have one; only a child knows."""
    has_gpu = environment.find_card() or sys.platform == "darwin"
    return settings.on("gpu" if has_gpu and settings.use_gpu is not False else "cpu")


def torchrun(devices):
    """Return the interpreter's arguments that start a script once for each device."""
    # 127.0.0.1, because a laptop's own name often has no address.
    options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={devices}"]
    return ["-m", "torch.distributed.run", *options] if devices not in (None, 1) else []


FIND_DEVICE = """
import dataclasses, json
from bench import frameworks, settings
found = settings.read_settings("doctor")
print(json.dumps(dataclasses.asdict(frameworks.load(found.framework).find_device(found))))
"""


def find_device(settings):
    """Return the Device that the settings' framework finds, in a process of its own."""
    environ = os.environ | {"FRAMEWORK": settings.framework, "PYTHONPATH": str(ROOT)}
    environ.pop("MAKEFLAGS", None)
    ended = processes.run_process([sys.executable, "-c", FIND_DEVICE], environ, captures=True)
    if ended.status == cli.INTERRUPTED:
        raise KeyboardInterrupt
    if ended.status:
        reason = ended.err.strip().rpartition("\n")[2].removeprefix("bench.settings.SettingError: ")
        raise SettingError(reason or f"FRAMEWORK={settings.framework!r} ended with status {ended.status} at once")
    return Device(**json.loads(ended.out.strip().rpartition("\n")[2]))


def choose_batch_size(launcher: Launcher, change):
    """Return the change with the fastest batch size that fits instead of BATCH_SIZE=auto.

    Batch sizes are doubled from 1, with a short run of each, until one fails or two doublings in a row gain less than
    2 %. A step that would take longer than MAX_SECONDS, or more of the system's memory than is free, is not tried.
    """
    settings = read_settings(launcher.script, os.environ | change)
    if settings.batch_size != AUTO:
        return change
    log.info("BATCH_SIZE=auto doubles the batch size until it fails or gains less than 2 %: this may take minutes")
    rates, size = {}, 1
    brief = {"MAX_SECONDS": "0.5", "TARGET_CI": "5", "SCOPE": "device", "MAKEFLAGS": None}
    brief |= dict.fromkeys(("SUSTAIN", "EPOCHS", "NUM_IMAGES"))
    while not (settings.epochs and size > TRAIN_IMAGES):
        row = launcher.run_child(change | brief | {"BATCH_SIZE": str(size)}, brief=True)[-1]
        if row["status"] != "ok":
            log.info("BATCH_SIZE=%d: %s: %s", size, row["status"], row["note"])
            break
        rates[size] = row["throughput"]
        log.info("BATCH_SIZE=%d: %s", size, report.describe_rate(row))
        best_before = max([rate for each, rate in rates.items() if each < size / 2], default=0.0)
        gains = max(rates.values()) > MIN_GAIN * best_before
        free = None if row["device"] == "cuda" else resources.available_bytes()
        taken = row.get("peak_memory_bytes") or 0
        if not gains or 2 * row["step_seconds_median"] > settings.max_seconds or (free and 2 * taken > free):
            break
        size *= 2
    fastest = max(rates, key=rates.__getitem__, default=1)  # if 1 fails, measuring it says why
    return change | {"BATCH_SIZE": str(fastest)}


def describe_death(settings, describe_workload, status):
    """Return the cells of a child process that ended without a line that says why.

    Args:
        status: its exit status; negative: the signal that ended it.
    """
    note, is_killed = f"the process was ended by exit status {status}", status == -signal.SIGKILL
    if is_killed:
        note = (
            "the process was ended by signal 9, probably because memory ran out: choose a smaller BATCH_SIZE or MODEL"
        )
    elif status == -signal.SIGALRM:
        note = "the process was ended by its time limit"
    elif settings.num_devices not in (None, 1):
        note = "a rank failed, see above"
    elif status < 0:
        note = f"the process was ended by signal {-status}"
    settings = guess_device(settings)
    row = cells.of_work(settings, describe_workload(settings), settings.phase, "device")
    if isinstance(settings.precision, tuple):  # make tflops: any of its precisions and sizes
        row |= {"precision": None, "matrix_size": None}
    return row | {"status": "out_of_memory" if is_killed else "crashed", "note": note}
