"""The start and end of processes: the entry point of every script, and child processes with their signals.

An error becomes one line on stderr and an exit status: 2 is a user's mistake, 130 an interruption, 3 an unexpected
error, which also prints its traceback.

A child runs in a session of its own, so a terminal's Ctrl-C reaches it once, through its parent. Its standard input is
a socket whose other end only the parent has. If the parent exits for any reason, or closes it on purpose, the child
kills itself and its workers (obey_parent). torchrun passes standard input on to its ranks, so this holds for each of
them too. Over the same socket, several children work in turn: a byte from the child ends its turn, a byte from the
parent starts its next one.
"""

import functools
import logging
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.settings import SettingError

MISTAKE, INTERRUPTED, UNEXPECTED = 2, 130, 3
FIRST_LIMIT = 2400  # seconds of a command's first process, which may download data or compile a framework's kernels
POLL_SECONDS = 0.1  # between checks whether a child has exited
GRACE_SECONDS = 10.0  # between closing a child's standard input and SIGKILL


def run_script(function):
    """Run a script's main function, which has no arguments; returns its exit status or that of its error."""
    logging.basicConfig(format="%(asctime)s  %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("bench").setLevel(logging.INFO)
    handle(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP)  # end workers and files as Ctrl-C does
    try:
        status = function()
        sys.stdout.flush()
        return status
    except (SettingError, ModuleNotFoundError) as error:
        status = MISTAKE
        line = explain(error)
    except KeyboardInterrupt:
        status = INTERRUPTED
        line = "interrupted"
    except OSError as error:  # a full disk, a folder that cannot be read, a reader that has gone, as `head` does
        status = MISTAKE
        line = f"{type(error).__name__}: {error}"
        # Python flushes stdout at exit, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception:
        traceback.print_exc()
        status = UNEXPECTED
        line = "unexpected error: please report it, with the lines above and `make doctor`"
    print(line, file=sys.stderr)
    return status


def explain(error):
    """Return the line for a SettingError or a ModuleNotFoundError."""
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name} is missing in {sys.executable}: install it there, or start with make"
    return str(error)


def handle(handler, *numbers):
    """Set the handler of signals that are not ignored (nohup ignores one); returns the former ones by number."""
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heard}


@contextmanager
def interrupts_held():
    """Delay Ctrl-C, SIGTERM and SIGHUP until the end of the block, for a block that starts processes.

    Python swallows an exception in the hooks of a fork, and a half-made object cannot close itself.
    """
    caught = []
    former = handle(lambda number, frame: caught.append(number), signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if caught:
        raise KeyboardInterrupt


@functools.cache
def keep_awake():
    """Keep a Mac from falling asleep as long as this process lives; does nothing elsewhere."""
    command = ["caffeinate", "-i", "-w", str(os.getpid())]
    with suppress(OSError):  # without the program the Mac may sleep
        return subprocess.Popen(command, start_new_session=True) if sys.platform == "darwin" else None


def run_process(command, environ, limit=math.inf, quiet=False):
    """Run a command to its end, as a generator that pauses whenever the child ends its turn; next() is its next turn.

    Ctrl-C, SIGTERM and SIGHUP are forwarded as SIGTERM (a background job ignores SIGINT), and the child may finish what
    it writes; a second one kills it. Closing the generator kills it, too.

    Args:
        environ: its whole environment.
        limit: seconds after which it is killed, not counting other children's turns.
        quiet: discard what it prints.

    Returns:
        Its exit status, 130 after Ctrl-C; negative: the signal that ended it, SIGALRM for the time limit.
    """
    keep_awake()
    channel, childs_end = socket.socketpair()
    with interrupts_held(), childs_end:
        out = subprocess.DEVNULL if quiet else None
        child = subprocess.Popen(
            command, env=environ, stdin=childs_end.fileno(), stdout=out, stderr=out, start_new_session=True
        )
    try:
        with suppress(OSError):  # Linux then kills the child first if memory runs out
            Path(f"/proc/{child.pid}/oom_score_adj").write_text("1000")
        while True:
            began = time.monotonic()
            status = wait_for_end_of_turn(child, channel, limit)
            if status is not None:
                return status
            limit -= time.monotonic() - began
            yield
            with suppress(OSError):  # it may have died
                channel.send(b".")
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        return INTERRUPTED
    finally:
        channel.close()
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_SECONDS)
        with suppress(OSError):  # nothing is left of its group; macOS reports EPERM for a group of zombies
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def wait_for_end_of_turn(child, channel, limit):
    """Return None if a child ends its turn, its exit status if it exits first, or -SIGALRM after `limit` seconds."""
    deadline = time.monotonic() + limit
    while child.poll() is None:
        if time.monotonic() > deadline:
            return -signal.SIGALRM
        if select.select([channel], [], [], POLL_SECONDS)[0]:
            with suppress(OSError):
                if channel.recv(1):
                    return None
            time.sleep(POLL_SECONDS)  # its end is closed: it is about to exit
    return child.returncode


def obey_parent():
    """Kill this process and its workers as soon as the parent closes standard input; called once by a child.

    Returns:
        end_turn(): lets other processes work, and returns when this one's next turn begins.
    """
    turns = threading.Semaphore(0)

    def listen():
        while os.read(0, 1):
            turns.release()
        os.killpg(0, signal.SIGKILL)  # this process leads its group

    def end_turn():
        os.write(0, b".")
        turns.acquire()

    threading.Thread(target=listen, daemon=True).start()
    return end_turn


def display_path(path):
    """Return a path as a user can type it: relative if it is below the working directory, else absolute."""
    relative = os.path.relpath(path)
    return os.path.abspath(path) if relative.startswith("..") else relative
