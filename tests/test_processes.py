"""Real processes: the entry point of every script, and children with their turns, signals and ends."""

import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from bench import processes
from tests.fakes import Clock


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
        with processes.interrupts_held():
            os.kill(os.getpid(), number)
            made.append("whole")
        made.append("too late")

    assert processes.run_script(run) == 130
    assert made == ["whole"]


# Children

PROGRAM = """
import json, os, signal, subprocess, sys, time
from bench import processes
signal.signal(signal.SIGTERM, signal.default_int_handler)
end_turn = processes.obey_parent()
task = json.loads(os.environ[processes.TASK])

def say(**line):
    print(json.dumps(line), file=open(task["path"], "a"), flush=True)

processes.rest_threads = lambda: say(rest=True)
try:
    if task["what"] != "works":
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]).pid
        with open(os.environ["PIDS"], "a") as pids:
            print(os.getpid(), worker, file=pids)
    for number in range(task.get("turns", 0)):
        say(turn=number, began=time.monotonic())
        end_turn()
    if task["what"] in ("sleeps", "is stubborn"):
        time.sleep(100)
except KeyboardInterrupt:
    say(interrupted=True)
    if task["what"] == "is stubborn":
        time.sleep(100)
print('{"half', file=open(task["path"], "a"), end="")
print("printed\\nhalf", end="")
"""


@pytest.fixture
def make_child(tmp_path):
    """Make a Child of PROGRAM, which does what its task says."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)

    def make(what, limit=math.inf, **task):
        environ = os.environ | {"PIDS": str(tmp_path / "pids")}
        command = [sys.executable, str(script)]
        return processes.Child(command, environ, {"what": what} | task, limit, lambda _, lines: printed.extend(lines))

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


def test_children_work_one_at_a_time(make_child):
    children = [make_child("works", turns=3) for _ in range(2)]
    processes.work_interleaved(children)
    assert ([child.exit_status for child in children], make_child.printed) == ([0, 0], ["printed", "printed"])
    assert [[line.get("turn") for line in child.lines] for child in children] == [[0, None, 1, None, 2, None]] * 2
    first, second = ([line["began"] for line in child.lines[::2]] for child in children)
    assert all(a < b for a, b in zip(first, second, strict=True))
    assert all(b < a for b, a in zip(second[1:], first[2:], strict=False))


@pytest.mark.parametrize(("spinning", "waited"), [(0, 0.01), (0.2, 0.21), (9, 0.3)])
def test_a_turn_is_handed_over_when_the_threads_have_stopped(monkeypatch, spinning, waited):
    clock = Clock()
    names = {"monotonic": clock, "process_time": lambda: min(clock.now, spinning), "sleep": clock.sleep}
    monkeypatch.setattr(processes, "time", SimpleNamespace(**names))
    processes.rest_threads()
    assert clock.now == pytest.approx(waited)


def test_a_child_whose_parent_dies_before_it_notices_the_end_of_a_turn_dies_too(make_child):
    child = make_child("works", turns=2)
    child.start()
    select.select([child.channel], [], [])  # its byte is there, and nobody reads it
    child.channel.close()
    assert child.process.wait(timeout=100) == -signal.SIGKILL


def test_a_time_limit_counts_only_a_childs_own_turns(make_child, tmp_path):
    slow, patient = make_child("sleeps", limit=4), make_child("works", turns=1, limit=4)
    patient.turn()
    processes.work_interleaved([slow, patient])
    assert (slow.exit_status, patient.exit_status) == (-signal.SIGALRM, 0)
    assert slow.seconds > 4 > patient.seconds
    assert wait_until(lambda: not any(map(is_running, noted_pids(tmp_path))))


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
    child, paused = make_child(what), make_child("works", turns=2)
    paused.turn()
    works, was_told = (lambda: noted_pids(tmp_path)), (lambda: "interrupted" in Path(child.files[0].name).read_text())
    press_ctrl_c(works, *([was_told] if what == "is stubborn" else []))
    with pytest.raises(KeyboardInterrupt):
        processes.work_interleaved([child, paused])
    assert child.lines == [{"interrupted": True}]
    assert [line.get("interrupted") for line in paused.lines] == [None, None, True]
    assert not any(map(is_running, noted_pids(tmp_path)))


PARENT = """
import sys
from bench import parent
from bench.settings import read_runs
parent.SCRIPTS["image"] = sys.argv[1]
(run,) = read_runs("image")
child = parent.make_child(run, print)
child.task = {"what": "sleeps"}
parent.processes.work_interleaved([child])
"""


def test_a_parent_that_is_killed_leaves_no_process(make_child, tmp_path):
    """Kill the parent of two ranks, which are children of torchrun."""
    environ = os.environ | {"NUM_DEVICES": "2", "USE_GPU": "0", "PIDS": str(tmp_path / "pids")}
    program = subprocess.Popen([sys.executable, "-c", PARENT, make_child("").command[1]], env=environ)
    pids = noted_pids(tmp_path, 4)
    program.kill()
    program.wait()
    assert wait_until(lambda: not any(map(is_running, pids)))
