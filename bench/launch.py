"""The parent process: plans the runs, starts child processes, combines, prints and stores what they measured.

A fresh process starts with nothing allocated, compiled or tuned, and repetitions in fresh processes show how much
results differ between them (RUNS). A child only writes lines (bench/run.py); nobody but this process writes into
results/. It imports no framework.
"""

import atexit
import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import cli, run
from bench.host import environment, ranks, resources
from bench.records import cells, report, results
from bench.records.columns import COLUMNS
from bench.records.combine import combine
from bench.settings import ALL, AUTO, MODELS, SettingError, list_runs, read_settings

log = logging.getLogger("bench")

DEFAULT_RUNS = 5  # processes of each combination
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
        are_many = ranks.read_ranks().are_many
        if run.TASK in os.environ:
            cli.end_with_parent()
            status = run.run_child(script, describe_workload, measure_work)
            if are_many:
                # Gloo's threads outlive the group and may abort an ending interpreter (pytorch/pytorch, 179291).
                atexit._run_exitfuncs()
                os._exit(status)
            return status
        host = environment.describe_host(read_settings(script).machine)
        launcher = Launcher(script, describe_workload, sys.argv, host)
        return measure_as_rank(launcher, measure_work, describe) if are_many else run_all(launcher, describe)

    return cli.run_script(start)


@dataclass(frozen=True)
class Launcher:
    """Starts the child processes of one benchmark.

    Args:
        script, describe_workload: as main() takes them.
        command: of a child, after the interpreter.
        host: this machine.
    """

    script: str
    describe_workload: Callable
    command: list[str]
    host: environment.Environment

    def run_child(self, change, limit=None, compares=True, brief=False, quiet=True):
        """Run one child process to its end, or one for each of NUM_DEVICES under torchrun.

        Args:
            change: of the environment: {variable: text, or None to unset it}.
            limit: seconds after which the child is killed; None means no limit.
            compares: the model is compared with the CPU, and the parts of training are measured.
            brief: only the rate is measured.
            quiet: the child prints nothing.

        Returns:
            The rows, at least one: typed cells, with status and note if the child failed or died. Nothing is stored.

        Raises:
            SettingError: a mistake in the settings, or the child died before it began to measure.
            Interrupted: after Ctrl-C, with the rows so far.
        """
        environ = {name: text for name, text in (os.environ | change).items() if text is not None}
        settings = read_settings(self.script, environ)
        run_id, rows = uuid.uuid4().hex[:12], []
        command = [sys.executable, *self.command]
        if settings.num_devices not in (None, 1):
            environ.setdefault("LOGLEVEL", "ERROR")  # of torchrun
            # 127.0.0.1, because a laptop's own name often has no address.
            options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={settings.num_devices}"]
            command = [sys.executable, "-m", "torch.distributed.run", *options, *self.command]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "lines")
            file.touch()
            environ[run.TASK] = json.dumps(asdict(run.Task(str(file), compares, brief)))
            status = cli.run_process(command, environ, limit, quiet)
            texts = file.read_text().split("\n")[:-1]  # what follows the last line end is incomplete
        for line in map(json.loads, texts):
            if "mistake" in line:
                raise SettingError(line["mistake"])
            if rows and rows[-1]["status"] == run.BEGUN:
                rows.pop()
            rows.append(cells.complete_row(self.host, run_id, line))
        begun = rows.pop() if rows and rows[-1]["status"] == run.BEGUN else None
        if status == cli.INTERRUPTED:
            raise Interrupted(rows)
        if status in (0, 1) and rows and (status == 0 or rows[-1]["status"] != "ok"):
            return rows
        death, why = "crashed", f"it was ended by signal {-status}"
        if status == -signal.SIGKILL:
            death = "out_of_memory"
            why += ", probably because memory ran out: choose a smaller BATCH_SIZE or MODEL"
        elif status == -signal.SIGALRM:
            why = "it was ended by its time limit"
        elif settings.num_devices not in (None, 1):
            why = "a rank failed, see above"
        elif status >= 0:
            why = f"it ended with exit status {status}"
        if not begun and not rows:
            raise SettingError(f"before it measured anything, {why}: `make doctor` may say why")
        unknown = dict.fromkeys(name for name, column in COLUMNS.items() if column.role == "result")
        return [*rows, (begun or rows[-1]) | unknown | {"status": death, "note": why, "flags": ""}]

    def measure(self, change, runs=None, limit=None, quiet=True):
        """Measure one combination in several fresh processes, and combine them.

        RUNS is their number. Without it there are five, or one for work that takes a given time or does not vary
        (SUSTAIN, EPOCHS, `make tflops`). Only the first one measures the input pipeline, unless SCOPE asks for it.

        Returns:
            The combined rows, one for each quantity. After a process without any result there is no further one.

        Raises:
            SettingError, and Interrupted with the combined rows of the complete processes, or else of the first one.
        """
        settings = read_settings(self.script, os.environ | {k: v for k, v in change.items() if v is not None})
        is_single = self.script not in MODELS or settings.sustain or settings.epochs
        runs, complete = runs or settings.runs or (1 if is_single else DEFAULT_RUNS), []
        while len(complete) < runs:
            if runs > 1 and not quiet:
                log.info("process %d of %d", len(complete) + 1, runs)
            try:
                complete.append(self.run_child(change, limit, not complete, quiet=quiet))
            except KeyboardInterrupt as error:
                rows = complete or [getattr(error, "rows", [])]
                raise Interrupted(combine(rows)) from None
            if not any(row["status"] == "ok" for row in complete[-1]):
                break
            if settings.scope and not settings.sustain and "SCOPE" not in os.environ:
                change = {"SCOPE": "device"} | change
        return combine(complete)


