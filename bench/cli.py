"""The entry point of every script: turns each error into one line on stderr and an exit status.

Exit status 2 is a user's mistake, 130 an interruption, 3 an unexpected error, which also prints its traceback.
"""

import logging
import os
import signal
import sys
import traceback
from contextlib import contextmanager

from bench.settings import SettingError

MISTAKE, INTERRUPTED, UNEXPECTED = 2, 130, 3


def run_script(main):
    """Run a script's main function, a function without arguments; returns its exit status or that of its error."""
    logging.basicConfig(format="%(asctime)s  %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("bench").setLevel(logging.INFO)
    handle(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP)  # end workers and files as Ctrl-C does
    try:
        status = main()
        sys.stdout.flush()
        return status
    except (SettingError, ModuleNotFoundError) as error:
        status, line = MISTAKE, explain(error)
    except KeyboardInterrupt:
        status, line = INTERRUPTED, "interrupted"
    except OSError as error:  # a full disk, a folder that cannot be read, a reader that has gone, as `head` does
        status, line = MISTAKE, f"{type(error).__name__}: {error}"
        # Python flushes stdout at exit, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception:
        traceback.print_exc()
        status, line = UNEXPECTED, "unexpected error: please report it, with the lines above and `make doctor`"
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


def display_path(path):
    """Return a path as a user can type it: relative if it is below the working directory, else absolute."""
    relative = os.path.relpath(path)
    return os.path.abspath(path) if relative.startswith("..") else relative
