"""The parent process: plans, starts children, combines and stores what they measured, and tells how a child died."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest

from bench import parent
from bench.frameworks import Device
from bench.host import environment
from bench.host.environment import Card, read_host
from bench.records import report, results
from bench.records.rows import complete_row
from bench.settings import SettingError, read_runs
from image_benchmark import image_workload
from tests.rows import ROW

# A child in place of a benchmark: its MODEL says what becomes of it. The worker shares its process group.
STAND_IN = """
import json, os, signal, subprocess, sys, time
sys.path.insert(0, os.environ["BENCH_ROOT"])
from bench import cli
signal.signal(signal.SIGTERM, signal.default_int_handler)
end_turn = cli.obey_parent()
task, what, rank = json.loads(os.environ["BENCH_TASK"]), os.environ["MODEL"], os.environ.get("RANK")
batch_size = int(os.environ.get("BATCH_SIZE", 1))
what = what.split("/")[batch_size - 1] if "/" in what else what
def note(event):
    with open(os.environ["LOG"] + ".turns", "a") as log: print(batch_size, event, file=log)
with open(os.environ["LOG"], "a") as log:
    log.write(json.dumps([what, task["has_extras"]]) + "\\n")
number = len(open(os.environ["LOG"]).readlines())
def emit(**line):
    row = {"device": "cpu", "device_name": None, "framework": "torch", "framework_version": "1", "workload": "image",
           "model": what, "phase": "inference", "scope": "device", "unit": "images/s", "status": "ok", "flags": "",
           "note": "", "windows": 9, "first_step_seconds": 1.0, "world_size": 1, "precision": "float32",
           "batch_size": batch_size}
    if task["takes_turns"]: row["turn_rates"] = [1.0 * batch_size, 2.0 * batch_size]
    if rank in (None, "0"):
        print(json.dumps(row | line), file=open(task["path"], "a"), flush=True)
emit(status="begun")
note("works")
if what == "never fits" or (task["takes_turns"] and what == "too large"):
    emit(status="out_of_memory", note="full"); sys.exit(1)
if task["takes_turns"] and what != "fails":
    for turn in range(3):
        note("pauses")
        end_turn()
        note("works")
        if what == "dies": os.kill(os.getpid(), signal.SIGSEGV)
        if what == "hangs": time.sleep(100)
        if what == "interrupts" or (what == "interrupts later" and number > 2):
            os.kill(os.getppid(), signal.SIGINT); time.sleep(100)
if what == "stuck":
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]).pid
    with open(os.environ["PIDS"], "a") as pids:
        print(os.getpid(), worker, file=pids)
if what in ("ok", "no input", "too large", "interrupts later"):
    emit(throughput=4.0 + number, throughput_low=3.5 + number, throughput_high=4.5 + number)
if what == "third is interrupted":
    if number == 3: os.kill(os.getppid(), signal.SIGINT); time.sleep(100)
    emit(throughput=4.0 + number, throughput_low=None, throughput_high=None)
if what == "interrupts":
    emit(throughput=5.0, throughput_low=4.0, throughput_high=6.0, status="interrupted")
    os.kill(os.getppid(), signal.SIGINT); time.sleep(100)
