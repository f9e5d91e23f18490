"""`make all`: the set is valid everywhere, an interruption doubles and loses nothing, a failure ends its own work."""

import functools
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import measure_all
from bench import parent
from bench.frameworks import Device
from bench.records import results
from bench.records.rows import work_cells
from bench.settings import FRAMEWORKS, parse_settings, read_fixed_run, read_settings
from bench.workloads import standard_set
from bench.workloads.operators import matmul
from bench.workloads.standard_set import RUNS, STANDARD_SET
from tests.fakes import FakeChild
from tests.rows import rate

RATES = {"float32": 0.1, "bfloat16": 0.2, "float16": 0.4}  # TFLOP/s of the best matmul
ON_CPU = sum("cpu" in work.devices for work in STANDARD_SET)
CPU, CUDA = (Device(device, None, "2.15", 1) for device in ("cpu", "cuda"))


class Children:
    """What child processes do, and the scripts and settings of those that measured.

    Args:
        fails: {(command, model, phase): status} of work that fails; "mistake": in the settings.
        ends_after: the number of processes before Ctrl-C.
    """

    def __init__(self):
        self.asked, self.fails, self.ends_after, self.device, self.flags = [], {}, None, CPU, ""

    def work(self, child):
        """Measure what the environment asks for."""
        if child.task["finds_device"]:
            child.lines.append(asdict(self.device))
            return
        if len(self.asked) == self.ends_after:
            raise KeyboardInterrupt
        command = Path(child.script).stem.partition("_")[0]
        settings = parse_settings(command, child.environ).on(self.device.kind)
        self.asked.append((command, settings))
        workload = (
            matmul(settings.sizes[0]) if command == "tflops" else measure_all.workload_of_command(command, settings)
        )
        cells = {"device": self.device.kind} | {
            name: getattr(self.device, name) for name in ("framework_version", "device_name")
        }
        cells |= work_cells(settings, workload, "device") | rate(1.0)
        cells |= {"num_threads": settings.num_threads or 2, "flags": self.flags}
        if command == "tflops":
            for m, n, k in settings.sizes:
                child.write(**cells | {"matrix_size": f"{m}x{n}x{k}", "precision": "float32"})
            for name, tflops in RATES.items():
                child.write(**cells | {"model": "matmul-peak", "precision": name, "tflops": tflops})
            return
        failure = self.fails.get((command, settings.model, settings.phase))
        if failure == "mistake":
            child.lines.append({"mistake": "it needs a package"})
        elif failure:
            child.write(**cells | {"status": failure, "note": "9 TiB", "throughput": None})
        else:
            child.write(**cells)
        return
        yield

    def count_works(self):
        """Count the works that were asked for, each of which has several processes."""
        return len(set(self.asked))


@pytest.fixture
def make_all(monkeypatch):
    """Run `make all` with fake children; returns (exit status, number of works that ran now, rows in the file)."""
    children = Children()
    monkeypatch.setattr(parent.processes, "Child", functools.partial(FakeChild, children.work))
    monkeypatch.setattr(measure_all.doctor, "examine", lambda *arguments: 0)
    monkeypatch.setattr(measure_all.card, "finish", lambda *arguments: [])
    monkeypatch.setenv("MACHINE", "m")

    def call(**environ):
        for name, text in environ.items():
            monkeypatch.setenv(name, text)
        children.asked.clear()
        status = measure_all.main()
        return status, children.count_works(), results.read(read_settings("all").results_dir / "m.csv")

    call.children = children
    return call


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_set_is_valid_in_every_framework(framework, monkeypatch):
    monkeypatch.setenv("FRAMEWORK", framework)
    models, formats = set(), ("float32", *standard_set.FORMATS)
    for device in ("cpu", "cuda", "mps", "xpu"):
        planned = measure_all.plan_work(read_fixed_run("all"), device, formats)
        assert planned
        models |= {measure_all.workload_of_command(run.command, run.settings.on(device)).model for run in planned}
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
    make_all.children.ends_after = 1 + 5 * RUNS
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
    describe = parent.environment.read_host
    changed = lambda machine: type(describe())(**asdict(describe(machine)) | {"commit": "other"})  # noqa: E731
    monkeypatch.setattr(parent.environment, "read_host", changed)
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


def test_what_was_disturbed_is_measured_once_more(make_all):
    make_all.children.flags = "drift contended"
    assert [make_all()[1] for _ in range(3)] == [1 + 2 * ON_CPU, 1 + 2 * ON_CPU, 0]


@pytest.mark.parametrize("cells", [{"flags": "contended"}, {"status": "interrupted"}])
def test_a_disturbed_or_interrupted_pipeline_is_measured_again(make_all, cells):
    row = next(row for row in make_all()[2] if (row["model"], row["phase"]) == ("resnet50", "inference"))
    row |= {"scope": "end_to_end", "data": "jpeg_q96", "process_rates": "1"} | cells
    results.append(read_settings("all").results_dir / "m.csv", row)
    assert make_all()[1] == 1


def test_a_disturbed_peak_excludes_no_format():
    peaks = [{"model": "matmul-peak", "status": "ok", "precision": "bfloat16", "tflops": tflops} for tflops in "31"]
    assert measure_all.find_peaks(peaks) == {"bfloat16": 3}


def test_the_rows_of_the_sweep_are_results_too(make_all):
    make_all.children.fails = {(work.workload, work.model, work.phase): "unsupported" for work in STANDARD_SET}
    assert [make_all()[0] for _ in range(2)] == [0, 0]
