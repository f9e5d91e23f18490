"""What was measured is in results/, whatever ends a command: signals, a closed terminal, a full disk."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.rows import read_rows

# A child that notes when it begins and ends. Its row is the one of tests/fakes.py.
PROGRAM = """
import os, signal, sys, time
from dataclasses import asdict
from bench import process
from bench.frameworks import Device
from tests.fakes import LINE
signal.signal(signal.SIGTERM, signal.default_int_handler)
write, requests = process.open_channel()
if os.environ[process.TASK] == process.FIND_DEVICE:
    write(asdict(Device("cpu", None, "1", 2)))
    sys.exit()
name = os.environ["MODEL"] + "/" + os.environ.get("MEMORY_FORMAT", "")

def note(event):
    with open(os.environ["LOG"], "a") as log:
        print(event, name, file=log)

note("begins")
slices = []
while True:
    write(LINE | {"status": process.BEGUN, "note": process.WAITING})
    request = requests.get()
    if "check" in request:
        break
    slices.append("slice" in request)
time.sleep(0.05)
rate = 12.0 if name.endswith("channels_last") else 10.0
cells = {"model": os.environ["MODEL"], "memory_format": os.environ.get("MEMORY_FORMAT"), "step_seconds_median": 1}
cells |= {"throughput": rate, "throughput_low": rate, "throughput_high": rate, "batch_size": 4, "output_error": None}
cells |= {"stop_reason": "slices" if any(slices) else "max_seconds", "rates": f"{rate} {rate}"}
write(LINE | cells)
note("ends")
"""
# What a command does, in a process of its own whose children are PROGRAM.
START = """
import os, sys
from bench import process, run
from bench.records import report
from bench.records.rows import complete_row
from bench.settings import read_runs
run.SCRIPTS["image"] = os.environ["CHILD"]

def measure_image():
    return run.measure_command("image", report.describe_run)

def measure_best():
    import best_settings
    return best_settings.main()

def measure_set():
    import measure_all
    runs = {each.settings.model: each for each in read_runs("image")}
    host = run.read_machine([runs["a"]])
    path = runs["a"].settings.results_dir / "m.csv"
    measure_all.measure_benchmarks(runs, complete_row(host, {"device": "cpu"}), host, path)
    print("the card")
"""
COMPARED = {"MODEL": "a", "MEMORY_FORMAT": "channels_first,channels_last", "MAX_SECONDS": "0.01"}
COMMANDS = {  # name: (what it calls, settings)
    "make image": ("measure_image", {"MODEL": "a,b,c", "RUNS": "2"}),
    "a list": ("measure_image", COMPARED | {"RUNS": "3"}),
    "make best": ("measure_best", COMPARED | {"PRECISION": "float32", "COMPILE": "0", "BATCH_SIZE": "4"}),
    "make all": ("measure_set", {"MODEL": "a,b,c", "RUNS": "2"}),
}


class Command:
    """A command in a process of its own, with a results folder of its own."""

    def __init__(self, name, folder, **streams):
        function, settings = COMMANDS[name]
        self.folder = folder
        self.log = folder / "log"
        (folder / "child.py").write_text(PROGRAM)
        environ = {"RESULTS_DIR": str(folder), "MACHINE": "m", "USE_GPU": "0", "LOG": str(self.log)}
        environ["CHILD"] = str(folder / "child.py")
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{START}\nsys.exit(process.run_script({function}))"],
            env=os.environ | environ | settings,
            **{"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True} | streams,
        )

    def events(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def stop_after(self, count, *numbers):
        """Send signals after this many events; returns the events before them."""
        while len(self.events()) < count and self.process.poll() is None:
            time.sleep(0.005)
        before = self.events()
        for number in numbers:
            self.process.send_signal(number)
        return before

    def rows(self):
        self.errors = self.process.communicate(timeout=100)[1]
        return read_rows(self.folder / "m.csv")


def count_processes(rows):
    return sum(row["status"] == "ok" for row in rows)


MOMENTS = (2, 5, 9)
# A terminal that closes sends SIGHUP twice: from the kernel, and from the shell.
SIGNALS = [(signal.SIGTERM,), (signal.SIGHUP, signal.SIGHUP)]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_loses_no_complete_process(name, moment, tmp_path):
    command = Command(name, tmp_path)
    before = command.stop_after(moment + 2 * (name == "make best"), *SIGNALS[moment % 2])
    rows = command.rows()
    assert command.process.returncode == 130, command.errors
    ended = sum(event.startswith("ends") for event in before)
    # One process may be about to end, and a round of two is stored when both have ended.
    assert count_processes(rows) >= ended - 1, (before, command.errors)
    if name == "make all":  # it goes on, and each work then has a run of two processes
        rows = Command(name, command.folder).rows()
        assert sorted((row["model"], row["process"]) for row in rows) == [(model, i) for model in "abc" for i in "12"]
        assert len({row["run_id"] for row in rows}) == 3
        assert len(command.events()) <= 2 * (6 + 1)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_kill_leaves_whole_rows(name, moment, tmp_path):
    command = Command(name, tmp_path)
    before = command.stop_after(moment, signal.SIGKILL)
    begun = [event.split()[1] for event in before if event.startswith("begins")]
    # Of a list, whose processes are alive together, each round that had ended is stored, of others each process.
    size = 2 if name in ("a list", "make best") else 1
    assert count_processes(command.rows()) >= size * ((len(begun) - 1) // size)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_cannot_be_printed_is_stored(name, tmp_path):
    is_full = name == "make image" and os.path.exists("/dev/full")
    if is_full:
        end = os.open("/dev/full", os.O_WRONLY)
    else:
        other, end = os.pipe()  # whose reader has gone
        os.close(other)
    command = Command(name, tmp_path, stdout=end)
    os.close(end)
    assert count_processes(command.rows()) == {"make image": 2, "a list": 6, "make best": 16, "make all": 6}[name]
    assert command.process.returncode == (2 if is_full else 0)  # as of `| head -1`
    assert "Traceback" not in command.errors
