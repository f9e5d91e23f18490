"""The parent process: plans the runs, starts a child process for each, and combines what they measured.

A fresh process starts with nothing allocated, compiled or tuned, and repetitions in fresh processes show how much
results differ between them (RUNS). A child stores each row as soon as it is measured, so nothing is lost if it dies;
this process then adds the row of the failure. It imports no framework.
"""

import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench import cli, frameworks, processes, run
from bench.host import environment, ranks, resources
from bench.records import report, results
from bench.records.cells import begin_row, new_run_id, utc_now
from bench.settings import (
    ALL,
    AUTO,
    MODELS,
    REPEATED,
    ROOT,
    RUN,
    SEARCH,
    SEARCH_STEP,
    SettingError,
    list_runs,
    read_settings,
)
from bench.workloads import TRAIN_IMAGES

log = logging.getLogger("bench")

REPORTED = (0, 1, cli.MISTAKE, cli.INTERRUPTED)  # exit statuses of a child that stored or printed what became of it
# 127.0.0.1, because a laptop's own name often has no address.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1")
# BATCH_SIZE=auto: short runs, without the settings that would make them long.
TRIAL = {"MAX_SECONDS": "0.5", "TARGET_CI": "5", "SCOPE": "device"}
TRIAL |= dict.fromkeys(("SUSTAIN", "EPOCHS", "NUM_IMAGES"))
DEFAULT_RUNS, LONG_RUNS = 5, 3  # processes of each combination; LONG_RUNS if the second takes longer than LONG_SECONDS
LONG_SECONDS = 60
SCOPE_SECONDS = 30  # if the first process takes longer, the others measure only the model, unless SCOPE is set
MIN_GAIN = 1.02  # of a doubled batch size; two in a row below it end the doubling


def main(script, describe_workload, measure=None):
    """Run one benchmark from the environment's settings: the main function of every benchmark script.

    Args:
        script: its name in the settings' declarations ("image").
        describe_workload: Settings -> Workload.
        measure: what a child does, as in run.run_child().

    Returns:
        The exit status: 0 measured, 1 tried and failed (the rows say why), and those of bench/cli.py.
    """

    def start():
        # NVML and nvidia-smi count cards in this order.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        is_rank, is_child = ranks.read_ranks().are_many, RUN in os.environ
        if is_child:
            processes.end_with_parent()
        if is_child or is_rank:  # under the user's torchrun or Slurm each rank measures at once
            return run.run_child(script, describe_workload, measure)
        host = environment.describe_host(read_settings(script).machine)
        return run_all(Launcher(script, describe_workload, sys.argv, host))

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

    def locate(self, settings):
        """Return the path of the results file."""
        return settings.results_dir / f"{self.host.machine}.csv"

    def launch(self, change, limit=None, captures=False):
        """Run one child process to its end, or one for each of NUM_DEVICES under torchrun.

        Args:
            change: of the environment: {variable: text, or None to unset it}. RUN chooses the run_id of the rows.
            limit: seconds after which the child is killed; None means no limit.
            captures: print nothing.

        Returns:
            (exit status, rows that the child stored, as dicts of text); status 0 measured, 1 failed, 130 interrupted,
            2 a mistake, which the child has printed; any other is that of a child that died, whose row is stored.

        Raises:
            SettingError: a mistake in the settings that no child has printed.
        """
        run_id = change.get(RUN) or new_run_id()
        environ = os.environ | {"RUNS": "1"} | change | {RUN: run_id}
        environ = {name: text for name, text in environ.items() if text is not None}
        settings = read_settings(self.script, environ)
        path = self.locate(settings)
        devices = settings.num_devices or 1
        launcher = [*TORCHRUN, f"--nproc-per-node={devices}"] if devices > 1 else []
        environ = {"LOGLEVEL": "ERROR"} | environ if launcher else environ  # no warnings of torchrun
        ended = processes.run_process([sys.executable, *launcher, *self.command], environ, limit, captures)
        status = ended.status
        if status == cli.MISTAKE and captures:
            reason = ended.err.strip().rpartition("\n")[2]
            raise SettingError(reason or "a child process ended without a message: run the benchmark by itself")
        is_stored = any(row["run_id"] == run_id and row["status"] != "ok" for row in results.read(path))
        if status not in REPORTED or (launcher and status == 1 and not is_stored):
            row = describe_death(settings, self.host, self.describe_workload, status)
            row |= {"run_id": run_id, "search": change.get(SEARCH), "search_step": change.get(SEARCH_STEP)}
            results.append(path, row)
            if not captures:
                print(f"{report.describe_task(row)}\n{report.describe_result(row)}", flush=True)
        return status, [row for row in results.read(path) if row["run_id"] == run_id]

    def launch_silently(self, change, limit=None):
        """Run one child process without any output of it; returns its rows, one at least.

        Raises:
            SettingError: it stored no row.
            KeyboardInterrupt: Ctrl-C ended it.
        """
        status, rows = self.launch(change, limit, captures=True)
        if status == cli.INTERRUPTED:
            raise KeyboardInterrupt
        if not rows:
            raise SettingError(
                f"a process ended with status {status} and stored no row: run the benchmark by itself with the same "
                "settings to see why"
            )
        return rows


