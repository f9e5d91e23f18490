"""The start and end of processes: the entry point of every script, and child processes with their signals.

An error becomes one line on stderr and an exit status: 2 is a user's mistake, 130 an interruption, 3 an unexpected
error, which also prints its traceback.

A child is the same script, in a session of its own, so that a terminal's Ctrl-C reaches it once, through its parent. It
reads requests from its standard input and writes lines of JSON to its standard output; what it prints is shown. If the
parent exits for any reason, standard input ends, and the child kills itself and its workers (open_channel). torchrun
passes standard input on to its ranks, so this holds for each of them, too.
"""

import json
import logging
import math
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path

from bench import explain_import
from bench.settings import SettingError

MISTAKE, INTERRUPTED, UNEXPECTED = 2, 130, 3
TASK = "BENCH_TASK"  # the variable that marks a child
FIND_DEVICE, MEASURE = "find_device", "measure"  # its values
POLL_SECONDS = 0.2  # between looks whether a child has exited
GRACE_SECONDS = 10.0  # for the rest of what it said
BEGUN = "begun"  # status of a line that the next line replaces; if there is none, the process died
# By exit status
CAUSES = {-4: ": the package was built for another chip: an x86-64 build on Apple silicon, or a CPU without AVX"}
SCRATCH = "bench-{}-"  # how the names of the temporary folders of a child, or of its ranks, begin, by its process id
WAITING = "waiting"  # note of such a line of a child that waits for a request
TAKEN = "busy or unavailable"  # in the note if another process has a card in exclusive-process mode (`nvidia-smi -c 3`)
# Requests, besides {"slice": seconds}, which is for windows of that time.
WINDOWS, CHECK = {}, {"check": True}  # windows until the limits of the settings; the check, after which a child ends


def run_script(function, *words):
    """Run a script's main function, which has no arguments; returns its exit status or that of its error.

    Args:
        words: what may follow the script's name.
    """
    set_up()
    line = ""
    try:
        if (given := sys.argv[1:]) and (given[0] not in words or given[1:]):
            fix = "put settings before it, as in MODEL=mlp-32 make mlp"
            raise SettingError(f"{Path(sys.argv[0]).name} takes no {' '.join(given)!r}: {fix}")
        status = function()
        sys.stdout.flush()
    except (SettingError, ModuleNotFoundError) as error:
        status, line = MISTAKE, f"{explain(error)}\n"
    except KeyboardInterrupt:
        status, line = INTERRUPTED, "interrupted\n"
    except OSError as error:  # a full disk, a folder that cannot be read, a reader that has gone, as `head` does
        is_read = isinstance(error, BrokenPipeError)
        line = f"{error.filename or 'output'}: {error.strerror or error}: use another folder, as with RESULTS_DIR\n"
        status, line = (0, "") if is_read else (MISTAKE, line)
        # Python flushes stdout at exit, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception:
        traceback.print_exc()
        status, line = UNEXPECTED, "unexpected error: please report it, with the lines above and `make doctor`\n"
    sys.stderr.write(line)
    return status


