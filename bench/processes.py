"""One child process: its start, its signals and its end. Standard library only.

A child runs in a session of its own, so a terminal's Ctrl-C reaches it once, through this process. Its standard input
is a pipe that only this process holds open. If the parent exits for any reason, or closes the pipe on purpose, the
child kills itself and its workers (end_with_parent). torchrun passes standard input on to its ranks, so this holds for
each of them too.
"""

import os
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from bench import cli

GRACE_SECONDS = 10.0  # between closing a child's standard input and SIGKILL


def run_process(command, environ, limit=None, quiet=False):
    """Run a command to its end.

    Ctrl-C, SIGTERM and SIGHUP are forwarded as SIGTERM (a background job ignores SIGINT), and the child may finish what
    it writes; a second one kills it.

    Args:
        environ: its whole environment.
        limit: seconds after which it is killed; None means no limit.
        quiet: discard what it prints.

    Returns:
        Its exit status, 130 after Ctrl-C; negative: the signal that ended it, SIGALRM for the time limit.
    """
    with cli.interrupts_held():
        out = subprocess.DEVNULL if quiet else None
        child = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True
        )
    try:
        with suppress(OSError):  # Linux then kills the child first if memory runs out
            Path(f"/proc/{child.pid}/oom_score_adj").write_text("1000")
        return child.wait(limit)
    except subprocess.TimeoutExpired:
        return -signal.SIGALRM
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        return cli.INTERRUPTED
    finally:
        child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_SECONDS)
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
