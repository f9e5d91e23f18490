"""One child process: its start, its signals and its end. Standard library only.

A child runs in a session of its own, so a terminal's Ctrl-C reaches it once, through this process. Its standard input
is a pipe that only this process holds open. If the parent exits for any reason, or closes the pipe on purpose, the
child kills itself and its workers (end_with_parent). torchrun passes standard input on to its ranks, so this holds for
each of them too.
"""

import os
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bench import cli

GRACE_SECONDS = 10.0  # between closing a child's standard input and SIGKILL
POLL_SECONDS = 0.2


class Ended(NamedTuple):
    """How a child process ended, and what it printed if that was captured."""

    status: int  # exit status; negative: the signal that ended it, SIGALRM for the time limit
    out: str = ""
    err: str = ""


def run_process(command, environ, limit=None, captures=False, on_poll=lambda: None):
    """Run a command to its end.

    Ctrl-C, SIGTERM and SIGHUP are forwarded as SIGTERM (a background job ignores SIGINT), and the child may finish what
    it writes; a second one kills it.

    Args:
        environ: its whole environment.
        limit: seconds after which it is killed; None means no limit.
        captures: keep its output; otherwise it goes where this process's goes.
        on_poll: called several times a second while it runs.

    Returns:
        An Ended, with status 130 after Ctrl-C.

    Raises:
        OSError: the command cannot be started.
    """
    # Files, because a grandchild that holds a pipe open would block the reader.
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        child, began = None, time.monotonic()
        stdout, stderr = (out, err) if captures else (None, None)
        try:
            with cli.interrupts_held():
                child = subprocess.Popen(
                    command, env=environ, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, start_new_session=True
                )
                with suppress(OSError):  # Linux then kills this process first if memory runs out
                    Path(f"/proc/{child.pid}/oom_score_adj").write_text("1000")
            while (status := wait(child, POLL_SECONDS)) is None:
                on_poll()
                if limit and time.monotonic() - began > limit:
                    status = -signal.SIGALRM
                    break
        except KeyboardInterrupt:
            if child is None:
                raise
            child.terminate()
            child.wait()
            status = cli.INTERRUPTED
        finally:
            if child is not None:
                end(child)
        out.seek(0)
        err.seek(0)
        return Ended(status, out.read(), err.read())


def wait(child, seconds):
    """Wait for a child; return its exit status, or None if it still runs."""
    with suppress(subprocess.TimeoutExpired):
        return child.wait(seconds)
    return None


def end(child):
    """Close a child's standard input and wait until it has ended; then kill what is left of its process group."""
    child.stdin.close()
    wait(child, GRACE_SECONDS)
    with suppress(OSError):  # nothing is left of its group; macOS reports EPERM for a group of zombies
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def end_with_parent():
    """Kill this process and its workers as soon as the parent closes standard input; called once by a child."""

    def wait_for_end():
        while os.read(0, 1):
            pass
        os.killpg(0, signal.SIGKILL)  # this process leads its group

    threading.Thread(target=wait_for_end, daemon=True).start()
