"""Many runs in a row, each in a process of its own.

A fresh process starts with nothing allocated, compiled or tuned, and repetitions in fresh processes show how much
figures differ between them (RUNS). If the system kills one for lack of memory, the others still run. This process
imports no framework.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from bench.machine import environment, ranks
from bench.rows import report, results
from bench.rows.cells import begin_row, new_run_id, utc_now
from bench.settings import ALL, ROOT, SettingError, read_settings

log = logging.getLogger("bench")
MISSING = "stay blank"  # of a line that every run would repeat
REPORTED_STATUSES = (0, 1, 2, 130)  # exit statuses of a run that has reported its own result
LOST_SECONDS = 5.0  # from the first rank that lost another one to the end of that one
GRACE_SECONDS = 10.0  # from the first rank's end to the kill of those that are still there


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
            rank, status = run_child(change, said, settings.num_devices or 1)
            if status not in REPORTED_STATUSES:
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


def run_child(change, said, devices=1, command=None, limit=0, show=None):
    """Run a script on one combination, pass its lines on.

    Args:
        said: the lines of earlier runs, a set; this run's are added.
        devices: how many processes do the work together.
        command: None means this script.
        limit: seconds after which SIGALRM ends it; 0 means none.
        show: (pipe, stream, said): what is done with its lines, pass_on() by default.

    Returns:
        (rank, exit status) of the process that ended the run (negative: a signal).
    """
    # Ctrl-C waits until the child is known: else it would run on, and add its row.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        command = command or [sys.executable, *sys.argv]
        children = [start_child(change | variables, command, limit) for variables in list_ranks(devices)]
        readers = [reader for child in children for reader in readers_of(child, show or pass_on, said)]
        try:
            for reader in readers:
                reader.start()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            ended = wait_for(children)
        except KeyboardInterrupt:
            for child in children:
                child.send_signal(signal.SIGINT)
            wait_for(children)
            ended = 0, 130
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
        for reader in readers:
            reader.join()
        return ended
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def readers_of(child, show, said):
    """The threads, not yet started, that take what a child prints."""
    for pipe, stream in ((child.stdout, sys.stdout), (child.stderr, sys.stderr)):
        yield threading.Thread(target=show, args=(pipe, stream, said), daemon=True)


def list_ranks(devices):
    """The variables that tell each of so many processes its rank; of a single one nothing."""
    if devices == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    size = {"WORLD_SIZE": str(devices), "LOCAL_WORLD_SIZE": str(devices), "GROUP_WORLD_SIZE": "1"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), ranks.STARTED_HERE: "1"}
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank)} | size | meeting for rank in range(devices)]


def wait_for(children):
    """Wait until all processes have ended; where one fails, the others are ended too.

    Returns:
        (rank, exit status) of the one that failed first, of rank 0 where none did. One that was ended by a signal is
        the reason for those that lost it.
    """
    if len(children) == 1:
        children[0].wait()
        return 0, children[0].returncode
    while None in (statuses := [child.poll() for child in children]) and not any(statuses):
        time.sleep(0.05)
    deadline = time.monotonic() + LOST_SECONDS
    while set(statuses) <= {None, 0, ranks.LOST} and any(statuses) and time.monotonic() < deadline:
        time.sleep(0.05)  # the one that was lost ends a moment later
        statuses = [child.poll() for child in children]
    ended = [(rank, status) for rank, status in enumerate(statuses) if status]
    end_all(children)
    return min(ended, key=lambda one: (one[1] == ranks.LOST, one[1] >= 0), default=(0, 0))


def end_all(children):
    """End the processes that are left, with their workers, in GRACE_SECONDS."""
    left = [child for child in children if child.poll() is None]
    for child in left:
        child.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    while None in [child.poll() for child in left] and time.monotonic() < deadline:
        time.sleep(0.05)
    for child in children:
        try:
            os.killpg(child.pid, signal.SIGKILL)  # each is in a group of its own, which its workers share
        except ProcessLookupError:
            continue


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