def run_all(launcher: Launcher):
    """Run every combination of the environment's settings, each RUNS times.

    Returns:
        The exit status: 0 if at least one run was measured; 2 or 130, and no further run, after a mistake in the
        settings or an interruption.
    """
    script = launcher.script
    changes, settings = list_runs(script), read_settings(script)
    path = launcher.locate(settings)
    results.prepare(path)
    changes = [count_all(script, change) for change in changes]
    check_all(script, changes, launcher.describe_workload)
    changes = [choose_batch_size(launcher, change) for change in changes]
    rows, statuses = [], []
    for number, change in enumerate(changes, 1):
        if len(changes) > 1:
            wanted = ", ".join(f"{name}={text}" for name, text in change.items())
            log.info("combination %d of %d: %s", number, len(changes), wanted)
        new, ended = run_processes(launcher, change)
        rows += new
        statuses += ended
        if ended[-1] in (cli.MISTAKE, cli.INTERRUPTED):
            break
    if table := report.describe_scaling(rows):
        print(table)
    if said := report.describe_slowdown(rows, results.read(path)):
        print(said)
    if rows:
        print(f"added to {cli.display_path(path)}", flush=True)
    if statuses[-1] in (cli.MISTAKE, cli.INTERRUPTED):
        return statuses[-1]
    return 0 if 0 in statuses else 1


def run_processes(launcher: Launcher, change):
    """Measure one combination in several fresh processes, and print their common result.

    RUNS is their number. Without it there are five, or one for work that takes a given time or does not vary (SUSTAIN,
    EPOCHS, `make tflops`). If the first one takes over half a minute, the others measure only the model, without the
    input pipeline, unless SCOPE asks for it. If the second one takes over a minute, three are enough.

    Returns:
        (rows, exit statuses): if the first process measures nothing, or one is interrupted, there is no further one.
    """
    settings = read_settings(launcher.script, os.environ | change)
    is_single = launcher.script not in MODELS or settings.sustain or settings.epochs
    runs = settings.runs or (1 if is_single else DEFAULT_RUNS)
    rows, statuses = [], []
    while len(statuses) < runs:
        began = time.monotonic()
        status, new = launcher.launch(change | ({REPEATED: "1"} if statuses else {}))
        rows += new
        statuses.append(status)
        if status == cli.INTERRUPTED and not any(row["status"] == "interrupted" for row in new):
            if not rows:
                raise KeyboardInterrupt  # nobody has told the user yet
            log.info("interrupted: incomplete windows are discarded")
        if status in (cli.MISTAKE, cli.INTERRUPTED) or not any(row["status"] == "ok" for row in rows):
            break
        seconds = time.monotonic() - began
        if len(statuses) == 2 and settings.runs is None and seconds > LONG_SECONDS:
            runs = min(runs, LONG_RUNS)
        is_first = len(statuses) == 1
        if is_first and seconds > SCOPE_SECONDS and runs > 1 and settings.scope and "SCOPE" not in os.environ:
            change = change | {"SCOPE": "device"}
            log.info(
                "processes take long, so the others measure only `device`: set SCOPE=device,input,end_to_end for all"
            )
        if runs > 1 and launcher.script in MODELS:
            log.info("process %d of %d: %s", len(statuses), runs, report.list_rates(new))
    if launcher.script in MODELS and (said := report.describe_processes(rows)):
        print(said, flush=True)
    return rows, statuses


def count_all(script, change):
    """Return the change with the number of GPUs instead of NUM_DEVICES=all; raises SettingError if there is none."""
    settings = read_settings(script, os.environ | change)
    if settings.num_devices != ALL:
        return change
    count = find_device(settings).count
    if count == 0:
        raise SettingError("NUM_DEVICES='all' means all GPUs, but none can be used: set a number of CPU processes")
    return change | {"NUM_DEVICES": str(count)}


