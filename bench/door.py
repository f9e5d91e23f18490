"""The door of every script: what a user can cause becomes one line, and its exit status.

Status 2 is a mistake, 130 an interruption, 3 whatever nobody foresaw: that alone shows a traceback.
"""

import io
import logging
import os
import signal
import sys
import traceback
from contextlib import contextmanager

from bench import missing_package
from bench.settings import SettingError


def enter(run):
    """Run a script's main function; returns its exit status. Errors are on stderr, and no output is lost."""
    logging.basicConfig(format="%(asctime)s  %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("bench").setLevel(logging.INFO)
    for stream in (sys.stdout, sys.stderr):  # a terminal without Unicode shows \u2026 and the like as escapes
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    handle(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP)  # end workers and files as Ctrl-C does
    try:
        status = run()
        sys.stdout.flush()
        return status
    except SettingError as error:
        return say(error, 2)
    except ModuleNotFoundError as error:
        return say(missing_package(error), 2)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does; the rows are stored
        return drop_output(1)
    except KeyboardInterrupt:
        return say("interrupted: incomplete windows are not in the results", 130)
    except OSError as error:
        say(f"{error.filename or 'output'}: {error.strerror}: make room, or change the permissions", 2)
        return drop_output(2)
    except Exception:
        traceback.print_exc()
        return say("nobody foresaw this: please report it, with the lines above and `make doctor`", 3)


def handle(handler, *numbers):
    """Set the handler of signals that are not ignored, as nohup ignores one; returns the former ones by number."""
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heard}


@contextmanager
def interrupts_held():
    """Let Ctrl-C and the like wait for the end of the block, which starts processes.

    Python swallows an exception in the hooks of a fork, and an object that is half made cannot close itself.
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


def say(words, status):
    print(words, file=sys.stderr)
    return status


def drop_output(status):
    """Python writes what is left of stdout at its end, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status
