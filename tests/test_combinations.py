"""Every combination runs in a process of its own; a failure of one does not end the others."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

import tflops_sweep
from bench import combinations, processes
from bench.machine import environment
from bench.machine.environment import describe_host
from bench.rows import report, results
from bench.settings import SettingError, list_runs, read_settings
from image_benchmark import image_workload
from llm_benchmark import llm_workload
from mlp_benchmark import mlp_workload
from transformer_benchmark import transformer_workload

WORKLOADS = {"image": image_workload, "mlp": mlp_workload, "transformer": transformer_workload, "llm": llm_workload}
# A run in place of the real script: it obeys the model that it is asked for.
STAND_IN = """
import os, signal, sys, time
what = os.environ["MODEL"]
print("WARNING: no GPU", file=sys.stderr)
print("12:00:00  power and energy stay blank: no counter", file=sys.stderr)
print("asked for", what, os.environ.get("RUNS"), flush=True)
if what == "killed": os.kill(os.getpid(), signal.SIGKILL)
if what == "aborted": os.kill(os.getpid(), signal.SIGABRT)
if what == "unknown": print("MODEL='unknown' is not known", file=sys.stderr)
if what == "slow":
    try:
        print("sleeping", file=sys.stderr, flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)
sys.exit({"fails": 1, "unknown": 2}.get(what, 0))
"""


@pytest.fixture
def run_all(monkeypatch, tmp_path, capsys):
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setattr(combinations, "check_all", lambda *entries: None)  # the stand-in's models are nobody's

    def call(*models, runs=1):
        path = tmp_path / "m.csv"
        changes = [{"MODEL": model, "USE_GPU": "0"} for model in models]
        status = combinations.run_all("image", changes, runs, describe_host("m"), path, image_workload)
        said = capsys.readouterr()
        return status, said.out, said.err, results.read(path) if path.exists() else []

    return call


def test_every_combination_runs_and_says_so(run_all):
    status, out, err, rows = run_all("a", "b", runs=2)
    assert status == 0
    assert (err.count("WARNING: no GPU"), err.count("stay blank")) == (4, 1)
    assert out.splitlines() == ["asked for a 1"] * 2 + ["asked for b 1"] * 2
    assert rows == []


@pytest.mark.parametrize(
    ("model", "status", "note"),
    [("killed", "out_of_memory", "signal 9, most likely for lack of memory"), ("aborted", "crashed", "signal 6")],
)
def test_a_process_that_is_killed_leaves_a_row_and_the_others_run(run_all, model, status, note):
    code, out, _, rows = run_all("a", model, "b")
    assert code == 0
    assert "asked for b" in out
    assert (len(rows), rows[0]["status"], rows[0]["model"], rows[0]["throughput"]) == (1, status, model, "")
    assert note in rows[0]["note"]
    assert (rows[0]["machine"], rows[0]["scope"], rows[0]["batch_size"]) == ("m", "", "16")
    assert rows[0]["run_id"]


def test_a_mistake_in_one_entry_ends_all(run_all):
    code, out, err, _ = run_all("unknown", "b")
    assert code == 2
    assert "MODEL='unknown' is not known" in err
    assert "asked for b" not in out


@pytest.mark.parametrize(
    ("script", "environ", "said"),
    [
        ("image", {"MODEL": "resnet18,resnet51"}, "MODEL='resnet51' is not in torchvision: did you mean resnet50"),
        ("mlp", {"MODEL": "mlp-8,mlp-9999x1", "DATA": "synthetic"}, "at most 1000 layers of 999999"),
        ("transformer", {"MODEL": "distilbert,bert-huge"}, "MODEL='bert-huge' must be one of"),
        ("llm", {"DEPTH": "0,9000", "PHASE": "decode"}, "DEPTH='9000' and NEW_TOKENS='128' need 9128 positions"),
        ("llm", {"MODEL": "smollm2-135m,gpt-5"}, "MODEL='gpt-5' must be one of"),
        ("mlp", {"EPOCHS": "1", "PHASE": "training,inference", "DATA": "synthetic"}, "EPOCHS='1' is training"),
    ],
)
def test_every_entry_is_checked_before_anything_is_measured(script, environ, said, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingError, match=said):
        combinations.check_all(script, list_runs(script), WORKLOADS[script])


def test_lines_of_a_run_are_passed_on_as_they_come(run_all, monkeypatch):
    passed = []
    monkeypatch.setattr(processes.tqdm, "write", lambda line, file: passed.append(line))
    run_all("a")
    assert "asked for a 1" in passed


def test_the_exit_status_says_whether_anything_was_measured(run_all):
    assert run_all("fails", "fails")[0] == 1
    assert run_all("fails", "a")[0] == 0


class InterruptedChild:
    """A child that is under way when Ctrl-C is pressed, and ends well when the signal reaches it."""

    pid, returncode, signals = 0, 0, ()

    def __init__(self, *_, **options):
        assert options["start_new_session"]  # or the terminal would send it a second signal

        self.stdout, self.stderr = ["what was measured\n"], []

    def poll(self):
        return self.returncode

    def wait(self):
        if not self.signals:
            raise KeyboardInterrupt

    def send_signal(self, number):
        self.signals = (number,)


def test_ctrl_c_reaches_the_run_that_is_under_way_and_starts_no_other(run_all, monkeypatch):
    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(Popen=InterruptedChild, PIPE=None))
    monkeypatch.setattr(processes, "prefer_as_victim", lambda pid: None)
    code, out, _, _ = run_all("a", "b")
    assert code == 130
    assert out.splitlines() == ["what was measured"]


def describe_death(settings, describe_workload):
    """The row of a process that was killed."""
    why = combinations.explain_death(settings, -9)
    return combinations.describe_death(settings, describe_host("m"), describe_workload, *why)


@pytest.mark.parametrize(
    ("script", "describe_workload", "model"),
    [("mlp", mlp_workload, "mlp-8"), ("transformer", transformer_workload, "bert-large")],
)
def test_a_killed_run_of_any_script_is_a_row(script, describe_workload, model):
    settings = read_settings(script, {"MODEL": model, "DATA": "synthetic"})
    row = describe_death(settings, describe_workload)
    assert (row["status"], row["scope"], row["workload"], row["model"]) == ("out_of_memory", "device", script, model)
    assert "BATCH_SIZE" in row["note"]


@pytest.mark.parametrize(("card", "batch_size"), [(environment.Card("NVIDIA H200", "GPU-1"), 64), (None, 16)])
def test_a_killed_run_names_the_batch_size_of_its_device(monkeypatch, card, batch_size):
    monkeypatch.setattr(environment, "find_card", lambda: card)  # None: there is a driver, and all cards are hidden
    host = replace(describe_host("m"), driver="580.1", gpu_cores=None)
    row = combinations.describe_death(read_settings("image", {}), host, image_workload, "killed")
    assert row["batch_size"] == batch_size


def test_a_run_that_was_killed_while_it_chose_its_batch_size_names_none():
    settings = read_settings("image", {"BATCH_SIZE": "auto"})
    row = describe_death(settings, image_workload)
    assert (row["status"], row["batch_size"]) == ("out_of_memory", None)


def test_a_killed_sweep_of_ceilings_is_a_row_that_names_no_size():
    row = describe_death(read_settings("tflops", {}), tflops_sweep.first_size)
    assert (row["status"], row["workload"], row["precision"], row["matrix_size"]) == (
        "out_of_memory",
        "matmul",
        None,
        None,
    )
    assert "choose a smaller SIZES" in row["note"]
    assert "out_of_memory" in report.describe_result(row)
    assert report.describe_task(row).startswith("matmul, torch")
