"""A user's mistake is one line with its exit status; only an unexpected error shows a traceback."""

import os
import signal
import subprocess
import sys

import pytest

from bench import cli
from bench.settings import SettingError


@pytest.fixture(autouse=True)
def keep_handlers():
    """run_script() sets the handlers of TERM and HUP; restore pytest's own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (SettingError("MODEL='x' is not known"), 2, "MODEL='x' is not known"),
        (ModuleNotFoundError("no", name="tqdm"), 2, "the package tqdm is missing in "),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("x"), 3, "unexpected error"),
    ],
)
def test_each_error_has_its_line_and_only_an_unexpected_one_a_traceback(error, status, said, capsys):
    def fail():
        raise error

    assert cli.run_script(fail) == status
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(said)
    assert (len(lines) > 1) == (status == 3) == ("Traceback" in lines[0])


def test_nohup_is_respected():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    cli.run_script(lambda: 0)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) == signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_until_what_starts_processes_is_whole(number):
    made = []

    def run():
        with cli.interrupts_held():
            os.kill(os.getpid(), number)
            made.append("whole")
        made.append("too late")

    assert cli.run_script(run) == 130
    assert made == ["whole"]
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def call(*command, stdout=subprocess.DEVNULL):
    done = subprocess.run([sys.executable, "-c", *command], stdout=stdout, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize("is_full", [True, False])
def test_output_that_cannot_be_written_is_one_line(is_full):
    if is_full and not os.path.exists("/dev/full"):
        pytest.skip("needs Linux's /dev/full")
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full" if is_full else writer, "w") as out:
        program = "import sys; from bench import cli; sys.exit(cli.run_script(lambda: print('x')))"
        status, (line,) = call(program, stdout=out)
    assert status == 2
    assert ("No space left on device" if is_full else "BrokenPipe") in line


def test_all_missing_packages_are_one_line():
    program = (
        "import runpy, sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; sys.argv[1:] = ['mlx'];"
        "runpy.run_path('bench/packages.py', run_name='__main__')"
    )
    status, (line,) = call(program)
    assert status == 2
    assert all(name in line for name in (sys.executable, "numpy", "pillow", "tqdm", "mlx-lm", "pip install"))
