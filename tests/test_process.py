"""Real processes: the entry point of every script, and children with their turns, signals and ends."""

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from bench import process


def test_an_interrupt_waits_until_what_has_to_be_whole_is():
    done = []

    def work():
        with process.deferred_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("whole")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["whole"]


PROGRAM = """
import json, os, signal, subprocess, sys, tempfile, time
from bench import process
print('{"half": ', flush=True)
signal.signal(signal.SIGTERM, signal.default_int_handler)
write, requests = process.open_channel()
what = os.environ[process.TASK]
tempfile.mkdtemp(prefix=process.SCRATCH.format(os.getpid()))
try:
    print("printed", flush=True)
    if what != "works":
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]).pid
        with open(os.environ["PIDS"], "a") as pids:
            print(os.getpid(), worker, file=pids)
    while what == "works":
        write({"note": process.WAITING, "at": time.monotonic()})
        if "check" in requests.get():
            break
    if what in ("sleeps", "is stubborn"):
        write({"note": "sleeps"})
        time.sleep(100)
except KeyboardInterrupt:
    write({"interrupted": True})
    if what == "is stubborn":
        time.sleep(100)
os.write(2, b"half")
"""
CHECK = {"check": True}


@pytest.fixture
def make_child(tmp_path):
    """Make a Child of PROGRAM, which does what its task says."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)

    def make(what, limit=math.inf):
        environ = os.environ | {"PIDS": str(tmp_path / "pids"), process.TASK: what}
        command = [sys.executable, str(script)]
        return process.Child(command, environ, lambda _, lines: printed.extend(lines), limit)

    make.printed = printed = []
    return make


def is_running(pid):
    with suppress(psutil.NoSuchProcess):  # it may end at any moment
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def wait_until(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def noted_pids(tmp_path, count=2):
    """Return the process ids that programs noted, once there are `count` of them."""

    def read():
        pids = (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else []
        return len(pids) >= count and [int(pid) for pid in pids]

    return wait_until(read)


def test_children_work_when_they_are_asked(make_child):
    begun = os.listdir("/dev/fd")
    first, second = make_child("works"), make_child("works")
    assert all([first.start().wait(), second.start().wait()])
    assert all([second.ask({"slice": 1}).wait(), first.ask({"slice": 1}).wait()])
    for child in (first, second):
        child.finish(CHECK)
    assert (first.exit_status, second.exit_status) == (0, 0)
    assert sorted(make_child.printed) == ["half", "half", "printed", "printed", '{"half":', '{"half":']
    assert len(os.listdir("/dev/fd")) == len(begun)  # no pipe is left open
    assert not list(Path(tempfile.gettempdir()).glob(f"{process.SCRATCH.format(first.process.pid)}*"))
    (a, d), (b, c) = ([line["at"] for line in child.lines] for child in (first, second))
    assert a < b < c < d


def test_a_process_has_ended_although_a_worker_holds_its_pipes_open(make_child, tmp_path):
    child = make_child("leaves a worker")
    began = time.monotonic()
    child.start().finish()
    assert (child.exit_status, time.monotonic() - began < 60) == (0, True)
    assert wait_until(lambda: not any(map(is_running, noted_pids(tmp_path))))


def test_a_time_limit_does_not_count_what_others_work(make_child):
    slow, patient = make_child("sleeps", limit=4), make_child("works", limit=4)
    assert patient.start().wait()
    slow.start().finish()
    patient.finish(CHECK)
    assert (slow.exit_status, patient.exit_status) == (-signal.SIGALRM, 0)


def press_ctrl_c(*conditions):
    """Send Ctrl-C to this process each time when the next condition holds."""

    def wait_and_send():
        for condition in conditions:
            wait_until(condition)
            # To the main thread: if another one gets it, nothing ends what that waits for.
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=wait_and_send, daemon=True).start()


@pytest.mark.parametrize("what", ["sleeps", "is stubborn"])
def test_after_ctrl_c_a_child_finishes_its_line(make_child, tmp_path, what):
    child, waiting = make_child(what), make_child("works")
    assert waiting.start().wait()
    child.start()
    sleeps, was_told = (lambda: child.lines), (lambda: len(child.lines) > 1)
    press_ctrl_c(sleeps, *([was_told] if what == "is stubborn" else []))
    with pytest.raises(KeyboardInterrupt):
        child.finish()
    process.close([child, waiting])
    assert [each.lines[-1] for each in (child, waiting)] == [{"interrupted": True}] * 2
    assert wait_until(lambda: not any(map(is_running, noted_pids(tmp_path))))


def test_all_are_closed_however_often_ctrl_c_comes(make_child):
    def press(*_):
        signal.raise_signal(signal.SIGINT)

    def end(status):
        ended.append(status)
        with process.deferred_interrupts():  # as what it shows last
            press()

    children = [SimpleNamespace(process=SimpleNamespace(terminate=press), exit_status=None) for _ in range(3)]
    ended = []
    for each in children:
        each.process.poll = lambda: None
        each.end = end
    process.close(children)
    assert ended == [process.INTERRUPTED] * 3


PARENT = """
import sys
from bench import process, run
from bench.settings import read_runs
run.SCRIPTS["image"] = sys.argv[1]
(one,) = read_runs("image")
child = run.make_child(one, lambda *_: None)
child.environ[process.TASK] = "sleeps"
child.start().finish()
"""


def test_a_parent_that_is_killed_leaves_no_process(make_child, tmp_path):
    """Kill the parent of two ranks, which are children of torchrun."""
    environ = os.environ | {"NUM_DEVICES": "2", "USE_GPU": "0", "PIDS": str(tmp_path / "pids")}
    program = subprocess.Popen([sys.executable, "-c", PARENT, make_child("").command[1]], env=environ)
    pids = noted_pids(tmp_path, 4)
    program.kill()
    program.wait()
    assert wait_until(lambda: not any(map(is_running, pids)))
