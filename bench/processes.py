"""Processes that do the work: how they start, what becomes of their lines, and how they end.

They get Ctrl-C through this process alone, none outlives it, and Linux kills them first where memory runs out.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from tqdm import tqdm

from bench.machine import ranks

REPORTED_STATUSES = (0, 1, 2, 130)  # exit statuses of a run that has reported its own result
MISSING = "stay blank"  # of a line that every run would repeat
LOST_SECONDS = 5.0  # from the first rank that lost another one to the end of that one
GRACE_SECONDS = 10.0  # from the first rank's end to the kill of those that are still there


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
