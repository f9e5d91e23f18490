"""The start and end of processes: the entry point of every script, and child processes with their signals.

An error becomes one line on stderr and an exit status: 2 is a user's mistake, 130 an interruption, 3 an unexpected
error, which also prints its traceback.

A child runs in a session of its own, so a terminal's Ctrl-C reaches it once, through its parent. Its standard input is
a socket whose other end only the parent has. If the parent exits for any reason, or closes it on purpose, the child
kills itself and its workers (obey_parent). torchrun passes standard input on to its ranks, so this holds for each of
them too. Over the same socket, the work of several children is interleaved: a byte from the child ends its turn, a
byte from the parent starts its next one. What a child writes and prints goes to two files, which the parent reads while
it waits. The first turn of a child is its whole setup, up to the first window.
"""

import functools
import json
import logging
import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.settings import SettingError

MISTAKE, INTERRUPTED, UNEXPECTED = 2, 130, 3
TASK = "BENCH_TASK"  # the one variable from the parent process: a task in JSON
FIRST_LIMIT = 2400  # seconds; the first process may download data or compile kernels
POLL_SECONDS = 0.1  # between checks whether a child has exited
GRACE_SECONDS = 10.0  # between closing a child's standard input and SIGKILL
BEGUN = "begun"  # status of a line that the next line replaces; if there is none, the process died
REST_SECONDS = 0.01
MOST_RESTS = 30  # the threads of LLVM's and Intel's OpenMP spin for 0.2 s after their work, those of GNU's do not


def run_script(function, *words):
    """Run a script's main function, which has no arguments; returns its exit status or that of its error.

    Args:
        words: what may follow the script's name; without them, whatever follows it is a mistake.
    """
    logging.basicConfig(format="%(asctime)s  %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("bench").setLevel(logging.INFO)
    handle(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP)  # end workers and files as Ctrl-C does
    try:
        if (given := sys.argv[1:]) and given[0] not in words:
            fix = f"write {words[0]!r}" if words else "put settings before it, as in MODEL=mlp-32 make mlp"
            raise SettingError(f"{Path(sys.argv[0]).name} takes no {' '.join(given)!r}: {fix}")
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
    """Install a handler for those signals that are not ignored (nohup ignores SIGHUP); return the old handlers."""
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


class Child:
    """A process that works for this one: at its own pace, or in turns with others.

    It finds its task as JSON in the variable BENCH_TASK. The task's `path` is a file, to which it appends a line of
    JSON for each thing that it has to say.

    Attributes:
        lines: what those lines say, in order, as far as they have been read; a line that is being written is left out.
        exit_status: None while it works, and if it never began. Negative: the signal that ended it, SIGALRM for the
            time limit. INTERRUPTED: it was closed before it ended.
    """

    def __init__(self, command, environ, task, limit=math.inf, show=lambda child, printed: None):
        """Prepare a process; the first turn() starts it.

        Args:
            environ: its whole environment, apart from the task.
            task: a dict.
            limit: seconds after which it is killed, not counting other processes' turns.
            show: called ten times a second while it works and once after its end, with this object and a list of the
                lines that it has printed since the last call.
        """
        self.command = command
        self.environ = environ
        self.task = task
        self.limit = limit
        self.seconds = 0.0  # that it has worked
        self.show = show
        self.process = None
        self.exit_status = None
        self.lines = []

    def turn(self):
        """Let the process work until it ends its turn, exits or has used its time; return whether it goes on."""
        if self.process:
            with suppress(OSError):  # it may have died
                self.channel.send(b".")
        else:
            self.start()
        began = time.monotonic()
        self.exit_status = self.wait()
        if self.exit_status == -signal.SIGALRM:  # it would slow down the others that still work
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.seconds += time.monotonic() - began
        return self.exit_status is None

    def start(self):
        """Start the process, with the task in its environment and our socket as its standard input."""
        keep_awake()
        self.folder = tempfile.TemporaryDirectory()
        paths = [Path(self.folder.name, name) for name in ("lines", "printed")]
        self.files = [path.open("w+b") for path in paths]
        environ = self.environ | {TASK: json.dumps(self.task | {"path": str(paths[0])})}
        self.channel, childs_end = socket.socketpair()
        with interrupts_held(), childs_end, paths[1].open("ab") as out:
            self.process = subprocess.Popen(
                self.command, env=environ, stdin=childs_end.fileno(), stdout=out, stderr=out, start_new_session=True
            )
        with suppress(OSError):  # Linux then kills the child first if memory runs out
            Path(f"/proc/{self.process.pid}/oom_score_adj").write_text("1000")

    def wait(self):
        """Return None at the end of the turn, the exit status of a process that exits first, or -SIGALRM."""
        deadline = time.monotonic() + self.limit - self.seconds
        while self.process.poll() is None:
            self.look()
            if time.monotonic() > deadline:
                return -signal.SIGALRM
            if select.select([self.channel], [], [], POLL_SECONDS)[0]:
                with suppress(OSError):
                    if self.channel.recv(1):
                        return None
                time.sleep(POLL_SECONDS)  # its end is closed: it is about to exit
        # Ctrl-C does not reach a child: another program has ended it.
        return -signal.SIGTERM if self.process.returncode == INTERRUPTED else self.process.returncode

    def look(self):
        """Read what it has written and printed since the last look, and call show()."""
        written, printed = map(read_whole_lines, self.files)
        self.lines += map(json.loads, written)
        with suppress(OSError):  # a terminal that has closed
            self.show(self, printed)

    def close(self):
        """End the process and its workers, and read its lines; one that still works may finish what it writes.

        It gets SIGTERM, because a background job ignores SIGINT. A second Ctrl-C kills it.
        """
        if not self.process:
            return
        try:
            if self.exit_status is None:
                self.exit_status = INTERRUPTED
                self.process.terminate()
                self.process.wait()
        except KeyboardInterrupt:
            pass
        self.channel.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE_SECONDS)
        with suppress(OSError):  # nothing is left of its group; macOS reports EPERM for a group of zombies
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.lines.clear()  # Ctrl-C may have come in the middle of a look
        self.files[0].seek(0)
        self.look()
        for file in self.files:
            file.close()
        self.folder.cleanup()