if what == "no input" and number == 1: emit(scope="input", status="unsupported", note="no memory"); sys.exit(1)
if what == "typo": print('{"mistake": "MODEL"}', file=open(task["path"], "a")); sys.exit(2)
if what == "fails": emit(status="unsupported", note="not here"); sys.exit(1)
if what == "killed": os.kill(os.getpid(), signal.SIGKILL)
if what == "stuck": time.sleep(100)
"""


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Replace the child by the stand-in, which notes what it was asked for in tmp_path/log; return its path."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    values = {
        "RESULTS_DIR": tmp_path,
        "MACHINE": "m",
        "PIDS": tmp_path / "pids",
        "LOG": tmp_path / "log",
        "BENCH_ROOT": os.getcwd(),
    }
    for name, value in (values | {"USE_GPU": "0"}).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setitem(parent.SCRIPTS, "image", str(script))
    return script


@pytest.fixture
def run_all(stand_in, monkeypatch, tmp_path, capfd):
    """Run a list of models with the stand-in; returns (status, stdout, what children were asked for, stored rows)."""

    def call(*models, **environ):
        for name, value in ({"MODEL": ",".join(models)} | environ).items():
            monkeypatch.setenv(name, value)
        (tmp_path / "log").unlink(missing_ok=True)
        status = parent.measure_command("image", image_workload, report.describe_run)
        asked = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        return status, capfd.readouterr().out, asked, results.read(tmp_path / "m.csv")

    return call


def is_running(pid):
    with suppress(psutil.NoSuchProcess):  # it may end at any moment
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def have_ended(pids, seconds=300):
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def read_pids(tmp_path, count):
    """Return the process ids that stand-ins noted, once there are `count` of them."""
    deadline = time.monotonic() + 300
    while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [int(pid) for pid in (tmp_path / "pids").read_text().split()]


def test_five_processes_give_one_row(run_all):
    status, out, asked, (row,) = run_all("ok")
    assert (status, out.count("added to ")) == (0, 1)
    # Only the first one compares with the CPU and measures the pipeline.
    assert asked == [["ok", True], *[["ok", False]] * 4]
    assert [row[name] for name in ("throughput", "throughput_low", "throughput_high")] == ["7", "4.5", "9.5"]
    assert row["process_rates"] == "5 6 7 8 9"
    assert (row["machine"], row["device_name"], row["schema"]) == ("m", row["cpu_name"], "2")


def test_a_combination_that_fails_runs_once_and_the_others_run(run_all):
    assert len(run_all("ok", SUSTAIN="60")[2]) == 1  # long enough for one process; below there are two
    status, _, asked, rows = run_all("fails", "ok", RUNS="2")
    assert (status, [what for what, *_ in asked]) == (0, ["fails", "ok", "ok"])
    assert [(row["model"], row["status"]) for row in rows[1:]] == [("fails", "unsupported"), ("ok", "ok")]
    assert run_all("fails")[0] == 1
    assert run_all("typo", "ok", RUNS="1")[3][-1]["status"] == "ok"


def test_a_misspelt_image_model_is_told_before_anything_runs(run_all, tmp_path):
    with pytest.raises(SettingError, match="resnet50"):
        run_all("ok", "resnet5O")
    assert not (tmp_path / "log").exists()


def test_an_input_pipeline_that_fails_ends_only_the_first_process(run_all):
    status, _, asked, (device, pipeline) = run_all("no input", RUNS="2")
    assert (status, len(asked), device["process_rates"], pipeline["status"]) == (0, 2, "5 6", "unsupported")


@pytest.mark.parametrize(
    ("device", "device_name", "machine", "file"),
    [
        ("cuda", "NVIDIA H200", None, "nvidia-h200"),
        ("cpu", None, None, "some-2-cores"),
        ("xpu", "Intel(R) Arc(TM) A770 Graphics", None, "intel-arc-a770-graphics"),
        ("mps", "some chip", None, "some-2-cores"),
        ("cuda", "NVIDIA H200", "m", "m"),
    ],
)
def test_rows_are_stored_in_the_file_of_the_device_that_ran(monkeypatch, tmp_path, device, device_name, machine, file):
    monkeypatch.setattr(environment, "list_cards", lambda: [Card("NVIDIA H200", driver="580.1")])
    host = replace(read_host(machine), cpu_name="Some CPU", cpu_count=2)
    monkeypatch.setenv("HOME", "/home/alice")
    line = {"device": device, "device_name": device_name, "note": "gcc -I/home/alice/include -I/usr/include"}
    row = complete_row(host, "id", line)
    parent.print_and_store(tmp_path, [[row]], lambda rows, stored: "")
    (stored,) = results.read(tmp_path / f"{file}.csv")
    assert (stored["machine"], stored["driver"]) == (file, "580.1")
    assert stored["note"] == "gcc -I~/include -I/usr/include"


def test_rows_that_cannot_be_stored_are_printed(tmp_path, capsys):
    (tmp_path / "m.csv").write_text("device,fps\nm1,3\n")
    with pytest.raises(SettingError):
        parent.print_and_store(tmp_path, [[{"machine": "m"}]] * 2, lambda rows, stored: "5 images/s", ["twice as fast"])
    assert capsys.readouterr().out == "5 images/s\n5 images/s\ntwice as fast\n"


def test_more_gpus_than_there_are_are_refused(monkeypatch):
    monkeypatch.setattr(parent, "find_device", lambda settings: Device("cuda", "H100", "2", 1, count=1))
    with pytest.raises(SettingError, match="NUM_DEVICES='2'"):
        parent.plan_runs(read_runs("image", {"NUM_DEVICES": "2"}), image_workload)


def test_a_child_that_is_killed_leaves_a_row_and_the_others_run(run_all):
    code, _, _, (dead, _) = run_all("killed", "ok", RUNS="1")
    assert (code, dead["status"], dead["model"], dead["throughput"]) == (0, "out_of_memory", "killed", "")


def test_ctrl_c_stores_what_was_complete(run_all):
    status, _, asked, (row,) = run_all("third is interrupted", "ok")
    assert (status, len(asked)) == (130, 3)  # no other combination is started
    assert (row["status"], row["process_rates"]) == ("ok", "5 6")
    status, _, _, rows = run_all("interrupts")
    assert (status, rows[-1]["status"], rows[-1]["throughput"]) == (130, "interrupted", "5")


def test_a_time_limit_ends_all_processes(stand_in, tmp_path):
    (run,) = read_runs("image", os.environ | {"MODEL": "stuck"})
    (row,) = parent.run_child(run, read_host("m"), limit=3)  # by then the child has noted its process ids
    assert (row["status"], "time limit" in row["note"]) == ("crashed", True)
    assert have_ended(read_pids(tmp_path, 2))


PARENT = """
import sys
from bench import parent
from bench.host.environment import read_host
from bench.settings import read_runs
parent.SCRIPTS["image"] = sys.argv[1]
parent.run_child(*read_runs("image"), read_host("m"))
"""


def test_a_parent_that_is_killed_leaves_no_process(stand_in, tmp_path):
    """Kill the parent of two ranks, which are children of torchrun."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, stand_in], env=os.environ | {"NUM_DEVICES": "2", "MODEL": "stuck"}
    )
    pids = read_pids(tmp_path, 4)
    parent.kill()
    parent.wait()
    assert have_ended(pids)