def set_up():
    """Log to stderr, and let SIGTERM and SIGHUP do what Ctrl-C does, so that workers and files end, too."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (a file would take the place of a closed output)
    logging.basicConfig(format="%(asctime)s  %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("bench").setLevel(logging.INFO)
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # it warns of classes of PyTorch's own
    handle(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP)


def explain(error):
    """Return the line for a SettingError or a ModuleNotFoundError."""
    return explain_import(error) if isinstance(error, ModuleNotFoundError) else str(error)


def handle(handler, *numbers):
    """Install a handler for those signals that are not ignored (nohup ignores SIGHUP); return the old handlers."""
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heard}


@contextmanager
def deferred_interrupts():
    """Delay Ctrl-C, SIGTERM and SIGHUP until the end of the block, for a block that has to be completed.

    Python swallows an exception in the hooks of a fork, and a half-made object cannot close itself. Yields the list of
    the signals that have come.
    """
    caught = []
    former = handle(lambda number, frame: caught.append(number), signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    try:
        yield caught
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if caught:
        raise KeyboardInterrupt


class Child:
    """A process that works for this one, as far as it is asked: start(), then ask() and wait(), or finish().

    Attributes:
        lines: what it has said, a dict each.
        exit_status: None while it works, and if it never began. Negative: the signal that ended it, SIGALRM for the
            time limit. INTERRUPTED: it was closed before it ended.
    """

    def __init__(self, command, environ, show, limit=math.inf):
        """Prepare a process.

        Args:
            environ: its whole environment.
            show: called while it works and once after its end, with this object and a list of the lines that it has
                printed since the last call.
            limit: seconds without an answer after which it is killed.
        """
        self.command, self.environ, self.show, self.limit = command, environ, show, limit
        self.lines, self.printed = [], []
        self.news = queue.SimpleQueue()  # a line, None if printed; an Event's locks break if two signals arrive at once
        self.exit_status, self.process = None, None

    def start(self):
        """Start the process, which then works until it is ready; return this object."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with deferred_interrupts():
            self.process = subprocess.Popen(self.command, env=self.environ, start_new_session=True, **pipes)
            streams = self.process.stdout, self.process.stderr
            self.readers = [threading.Thread(target=self._read, args=[each], daemon=True) for each in streams]
            for reader in self.readers:
                reader.start()
        with suppress(OSError):  # Linux then kills the child first if memory runs out
            Path(f"/proc/{self.process.pid}/oom_score_adj").write_text("1000")
        return self

    def ask(self, *requests):
        """Send requests, dicts; return this object."""
        with suppress(OSError):  # it may have died
            self.process.stdin.write("".join(json.dumps(each) + "\n" for each in requests).encode())
            self.process.stdin.flush()
        return self

    def wait(self):
        """Let the process work until it waits for another request; return False if it has ended instead."""
        deadline = time.monotonic() + self.limit
        while self.process.poll() is None:
            line = None
            with suppress(queue.Empty):
                line = self.news.get(timeout=POLL_SECONDS)
            self._show()
            if line and line.get("note") == WAITING:
                return True
            if time.monotonic() > deadline:
                self.end(-signal.SIGALRM)
                return False
        # Ctrl-C does not reach a child: another program has ended it.
        self.end(-signal.SIGTERM if self.process.returncode == INTERRUPTED else self.process.returncode)
        return False

    def finish(self, *requests):
        """Send the last requests, and let the process work until it ends."""
        self.ask(*requests)
        while self.wait():
            pass

    def _read(self, stream):
        """Keep the lines of a pipe, in a thread of its own, which closes it at its end."""
        with stream:
            for line in stream:
                text = line.decode(errors="replace")
                said = None
                if stream is self.process.stdout and text.startswith('{"'):
                    with suppress(ValueError):  # half a line
                        said = json.loads(text)
                if said:
                    self.lines.append(said)
                else:
                    self.printed.append(text.rstrip())
                self.news.put(said)

    def _show(self):
        printed = self.printed[:]
        del self.printed[: len(printed)]  # a reader may be adding to the same list
        with suppress(OSError), deferred_interrupts():  # a terminal that has closed; the locks of the bar
            self.show(self, printed)

    def end(self, exit_status):
        """Kill what is left of the process and its workers, which may hold its pipes open, and read the rest."""
        self.exit_status = exit_status
        with suppress(OSError):  # nothing is left of its group; macOS reports EPERM for a group of zombies
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with suppress(OSError):  # what it has not read; its ranks end when this does, although torchrun was killed
            self.process.stdin.close()
        for reader in self.readers:
            reader.join(GRACE_SECONDS)
        for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH.format(self.process.pid)}*"):
            shutil.rmtree(folder, ignore_errors=True)
        self._show()

    def explain_death(self):
        """Return status and note of the row of a process that died, or was interrupted after a result; or None."""
        status = self.exit_status
        if status == INTERRUPTED and any(line.get("status") == "ok" for line in self.lines):
            return "interrupted", "before anything of it was complete"
        if status in (None, 0, MISTAKE, INTERRUPTED):
            return None
        if status == -signal.SIGKILL:
            fix = "choose a smaller BATCH_SIZE, MODEL or SIZES"
            return "out_of_memory", f"ended by signal {-status}, probably because memory ran out: {fix}"
        if status == -signal.SIGALRM:
            return "timed_out", f"stopped after {self.limit:.0f} s"
        by_signal = f"ended by signal {-status}{CAUSES.get(status, '')}"
        return "crashed", f"exit status {status}, see above" if status >= 0 else by_signal

    def find_mistake(self):
        """Return the mistake in the settings that it found, or that it died at once; "" if it did neither."""
        if not self.lines and self.exit_status not in (None, 0, INTERRUPTED):
            _, why = self.explain_death() or ("", "see above")
            return f"the process ended before it measured anything ({why}): `make doctor` may explain it"
        return next((line["mistake"] for line in self.lines if "mistake" in line), "")

    def ran_out(self):
        """Return whether it may have failed because another process has the memory, or the whole card."""
        is_full = any(line.get("status") == "out_of_memory" or TAKEN in line.get("note", "") for line in self.lines)
        return is_full or self.exit_status == -signal.SIGKILL


def close(children):
    """End those of the children that still work, which may finish what they write; a second Ctrl-C kills them.

    They get SIGTERM, because a background job ignores SIGINT.
    """
    working = [each for each in children if each.process and each.exit_status is None]
    with suppress(KeyboardInterrupt), deferred_interrupts() as caught:  # however often it comes, all are closed
        for each in working:
            each.process.terminate()
        while not caught and any(each.process.poll() is None for each in working):
            time.sleep(POLL_SECONDS)
        for each in working:
            with suppress(KeyboardInterrupt):
                each.end(INTERRUPTED)


def open_channel():
    """Connect a child with its parent, and kill this process and its workers when standard input ends.

    Returns:
        (write(line), which sends a dict; a queue of the parent's requests).
    """
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is to be shown
    requests = queue.SimpleQueue()

    def write(line):
        lines.write(json.dumps(line, default=str) + "\n")
        lines.flush()

    def listen():
        with suppress(OSError), open(0, closefd=False) as stream:
            for line in stream:
                requests.put(json.loads(line))
        os.killpg(0, signal.SIGKILL)  # this process leads its group

    threading.Thread(target=listen, daemon=True).start()
    return write, requests