def check_all(script, changes, describe_workload):
    """Raise SettingError for a combination that cannot run, before anything is measured.

    Describing the work also downloads, once and with its progress in sight, what all runs need.
    """
    uncounted = {}
    for change in changes:
        settings = read_settings(script, os.environ | change)
        try:
            workload = describe_workload(settings.on("cpu"))
        except SettingError:
            if settings.use_gpu is False or settings.on("cpu") == settings.on("gpu"):
                raise
            workload = describe_workload(settings.on("gpu"))  # a GPU's defaults may suit; the child knows the device
        if workload.parameters is None and workload.model:
            uncounted.setdefault(settings.framework, set()).add(workload.model)
    if len(changes) > 1:  # a single run finds out by itself
        for framework, models in uncounted.items():  # only the framework knows those
            ask("frameworks.check_models(*sys.argv[1:])", framework, *sorted(models))


def find_device(settings):
    """Return the Device that the settings' framework finds."""
    use_gpu = json.dumps(settings.use_gpu)
    *_, found = ask("frameworks.print_device(*sys.argv[1:])", settings.framework, use_gpu).splitlines()
    return frameworks.Device(**json.loads(found))


def ask(expression, *arguments):
    """Return what a Python expression about bench.frameworks prints in a process of its own.

    Raises:
        SettingError: the last line that it printed on stderr.
    """
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from bench import frameworks; {expression}"
    ended = processes.run_process([sys.executable, "-c", program, *arguments], dict(os.environ), captures=True)
    if ended.status == cli.INTERRUPTED:
        raise KeyboardInterrupt
    if ended.status:
        reason = ended.err.strip().rpartition("\n")[2].removeprefix("bench.settings.SettingError: ")
        raise SettingError(reason or f"{arguments[0]} cannot be queried: its process ended with status {ended.status}")
    return ended.out.strip()


def choose_batch_size(launcher: Launcher, change):
    """Return the change with the fastest batch size that fits instead of BATCH_SIZE=auto.

    Batch sizes are doubled from 1, with a short run of each, until one fails or two doublings in a row gain less than
    2 %. A step that would take longer than MAX_SECONDS, or more memory than is free, is not tried: there the system
    would swap or hang.
    """
    settings = read_settings(launcher.script, os.environ | change)
    if settings.batch_size != AUTO:
        return change
    log.info("BATCH_SIZE=auto doubles the batch size until it fails or gains less than 2 %: this may take minutes")
    rates, size, own_memory = {}, 1, False
    with tempfile.TemporaryDirectory() as folder:  # these rows are not results
        while not (settings.epochs and size > TRAIN_IMAGES):
            trial = change | TRIAL | {"BATCH_SIZE": str(size), "RESULTS_DIR": folder, SEARCH: "auto", "MAKEFLAGS": None}
            row = launcher.launch_silently(trial)[-1]
            if row["status"] != "ok":
                log.info("BATCH_SIZE=%d: %s: %s", size, row["status"], row["note"])
                break
            if size == 1 and row["device"] == "cuda":  # integrated devices share the system's memory
                own_memory = find_device(settings).has_own_memory
            rates[size] = float(row["throughput"])
            log.info("BATCH_SIZE=%d: %.4g %s", size, rates[size], row["unit"])
            best_before = max([rate for each, rate in rates.items() if each < size / 2], default=0.0)
            gains = max(rates.values()) > MIN_GAIN * best_before
            taken = float(row["peak_memory_bytes"] or 0)
            free = None if own_memory else resources.available_bytes()
            if not gains or 2 * float(row["step_seconds_median"]) > settings.max_seconds or (free and 2 * taken > free):
                break
            size *= 2
    fastest = max(rates, key=rates.__getitem__, default=1)  # if 1 fails, measuring it says why
    return change | {"BATCH_SIZE": str(fastest)}


def describe_death(settings, host, describe_workload, status):
    """Return the row of a child process that ended without reporting a result, or of which a rank failed.

    Args:
        status: its exit status; negative: the signal that ended it; 1 is that of torchrun.
    """
    reason = f"signal {-status}" if status < 0 else f"exit status {status}"
    if status == -signal.SIGALRM:
        reason = "its time limit"
    if status == -signal.SIGKILL:
        smaller = "SIZES" if settings.batch_size is None else "BATCH_SIZE"
        reason += f", probably because memory ran out: choose a smaller {smaller}"
    without_gpu = settings.use_gpu is False or (environment.find_card() is None and host.gpu_cores is None)
    settings = settings.on("cpu" if without_gpu else "gpu")
    scopes = settings.scope or ("device",)
    scope = scopes[0] if len(scopes) == 1 else None  # any of several
    row = begin_row(settings, host, {}, describe_workload(settings), settings.phase, scope, "")
    if isinstance(settings.precision, tuple):  # make tflops: any of its precisions and sizes
        row |= {"precision": None, "matrix_size": None}
    note = "a rank failed, see above" if status == 1 else f"the process was ended by {reason}"
    status = "failed" if status == 1 else "out_of_memory" if status == -signal.SIGKILL else "crashed"
    return row | {"status": status, "note": note, "timestamp": utc_now()}
