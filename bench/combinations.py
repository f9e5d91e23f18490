"""Many runs in a row, each in a process of its own.

A fresh process starts with nothing allocated, compiled or tuned, and repetitions in fresh processes show how much
figures differ between them (RUNS). If the system kills one for lack of memory, the others still run. This process
imports no framework.
"""

import logging
import os
import signal
import subprocess
import sys

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from bench import processes
from bench.machine import environment
from bench.rows import report, results
from bench.rows.cells import begin_row, new_run_id, utc_now
from bench.settings import ALL, ROOT, SettingError, read_settings

log = logging.getLogger("bench")


def run_all(script, changes, runs, host, path, describe_workload):
    """Run every combination so many times, one bar over all of them.

    Args:
        changes: from list_runs(), changes of the environment.
        host, path: for the row of a process that was killed; the others write their own.

    Returns:
        The exit status: 0 when at least one run was measured; 2 or 130, and no further run, after a mistake in
        the settings or an interruption.
    """
    plan = [count_all(script, change) for change in changes for _ in range(runs)]
    statuses, said, stored = [], set(), len(results.read(path)) if path.exists() else 0
    check_all(script, changes, describe_workload)
    tqdm.monitor_interval = 0
    with logging_redirect_tqdm(), tqdm(plan, unit=" runs", disable=None, file=sys.stderr) as bar:
        for change in bar:
            wanted = ", ".join(f"{name}={text}" for name, text in change.items())
            bar.set_postfix_str(wanted)
            log.info("run %d of %d: %s", len(statuses) + 1, len(plan), wanted or "as asked")
            settings = read_settings(script, os.environ | change)
            rank, status = processes.run_child(change, said, settings.num_devices or 1)
            if status not in processes.REPORTED_STATUSES:
                report_death(settings, host, path, describe_workload, *explain_death(settings, status, rank))
            statuses.append(status)
            if status in (2, 130):
                return status
    if any("NUM_DEVICES" in change for change in changes) and path.exists():
        print(report.describe_scaling(results.read(path)[stored:]), flush=True)
    return 0 if 0 in statuses else 1


def check_all(script, changes, describe_workload):
    """Raise SettingError for an entry that cannot run, before anything is measured.

    Describing the work also fetches, once and with its progress in sight, what all runs need.
    """
    uncounted = {}
    for change in changes:
        settings = read_settings(script, os.environ | change).on("cpu")
        if describe_workload(settings).parameters is None and settings.model:
            uncounted.setdefault(settings.framework, set()).add(settings.model)
    for framework, models in uncounted.items():  # only the framework knows those
        ask("frameworks.check_models(*sys.argv[1:])", framework, *sorted(models))


def ask(expression, *arguments):
    """What a Python expression about bench.frameworks prints, in a process of its own; raises SettingError."""
    command = [sys.executable, "-c", f"import sys; from bench import frameworks; {expression}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SettingError(done.stderr.strip().splitlines()[-1])
    return done.stdout.strip()


def count_all(script, change):
    """The change of the environment with the number of GPUs in place of NUM_DEVICES=all; raises SettingError."""
    settings = read_settings(script, os.environ | change)
    if settings.num_devices != ALL:
        return change
    use_gpu = "" if settings.use_gpu is None else str(int(settings.use_gpu))
    count = ask("frameworks.print_device_count(*sys.argv[1:])", settings.framework, use_gpu)
    if count == "0":
        raise SettingError("NUM_DEVICES='all' counts GPUs, and there is none to use: name a number of CPU processes")
    return change | {"NUM_DEVICES": count}


def report_death(settings, host, path, describe_workload, note, status="crashed"):
    """Show and store the row of a run whose process, or one of whose ranks, ended without reporting a result."""
    row = describe_death(settings, host, describe_workload, note, status)
    results.append(path, row)
    tqdm.write(f"{report.describe_task(row)}\n{report.describe_result(row)}", file=sys.stdout)


def describe_death(settings, host, describe_workload, note, status="crashed"):
    """That row."""
    without_gpu = settings.use_gpu is False or (environment.find_card() is None and host.gpu_cores is None)
    settings = settings.on("cpu" if without_gpu else "gpu")
    scopes = settings.scope or ("device",)
    scope = scopes[0] if len(scopes) == 1 else None  # nobody knows which of several it was
    row = begin_row(settings, host, {}, describe_workload(settings), settings.phase, scope, new_run_id())
    if isinstance(settings.precision, tuple):  # make tflops: nobody knows which precision and size it was
        row |= {"precision": None, "matrix_size": None}
    return row | {"status": status, "note": note, "timestamp": utc_now()}


def explain_death(settings, status, rank=0):
    """(note, status of the row) of a process, or a rank, that ended with this exit status."""
    killed = status == -signal.SIGKILL
    reason = f"signal {-status}" if status < 0 else f"exit status {status}"
    size = settings.num_devices or 1
    who = f"rank {rank} of {size}" if size > 1 else "the process"
    cure = "SIZES" if settings.batch_size is None else "BATCH_SIZE"
    if status == -signal.SIGALRM:
        reason += ", because it took too long"
    why = f", most likely for lack of memory: choose a smaller {cure}" if killed else ""
    return f"{who} was ended by {reason}{why}", "out_of_memory" if killed else "crashed"
