"""The entry point of every script: signals, and output that cannot be written."""

import os
import signal
import subprocess
import sys

import pytest

from bench import cli


@pytest.fixture(autouse=True)
def keep_handlers():
    """run_script() sets the handlers of TERM and HUP; restore pytest's own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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


def test_a_mac_is_kept_awake_by_the_first_process_that_is_started(monkeypatch):
    started, start = [], subprocess.Popen

    def note(command, **how):
        started.append(command)
        if command[0] == "caffeinate":
            raise FileNotFoundError  # a system without it
        return start(command, **how)

    monkeypatch.setattr(cli.subprocess, "Popen", note)
    monkeypatch.setattr(cli.sys, "platform", "darwin")
    cli.keep_awake.cache_clear()
    for _ in range(2):
        with pytest.raises(StopIteration) as ended:
            next(cli.run_process(["true"], os.environ))
        assert ended.value.value == 0
    assert started == [["caffeinate", "-i", "-w", str(os.getpid())], ["true"], ["true"]]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_is_one_line():
    program = "import sys; from bench import cli; sys.exit(cli.run_script(lambda: print('x')))"
    with open("/dev/full", "w") as out:
        done = subprocess.run([sys.executable, "-c", program], stdout=out, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