# Turns


@pytest.fixture
def run_in_turn(run_all, tmp_path):
    """Run models in turn, one for each batch size from 1; returns (status, stdout, rows, the events of its turns)."""

    def call(*models, **environ):
        sizes = ",".join(str(size) for size in range(1, len(models) + 1))
        status, out, _, rows = run_all("/".join(models), **{"BATCH_SIZE": sizes, "RUNS": "5"} | environ)
        events = [line.split() for line in (tmp_path / "log.turns").read_text().splitlines()]
        return status, out, rows, [(int(size), event) for size, event in events]

    return call


def test_processes_that_are_compared_work_one_at_a_time_in_turn(run_in_turn):
    status, out, rows, events = run_in_turn("ok", "ok", RUNS="2")
    assert (status, [(row["batch_size"], len(row["process_rates"].split())) for row in rows]) == (
        0,
        [("1", 2), ("2", 2)],
    )
    # One begins to work only after the other one has paused, or ended its last turn.
    turn = [(size, event) for size in (1, 2) for event in ("works", "pauses")]
    first = [*3 * turn, (1, "works"), (2, "works")]
    assert events == first + [(3 - size, event) for size, event in first]
    assert "BATCH_SIZE=2 is 2 times as fast as BATCH_SIZE=1 (2 to 2, 2 pairs" in out


@pytest.mark.parametrize(("last", "statuses"), [("dies", ["ok", "crashed"]), ("fails", ["ok", "unsupported"])])
def test_of_two_in_turn_one_dies_and_the_other_goes_on(run_in_turn, last, statuses):
    status, out, rows, _ = run_in_turn("ok", last, RUNS="2")
    assert (status, [row["status"] for row in rows]) == (0, statuses)
    assert len(rows[0]["process_rates"].split()) == 2
    assert "BATCH_SIZE=2 " not in out


def test_without_memory_for_two_they_run_one_after_the_other(run_in_turn, caplog):
    status, _, rows, events = run_in_turn("ok", "too large")
    assert (status, [len(row["process_rates"].split()) for row in rows]) == (0, [5, 5])
    assert events[-2:] == [(1, "works"), (2, "works")]
    assert "one after the other" in caplog.text


def test_a_time_limit_counts_only_a_childs_own_turns(stand_in, tmp_path):
    runs = read_runs("image", os.environ | {"MODEL": "ok/hangs", "BATCH_SIZE": "1,2", "RUNS": "1"})
    (rows_of,) = parent.measure_rounds(runs, read_host("m"), limit=5)
    assert [rows_of[run][0]["status"] for run in runs] == ["ok", "crashed"]


def test_rounds_without_extras_measure_only_the_main_quantity(stand_in, tmp_path):
    runs = read_runs("image", os.environ | {"MODEL": "ok", "RUNS": "2"})
    rounds = list(parent.measure_rounds(runs, read_host("m"), has_extras=False))
    has_extras = [json.loads(line)[1] for line in (tmp_path / "log").read_text().splitlines()]
    assert (len(rounds), has_extras) == (2, [False, False])


@pytest.mark.parametrize(
    ("models", "stored"),
    [
        (("ok", "interrupts", "ok"), []),
        (("fails", "interrupts"), [("fails", "")]),
        (("ok", "interrupts later"), [("ok", "5"), ("interrupts later", "6")]),
    ],
)
def test_ctrl_c_in_a_turn_keeps_what_was_complete_and_leaves_no_process(run_in_turn, models, stored):
    others = psutil.Process().children()  # of earlier tests, such as multiprocessing's resource tracker
    status, _, rows, _ = run_in_turn(*models)
    assert (status, [(row["model"], row["process_rates"]) for row in rows]) == (130, stored)
    assert set(psutil.Process().children()) <= set(others)


