"""`make all`: the set is valid everywhere, an interruption doubles and loses nothing, a failure ends its own work."""

from dataclasses import asdict
from pathlib import Path

import pytest

import measure_all
from bench.frameworks import Device
from bench.launch import Launcher
from bench.records import results
from bench.records.columns import COLUMNS
from bench.settings import FRAMEWORKS, RUN, SettingError, list_runs, read_settings
from bench.workloads.standard_set import RUNS, STANDARD_SET
from tests.records.examples import BASE

RATES = {"float32": "0.1", "bfloat16": "0.2", "float16": "0.4"}  # TFLOP/s of the best matmul


class Children:
    """In place of the child processes: what they are asked for, and what they return.

    Args:
        fails: (script, model, phase) of work that runs out of memory.
        crashes: whether the process that measures the peaks dies after its last row.
        ends_after: the number of processes before Ctrl-C.
    """

    def __init__(self):
        self.changes, self.fails, self.refuses, self.ends_after, self.crashes = [], set(), set(), None, False

    def launch(self, launcher, change, limit, captures):
        if len(self.changes) == self.ends_after:
            return 130, [{"status": "interrupted"}]
        self.changes.append(change | {"script": launcher.script})
        assert not Path(change["RESULTS_DIR"]).is_relative_to(read_settings("all").results_dir)
        cells = {name.lower(): text for name, text in change.items() if name in ("MODEL", "PHASE", "PRECISION")}
        cells |= {"machine": launcher.host.machine, "run_id": change[RUN], "workload": launcher.script}
        row = dict.fromkeys(COLUMNS, "") | BASE | cells
        if launcher.script == "tflops":
            peak = {"workload": "matmul", "model": "matmul-peak", "phase": ""}
            rows = [row | peak | {"precision": name, "tflops": rate} for name, rate in RATES.items()]
            return 0, rows + [row | {"status": "crashed", "throughput": ""}] * self.crashes
        work = launcher.script, change["MODEL"], change["PHASE"]
        if work in self.refuses:
            raise SettingError("it needs a package")
        if work in self.fails:
            return 1, [row | {"status": "out_of_memory", "note": "9 TiB", "throughput": ""}]
        return 0, [row | {"scope": scope} for scope in change.get("SCOPE", "device").split(",")]


@pytest.fixture
def make_all(monkeypatch):
    """Run `make all` with fake children; returns (exit status, number of processes that ran now, rows in the file)."""
    children = Children()
    monkeypatch.setattr(Launcher, "launch", lambda *arguments, **options: children.launch(*arguments, **options))
    monkeypatch.setattr(measure_all, "find_device", lambda settings: Device("cpu", None, "2.15", 1))
    monkeypatch.setattr(measure_all.doctor, "examine", lambda *arguments: 0)
    monkeypatch.setattr(measure_all.card, "finish", lambda *arguments: [])
    monkeypatch.setenv("MACHINE", "m")

    def call(**environ):
        for name, text in environ.items():
            monkeypatch.setenv(name, text)
        before = len(children.changes)
        status = measure_all.main()
        return status, len(children.changes) - before, results.read(read_settings("all").results_dir / "m.csv")

    call.children = children
    return call


def processes_of(rows):
    return {row["run_id"] for row in rows}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("quick", ["0", "1"])
def test_the_set_is_valid_in_every_framework_and_the_same_on_every_device(framework, quick):
    settings, sizes = read_settings("all", {"FRAMEWORK": framework, "QUICK": quick}), {}
    for device in ("cpu", "cuda"):
        formats = measure_all.list_formats(device)
        plan = [measure_all.plan_peaks(settings, device), *measure_all.plan_work(settings, device, formats)]
        for combination in plan:
            for change in combination.changes:
                environ = {"FRAMEWORK": framework, **change}
                assert len(list_runs(combination.script, environ)) == 1
                asked = read_settings(combination.script, environ).on(device)
                describe_workload = measure_all.WORKLOADS.get(combination.script, measure_all.first_size)
                assert describe_workload(asked).model in ("matmul", asked.model)
        sizes[device] = {each.changes[0].get("MODEL"): each.changes[0].get("BATCH_SIZE") for each in plan}
    assert sizes["cpu"].items() <= sizes["cuda"].items()
    assert ("smollm2-135m" in sizes["cpu"]) == FRAMEWORKS[framework].runs_language_models


