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
from pathlib import Path

from tqdm import tqdm

from bench.rows import report, results
from bench.rows.cells import begin_row, new_run_id, utc_now
from bench.settings import read_settings

log = logging.getLogger("bench")
REPORTED_STATUSES = (0, 1, 2, 130)  # exit statuses of a run that has reported its own result


def run_all(script, changes, runs, host, path, describe_workload):
    """Run every combination so many times, one bar over all of them.

    Args:
        changes: from list_runs(), changes of the environment.
        host, path: for the row of a process that was killed; the others write their own.

    Returns:
        The exit status: 0 when at least one run was measured; 2 or 130, and no further run, after a mistake in
        the settings or an interruption.
    """
    plan = [change for change in changes for _ in range(runs)]
    statuses = []
    # Fetch here, once and with its progress in sight, what all of them need.
    describe_workload(read_settings(script, os.environ | plan[0]).on("cpu"))
    tqdm.monitor_interval = 0
    for number in (signal.SIGTERM, signal.SIGHUP):  # end the current run as Ctrl-C does: it would go on unseen
        signal.signal(number, signal.default_int_handler)
    with tqdm(plan, unit=" runs", disable=None, file=sys.stderr) as bar:
        for change in bar:
            wanted = ", ".join(f"{name}={text}" for name, text in change.items())
            bar.set_postfix_str(wanted)
            log.info("run %d of %d: %s", len(statuses) + 1, len(plan), wanted or "as asked")
            status = run_child(change)
            if status not in REPORTED_STATUSES:
                settings = read_settings(script, os.environ | change)
                row = describe_death(settings, host, describe_workload, status)
                results.append(path, row)
                tqdm.write(f"{report.describe_task(row)}\n{report.describe_result(row)}", file=sys.stdout)
            statuses.append(status)
            if status in (2, 130):
                return status
    return 0 if 0 in statuses else 1


def run_child(change):
    """Run this script on one combination, pass its output on, and return its exit status (negative: a signal)."""
    # In a session of its own, so that Ctrl-C reaches it once, through this process.
    child = subprocess.Popen(
        [sys.executable, *sys.argv],
        env=os.environ | change | {"RUNS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    prefer_as_victim(child.pid)
    try:
        out, err = child.communicate()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGINT)
        out, err = child.communicate()
        child.returncode = 130
    finally:
        if child.poll() is None:
            child.kill()
    said = err.strip().splitlines()
    if said:
        tqdm.write("\n".join(said[-1:] if child.returncode == 130 else said), file=sys.stderr)
    if out:
        tqdm.write(out.rstrip(), file=sys.stdout)
        sys.stdout.flush()
    return child.returncode


def prefer_as_victim(pid):
    """Ask Linux to kill this run first when memory runs out; other systems have no such request."""
    try:
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    except OSError:
        return


def describe_death(settings, host, describe_workload, status):
    """The row of a run whose process ended without reporting a result."""
    without_gpu = settings.use_gpu is False or (host.driver is None and host.gpu_cores is None)
    settings = settings.on("cpu" if without_gpu else "gpu")
    scopes = settings.scope or ("device",)
    scope = scopes[0] if len(scopes) == 1 else None  # nobody knows which of several it was
    row = begin_row(settings, host, {}, describe_workload(settings), settings.phase, scope, new_run_id())
    if isinstance(settings.precision, tuple):  # make tflops: nobody knows which precision and size it was
        row |= {"precision": None, "matrix_size": None}
    killed = status == -signal.SIGKILL
    reason = f"signal {-status}" if status < 0 else f"exit status {status}"
    smaller = "SIZES" if settings.batch_size is None else "BATCH_SIZE"
    why = f", most likely for lack of memory: choose a smaller {smaller}" if killed else ""
    return row | {
        "status": "out_of_memory" if killed else "crashed",
        "note": f"the process was ended by {reason}{why}",
        "timestamp": utc_now(),
    }