MEASURE = """
import sys
from bench import parent
from bench.records import report
parent.SCRIPTS["image"] = sys.argv[1]
parent.measure_command("image", None, report.describe_run)
"""


def test_a_group_that_is_complete_is_stored_before_the_next_one(stand_in, tmp_path):
    environ = os.environ | {"MODEL": "ok,stuck", "BATCH_SIZE": "1,2", "RUNS": "1"}
    parent = subprocess.Popen([sys.executable, "-c", MEASURE, stand_in], env=environ)
    pids = read_pids(tmp_path, 2)
    parent.kill()
    parent.wait()
    assert [(row["model"], row["batch_size"]) for row in results.read(tmp_path / "m.csv")] == [("ok", "1"), ("ok", "2")]
    assert have_ended(pids)


def test_a_combination_that_never_fits_takes_no_turns_from_the_others(run_in_turn):
    _, out, rows, events = run_in_turn("ok", "never fits", "ok", RUNS="2")
    assert [row["status"] for row in rows] == ["ok", "out_of_memory", "ok"]
    assert [event for _, event in events[-8:]].count("pauses") == 3
    assert "one after the other" in out


@pytest.mark.parametrize(
    ("environ", "groups"),
    [
        ({"MODEL": "alexnet,vgg11"}, [["alexnet"], ["vgg11"]]),
        ({"COMPILE": "0,1"}, [["0", "1"]]),
        ({"BATCH_SIZE": "1,2,3,4,5,6"}, [["1", "2", "3", "4"], ["1", "5", "6"]]),
        (
            {"PHASE": "inference,training", "BATCH_SIZE": "1,2"},
            [["inference 1", "inference 2"], ["training 1", "training 2"]],
        ),
        ({"BATCH_SIZE": "1,2", "COMPILE": "0,1"}, [["1 0", "2 0"], ["1 1", "2 1"]]),
        (
            {"FRAMEWORK_VERSION": "2.14.1,2.15.0", "COMPILE": "0,1"},
            [["2.14.1 0", "2.15.0 0"], ["2.14.1 1", "2.15.0 1"]],
        ),
        ({"BATCH_SIZE": "1,2", "SUSTAIN": "60"}, [["1"], ["2"]]),
        ({"BATCH_SIZE": "4,8", "NUM_DEVICES": "1,2", "PHASE": "training"}, [["1 4", "1 8"], ["2 4"], ["2 8"]]),
        ({"USE_GPU": "0,1"}, [["0", "1"]]),
    ],
)
def test_runs_that_differ_in_a_setting_that_is_compared_are_a_group(environ, groups):
    grouped = parent.group_runs(read_runs("image", environ))
    assert [[" ".join(run.choices.values()) for run in group] for group in grouped] == groups


# BATCH_SIZE=auto


def rates(*values, **cells):
    return {2**i: {"throughput": float(value)} | cells for i, value in enumerate(values)}


@pytest.mark.parametrize(
    ("rows", "device", "fastest", "tried"),
    [
        (rates(10, 20, 40, 30), "cpu", "4", [1, 2, 4, 8, 16]),
        (rates(10, 20, 20.1, 20.2, 100, 200), "cpu", "8", [1, 2, 4, 8]),  # doubling gains nothing
        (rates(10, 20, step_seconds_median=6.0), "cpu", "1", [1]),  # the next step takes too long
        (rates(10, 20, peak_memory_bytes=600), "cpu", "1", [1]),  # of 1000 bytes of the system's memory
        (rates(10, 20, peak_memory_bytes=600), "cuda", "2", [1, 2, 4]),
    ],
)
def test_auto_takes_the_fastest_size_that_fits(monkeypatch, rows, device, fastest, tried):
    """Try sizes on a machine of `rows`, {batch size: cells of its trial}; a size without a row has run out."""
    sizes = []

    def trial(run, host, has_extras, compares_with_cpu):
        assert (has_extras, compares_with_cpu, run.settings.sustain) == (False, False, None)
        sizes.append(run.settings.batch_size)
        row = ROW | {"device": device, "step_seconds_median": 0.001}
        return [row | rows.get(sizes[-1], {"status": "out_of_memory", "note": "full"})]

    monkeypatch.setattr(parent, "run_child", trial)
    monkeypatch.setattr(parent.resources, "available_bytes", lambda: 1000)
    monkeypatch.setattr(parent, "find_device", lambda settings: Device(device, None, "2", 1))
    environ = {"MODEL": "mlp-8", "BATCH_SIZE": "auto", "SUSTAIN": "60", "MAX_SECONDS": "10"}
    (run,) = read_runs("mlp", environ)
    chosen = parent.choose_batch_size(run, None).settings
    assert (chosen.batch_size, chosen.sustain, sizes) == (int(fastest), 60, tried)