def run_all(launcher: Launcher, describe):
    """Measure every combination of the environment's settings; print and store each as soon as it is measured.

    Returns:
        The exit status: 0 if at least one row has a result; 130 after Ctrl-C, which ends everything.
    """
    folder = read_settings(launcher.script).results_dir
    results.prepare(folder)
    changes = [plan_run(launcher, change) for change in list_runs(launcher.script)]
    changes = [choose_batch_size(launcher, change) for change in changes]
    found, is_interrupted = [], False
    for number, change in enumerate(changes, 1):
        if len(changes) > 1:
            wanted = ", ".join(f"{name}={text}" for name, text in change.items())
            log.info("combination %d of %d: %s", number, len(changes), wanted)
        try:
            rows = launcher.measure(change, quiet=False)
        except SettingError as error:
            if len(changes) == 1:
                raise
            log.error("%s", error)  # such as an unknown MODEL: the other combinations still run
            continue
        except Interrupted as error:
            rows, is_interrupted = error.rows, True
            log.info("interrupted: what was complete is stored")
        if rows:
            store(folder, rows, describe)
        found += rows
        if is_interrupted:
            break
    if table := report.describe_scaling(found):
        print(table)
    for path in dict.fromkeys(results.path_of(folder, row) for row in found):
        print(f"added to {cli.display_path(path)}", flush=True)
    if is_interrupted:
        return cli.INTERRUPTED
    return 0 if any(row["status"] == "ok" for row in found) else 1


def store(folder, rows, describe):
    """Print the rows of one combination and add them to the file of their machine; return its path."""
    path, stored = results.path_of(folder, rows[0]), []
    try:
        stored = results.read(path)
        results.append(path, *rows)
    finally:  # print the rows even if they cannot be stored
        print(describe(rows, stored), flush=True)
    return path