def read_whole_lines(file):
    """Read the lines that another process has appended to a file since the last call, but not one that has no end."""
    *lines, rest = file.read().split(b"\n")
    file.seek(-len(rest), os.SEEK_CUR)
    return [line.decode(errors="replace") for line in lines]


def work_interleaved(children):
    """Let Children work, one turn each, until all of them have ended, and close them; after Ctrl-C, too.

    One that never ends a turn runs to its end before the next one starts.
    """
    working = list(children)
    try:
        while working:
            working = [child for child in working if child.turn()]
    finally:
        for child in children:
            child.close()


def obey_parent():
    """Kill this process and its workers as soon as the parent closes standard input; called once by a child.

    Returns:
        end_turn(): lets other processes work, and returns when this one's next turn begins.
    """
    turns = threading.Semaphore(0)

    def listen():
        with suppress(OSError):  # a connection that is reset, if the parent dies before it has read a byte
            while os.read(0, 1):
                turns.release()
        os.killpg(0, signal.SIGKILL)  # this process leads its group

    def end_turn():
        rest_threads()
        os.write(0, b".")
        turns.acquire()

    threading.Thread(target=listen, daemon=True).start()
    return end_turn


def rest_threads():
    """Wait until the threads of this process use less than a tenth of a core, at most MOST_RESTS times REST_SECONDS."""
    for _ in range(MOST_RESTS):
        before = time.process_time()
        time.sleep(REST_SECONDS)
        if time.process_time() - before < REST_SECONDS / 10:
            return
