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
import threading
from pathlib import Path

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from bench.machine import environment
from bench.rows import report, results
from bench.rows.cells import begin_row, new_run_id, utc_now
from bench.settings import ROOT, SettingError, read_settings

log = logging.getLogger("bench")
MISSING = "stay blank"  # of a line that every run would repeat
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
    statuses, said = [], set()
    check_all(script, changes, describe_workload)
    tqdm.monitor_interval = 0
    with logging_redirect_tqdm(), tqdm(plan, unit=" runs", disable=None, file=sys.stderr) as bar:
        for change in bar:
            wanted = ", ".join(f"{name}={text}" for name, text in change.items())
            bar.set_postfix_str(wanted)
            log.info("run %d of %d: %s", len(statuses) + 1, len(plan), wanted or "as asked")
            status = run_child(change, said)
            if status not in REPORTED_STATUSES:
                settings = read_settings(script, os.environ | change)
                row = describe_death(settings, host, describe_workload, status)
                results.append(path, row)
                tqdm.write(f"{report.describe_task(row)}\n{report.describe_result(row)}", file=sys.stdout)
            statuses.append(status)
            if status in (2, 130):
                return status
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
        program = "import sys; from bench import frameworks; frameworks.check_models(*sys.argv[1:])"
        command = [sys.executable, "-c", program, framework, *sorted(models)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise SettingError(done.stderr.strip().splitlines()[-1])


def run_child(change, said, command=None, limit=0, show=None):
    """Run a script on one combination, pass its lines on, and return its exit status (negative: a signal).

    Args:
        said: the lines of earlier runs, a set; this run's are added.
        command: None means this script.
        limit: seconds after which SIGALRM ends it; 0 means none.
        show: (pipe, stream, said): what is done with its lines, pass_on() by default.
    """
    # Ctrl-C waits until the child is known: else it would run on, and add its row.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        child = start_child(change, command or [sys.executable, *sys.argv], limit)
        readers = [
            threading.Thread(target=show or pass_on, args=(pipe, stream, said), daemon=True)
            for pipe, stream in ((child.stdout, sys.stdout), (child.stderr, sys.stderr))
        ]
        try:
            for reader in readers:
                reader.start()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            child.wait()
            child.returncode = 130
        finally:
            if child.poll() is None:
                child.kill()
        for reader in readers:
            reader.join()
        return child.returncode
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def start_child(change, command, limit=0):
    """The process of a command with a change of its environment."""

    def begin():
        signal.alarm(limit)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    child = subprocess.Popen(
        command,
        env=os.environ | change | {"RUNS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # In a session of its own, so that Ctrl-C reaches it once, through this process.
        start_new_session=True,
        preexec_fn=begin,
    )
    prefer_as_victim(child.pid)
    return child


def pass_on(pipe, stream, said):
    """Print a child's lines as they come, above the bar; what is missing on this machine only once."""
    for line in pipe:
        words = line.rstrip("\n").partition("  ")[2]  # after the time
        if MISSING not in words or words not in said:
            tqdm.write(line.rstrip("\n"), file=stream)
            stream.flush()
        said.add(words)


def prefer_as_victim(pid):
    """Ask Linux to kill this run first when memory runs out; other systems have no such request."""
    try:
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    except OSError:
        return


def describe_death(settings, host, describe_workload, status):
    """The row of a run whose process ended without reporting a result."""
    without_gpu = settings.use_gpu is False or (environment.find_card() is None and host.gpu_cores is None)
    settings = settings.on("cpu" if without_gpu else "gpu")
    scopes = settings.scope or ("device",)
    scope = scopes[0] if len(scopes) == 1 else None  # nobody knows which of several it was
    row = begin_row(settings, host, {}, describe_workload(settings), settings.phase, scope, new_run_id())
    if isinstance(settings.precision, tuple):  # make tflops: nobody knows which precision and size it was
        row |= {"precision": None, "matrix_size": None}
    killed = status == -signal.SIGKILL
    reason = f"signal {-status}" if status < 0 else f"exit status {status}"
    cure = "SIZES" if settings.batch_size is None else "BATCH_SIZE"
    if status == -signal.SIGALRM:
        reason += ", because it took too long"
    why = f", most likely for lack of memory: choose a smaller {cure}" if killed else ""
    return row | {
        "status": "out_of_memory" if killed else "crashed",
        "note": f"the process was ended by {reason}{why}",
        "timestamp": utc_now(),
    }