def measure_as_rank(launcher: Launcher, measure_work, describe):
    """Measure one combination as a rank of the user's own torchrun or Slurm, in this process; rank 0 stores it."""
    me, lines, run_id = ranks.read_ranks(), [], uuid.uuid4().hex[:12]
    os.environ["NUM_DEVICES"] = str(me.world_size)  # so that settings for one device are refused
    settings = read_settings(launcher.script)
    if len(list_runs(launcher.script)) > 1 or settings.runs not in (None, 1) or settings.batch_size == AUTO:
        raise SettingError(
            f"WORLD_SIZE='{me.world_size}' (torchrun) measures one combination once: set a single value of MODEL and "
            "of every other setting, and RUNS=1, or set NUM_DEVICES instead of using torchrun"
        )
    status = run.measure_settings(launcher.script, launcher.describe_workload, measure_work, run.Task(), lines.append)
    rows = [cells.complete_row(launcher.host, run_id, line) for line in lines if line["status"] != run.BEGUN]
    if me.rank == 0 and rows:
        path = store(settings.results_dir, combine([rows]), describe)
        print(f"added to {cli.display_path(path)}", flush=True)
    return status


def plan_run(launcher, change):
    """Return the change with the number of GPUs instead of NUM_DEVICES=all, and with the DATA that can be had.

    Raises:
        SettingError: the combination cannot run, which the user learns before anything is measured.
    """
    settings = read_settings(launcher.script, os.environ | change)
    if settings.num_devices not in (None, 1):
        count = find_device(settings).count if settings.use_gpu is not False else 0
        if settings.num_devices == ALL:
            if count == 0:
                raise SettingError("NUM_DEVICES='all' means all GPUs, but none can be used: set a number of processes")
            change = change | {"NUM_DEVICES": str(count)}
        elif 0 < count < settings.num_devices:
            raise SettingError(f"NUM_DEVICES='{settings.num_devices}': the number of GPUs here is {count}: set that")
    # Only a child knows the device; this is a guess.
    has_gpu = settings.use_gpu is not False and (environment.find_card() or sys.platform == "darwin")
    workload = launcher.describe_workload(settings.on("gpu" if has_gpu else "cpu"))
    return change | ({"DATA": workload.columns["data"]} if launcher.script == "mlp" else {})


def find_device(settings):
    """Return the Device that the settings' framework finds, in a process of its own."""
    try:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawn, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
            return pool.submit(run.find_device, settings).result()
    except BrokenProcessPool:
        raise SettingError(f"FRAMEWORK={settings.framework!r} crashes: `make doctor` says why") from None


def choose_batch_size(launcher: Launcher, change):
    """Return the change with the fastest batch size that fits instead of BATCH_SIZE=auto.

    Batch sizes are doubled from 1, with a short run of each, until one fails or two doublings in a row gain less than
    2 %. A step that would take longer than MAX_SECONDS, or more of the system's memory than is free, is not tried.
    """
    settings = read_settings(launcher.script, os.environ | change)
    if settings.batch_size != AUTO:
        return change
    log.info("BATCH_SIZE=auto doubles the batch size until it fails or gains less than 2 %: this may take minutes")
    brief = {"MAX_SECONDS": "0.5", "SCOPE": "device", "MAKEFLAGS": None, "SUSTAIN": None, "NUM_IMAGES": None}
    rates, size, shares_memory = {}, 1, resources.shares_memory(find_device(settings))
    while True:
        row = launcher.run_child(change | brief | {"BATCH_SIZE": str(size)}, brief=True)[-1]
        log.info("BATCH_SIZE=%d: %s", size, report.describe_rate(row))
        if row["status"] != "ok":
            break
        rates[size] = row["throughput"]
        gains = max(rates.values()) > MIN_GAIN * rates.get(size // 4, 0)
        free = resources.available_bytes() if shares_memory else None
        needs_too_much = free and 2 * (row.get("peak_memory_bytes") or 0) > free
        if not gains or 2 * row["step_seconds_median"] > settings.max_seconds or needs_too_much:
            break
        size *= 2
    fastest = max(rates, key=rates.__getitem__, default=1)  # if 1 fails, measuring it says why
    return change | {"BATCH_SIZE": str(fastest)}