@pytest.mark.parametrize("ends_after", [0, 1, 2, 6, 20])
def test_an_interruption_doubles_and_loses_nothing(make_all, ends_after):
    make_all.children.ends_after = ends_after
    with pytest.raises(KeyboardInterrupt):
        make_all()
    make_all.children.ends_after = None
    status, count, rows = make_all()
    works = sum(not work.needs_gpu for work in STANDARD_SET)
    assert (status, ends_after + count) == (0, 1 + 2 * RUNS * works)
    assert len(processes_of(rows)) == ends_after + count
    copies = [tuple(row.items()) for row in rows]
    assert len(set(copies)) == len(copies)
    assert make_all()[1] == 0  # and nothing is left


def test_more_processes_add_to_those_that_are_stored(make_all):
    make_all(RUNS="1")
    _, count, rows = make_all(RUNS="2")
    assert count == sum(not work.needs_gpu for work in STANDARD_SET) * 2
    assert len(processes_of(rows)) == 2 * count + 1


@pytest.mark.parametrize("change", [{"QUICK": "1"}, {"SEED": "1"}, {"FRAMEWORK": "tensorflow"}, {"USE_GPU": "0"}])
def test_other_settings_are_measured_anew(make_all, change):
    make_all()
    assert make_all(**change)[1] > 1


def test_another_version_or_commit_is_measured_anew(make_all, monkeypatch):
    _, count, _ = make_all(QUICK="1")
    monkeypatch.setattr(measure_all, "find_device", lambda settings: Device("cpu", None, "2.16", 1))
    assert make_all()[1] == count
    describe = measure_all.environment.describe_host
    changed = lambda machine: type(describe())(**asdict(describe(machine)) | {"commit": "other"})  # noqa: E731
    monkeypatch.setattr(measure_all.environment, "describe_host", changed)
    assert make_all()[1] == count


def test_a_failure_ends_only_its_own_work_and_is_not_repeated(make_all, capfd):
    make_all.children.fails = {("image", "resnet50", "training")}
    make_all.children.refuses = {("mlp", "mlp-5x1024", "training")}
    status, count, rows = make_all()
    works = sum(not work.needs_gpu for work in STANDARD_SET)
    assert (status, count) == (0, 1 + 2 * (1 + 1) + 2 * RUNS * (works - 2))
    assert [row["status"] for row in rows].count("out_of_memory") == 2
    said = capfd.readouterr().out
    assert said.count("9 TiB") == said.count("it needs a package") == 2
    make_all.children.refuses = set()
    assert make_all()[:2] == (0, 2 * RUNS)  # what has no row is tried again


def test_a_process_that_crashed_runs_again_until_it_does_not(make_all):
    make_all.children.crashes = True
    make_all(QUICK="1")
    assert make_all()[1] == 1
    make_all.children.crashes = False
    assert [make_all()[1] for _ in range(2)] == [1, 0]


def test_quick_runs_one_process_in_float32(make_all):
    _, count, rows = make_all(QUICK="1")
    assert count == 1 + sum(work.is_quick for work in STANDARD_SET)
    assert {row["precision"] for row in rows if row["model"] != "matmul-peak"} == {"float32"}


def test_emulated_formats_and_missing_language_models_are_named_and_left_out(make_all, capfd, monkeypatch):
    monkeypatch.setitem(RATES, "bfloat16", "0.05")
    make_all(FRAMEWORK="tensorflow")
    said = capfd.readouterr().out
    assert "bfloat16" in said
    assert "language models" in said
    asked = make_all.children.changes[1:]
    assert {change["PRECISION"] for change in asked} == {"float32"}
    assert "llm" not in {change["script"] for change in asked}


def test_a_gpu_measures_float16_too(make_all, monkeypatch):
    monkeypatch.setattr(measure_all, "find_device", lambda settings: Device("cuda", None, "2.15", 1))
    make_all(RUNS="1")
    asked = {(change.get("MODEL"), change["PRECISION"]) for change in make_all.children.changes}
    assert {("resnet50", "float16"), ("resnet50", "mixed_float16"), ("llama-3.2-1b", "bfloat16")} <= asked


@pytest.mark.parametrize("change", [{"BATCH_SIZE": "64"}, {"IMAGE_MODEL": "vgg16"}, {"USE_GPU": "0,1"}])
def test_settings_that_would_change_the_set_are_refused(make_all, change):
    with pytest.raises(SettingError, match=next(iter(change))):
        make_all(**change)
    assert make_all.children.changes == []
