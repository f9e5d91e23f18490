"""`make all`: the set is valid everywhere, an interruption doubles and loses nothing, a failure ends its own work."""

from dataclasses import asdict, replace

import pytest

import measure_all
from bench.frameworks import Device
from bench.parent import plan_processes
from bench.records import results
from bench.records.rows import complete_row, work_cells
from bench.settings import FRAMEWORKS, SettingError, read_fixed_run, read_settings
from bench.workloads import standard_set, workload_of_command
from bench.workloads.operators import matmul
from bench.workloads.standard_set import RUNS, STANDARD_SET

RATES = {"float32": 0.1, "bfloat16": 0.2, "float16": 0.4}  # TFLOP/s of the best matmul
ON_CPU = sum("cpu" in work.devices for work in STANDARD_SET)
CPU, CUDA = (Device(device, None, "2.15", 1) for device in ("cpu", "cuda"))


class Children:
    """In place of the child processes: what they are asked for, and the combined rows that they return.

    Args:
        fails: {(script, model, phase): status} of work that fails; "mistake": in the settings.
        ends_after: the number of pieces of work before Ctrl-C.
    """

    def __init__(self):
        self.changes, self.fails, self.ends_after, self.device = [], {}, None, CPU

    def measure_rounds(self, runs, host, limit):
        if len(self.changes) == self.ends_after:
            raise KeyboardInterrupt
        (run,) = runs
        self.changes.append(run)
        settings = run.settings.on(self.device.kind)
        is_sweep = run.command == "tflops"
        workload = matmul(settings.sizes[0]) if is_sweep else workload_of_command(run.command, settings)
        line = {"framework_version": self.device.framework_version, "device": self.device.kind, "status": "ok"}
        line["device_name"] = self.device.device_name
        row = complete_row(host, "", line | work_cells(settings, workload, settings.phase, "device"))
        row |= dict.fromkeys(("throughput", "throughput_low", "throughput_high"), 1.0)
        row |= {"num_threads": settings.num_threads or 2}
        if is_sweep:
            sizes = [{"matrix_size": f"{m}x{n}x{k}", "precision": "float32"} for m, n, k in settings.sizes]
            peaks = [{"model": "matmul-peak", "precision": name, "tflops": rate} for name, rate in RATES.items()]
            yield {run: [row | each for each in sizes + peaks]}
            return
        work = run.command, settings.model, settings.phase
        if self.fails.get(work) == "mistake":
            raise SettingError("it needs a package")
        if work in self.fails:
            row |= {"status": self.fails[work], "note": "9 TiB", "throughput": None}
        for _ in range(plan_processes(run) if row["status"] == "ok" else 1):
            yield {run: [row]}


@pytest.fixture
def make_all(monkeypatch):
    """Run `make all` with fake children; returns (exit status, number of pieces that ran now, rows in the file)."""
    children = Children()
    monkeypatch.setattr(measure_all, "measure_rounds", children.measure_rounds)
    monkeypatch.setattr(measure_all, "find_device", lambda settings: children.device)
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


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_set_is_valid_in_every_framework(framework, monkeypatch):
    monkeypatch.setenv("FRAMEWORK", framework)
    models, formats = set(), ("float32", *standard_set.FORMATS)
    for device in ("cpu", "cuda", "mps", "xpu"):
        planned = measure_all.plan_work(read_fixed_run("all"), device, formats)
        assert planned
        models |= {workload_of_command(run.command, run.settings.on(device)).model for run in planned}
    assert ("smollm2-135m" in models) == ("llm" in FRAMEWORKS[framework].workloads)


def test_a_small_mac_skips_what_would_swap_and_says_so(capsys):
    sizes = [
        {
            run.settings.batch_size
            for run in measure_all.plan_work(read_fixed_run("all"), "mps", ["bfloat16"], gigabytes)
        }
        for gigabytes in (16, 32)
    ]
    assert sizes[1] - sizes[0] == {256}
    assert capsys.readouterr().out.count("batch 256") == 1


def test_an_interruption_doubles_and_loses_nothing(make_all):
    make_all.children.ends_after = 6
    with pytest.raises(KeyboardInterrupt):
        make_all()
    make_all.children.ends_after = None
    status, count, rows = make_all()
    assert (status, 6 + count) == (0, 1 + 2 * ON_CPU)
    assert {len(row["process_rates"].split()) for row in rows if row["workload"] != "matmul"} == {RUNS}
    assert make_all()[1] == 0  # and nothing is left


def test_the_whole_set_and_other_settings_versions_commits_and_devices_are_measured_anew(make_all, monkeypatch):
    _, count, rows = make_all(QUICK="1")
    assert count == 1 + sum(work.is_quick for work in STANDARD_SET)
    assert {row["precision"] for row in rows if row["model"] != "matmul-peak"} == {"float32"}
    assert make_all(MALLOC_ARENA_MAX="1")[1] == count
    monkeypatch.delenv("MALLOC_ARENA_MAX")
    make_all.children.device = Device("cpu", None, "2.16", 1)
    assert make_all()[1] == count
    describe = measure_all.environment.read_host
    changed = lambda machine: type(describe())(**asdict(describe(machine)) | {"commit": "other"})  # noqa: E731
    monkeypatch.setattr(measure_all.environment, "read_host", changed)
    assert make_all()[1] == count
    make_all.children.device = CUDA
    assert make_all()[1] == count
    make_all.children.device = replace(CUDA, device_name="another card")
    assert make_all()[1] == count
    make_all.children.device = CPU
    assert make_all(QUICK="0")[1] == 1 + 2 * ON_CPU  # one process of a quick run is not enough


def test_a_row_of_other_work_does_not_count(make_all):
    make_all(RUNS="1", NUM_THREADS="2")
    path = read_settings("all").results_dir / "m.csv"
    rows = [row | ({"image_size": "64"} if row["model"] == "resnet50" else {}) for row in results.read(path)]
    path.unlink()
    results.append(path, *rows)
    assert make_all()[1] == 4  # the rows of ResNet-50
    assert make_all(NUM_THREADS="3")[1] == 2 * ON_CPU


def test_a_failure_ends_only_its_own_work_and_is_not_repeated_but_a_crash_is(make_all):
    mlp = ("mlp", "mlp-5x1024", "training")
    make_all.children.fails = {("image", "resnet50", "training"): "out_of_memory", mlp: "mistake"}
    status, count, rows = make_all()
    assert (status, count) == (0, 1 + 2 * ON_CPU)
    assert [row["status"] for row in rows].count("out_of_memory") == 2
    make_all.children.fails = {mlp: "crashed"}
    assert [make_all()[1] for _ in range(2)] == [2, 2]  # what has no row, or crashed, is tried again
    make_all.children.fails = {}
    assert [make_all()[1] for _ in range(2)] == [2, 0]


def test_the_rows_of_the_sweep_are_results_too(make_all):
    make_all.children.fails = {(work.workload, work.model, work.phase): "unsupported" for work in STANDARD_SET}
    assert [make_all()[0] for _ in range(2)] == [0, 0]
