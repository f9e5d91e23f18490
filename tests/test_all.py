"""`make all`: the set is valid everywhere, is measured in rounds, and an interruption doubles and loses nothing."""

import functools
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import measure_all
from bench import process, run
from bench.frameworks import Device
from bench.host import resources
from bench.host.environment import Card
from bench.records import results
from bench.records.rows import work_cells
from bench.settings import FRAMEWORKS, LACKS, parse_settings, read_runs, read_settings
from bench.workloads.operators import matmul
from bench.workloads.standard_set import RUNS, STANDARD_SET
from tests.fakes import FakeChild, workload_of_command
from tests.rows import rate, read_rows

RATES = {"float32": 0.1, "bfloat16": 0.2, "float16": 0.4}  # TFLOP/s of the best matmul
ON_CPU = sum("cpu" in line.devices for line in STANDARD_SET)
CPU, CUDA, MPS = (Device(device, None, "2.15", 1) for device in ("cpu", "cuda", "mps"))
NVIDIA = replace(CUDA, why_not_compiled="")


class Children:
    """What child processes do, and the scripts and settings of those that measured.

    Args:
        fails: {(command, model, phase): status} of work that fails; "mistake": in the settings.
        ends_after: the number of processes before Ctrl-C.
    """

    def __init__(self):
        self.asked, self.fails = [], {}
        self.ends_after, self.device, self.flags = None, CPU, ""

    def work(self, child):
        """Measure what the environment asks for."""
        if child.finds_device:
            threads = {"num_threads": parse_settings("tflops", child.environ).num_threads or 2}
            child.lines.append(asdict(self.device) | threads)
            return
        if len(self.asked) == self.ends_after:
            raise KeyboardInterrupt
        command = Path(child.script).stem.partition("_")[0]
        settings = parse_settings(command, child.environ).on(self.device.type)
        self.asked.append((command, settings))
        workload = matmul(settings.sizes[0]) if command == "tflops" else workload_of_command(command, settings)
        cells = {"device": self.device.type} | {
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
        work = command, settings.model, settings.phase
        failure = self.fails.get(work)
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
    monkeypatch.setattr(process, "Child", functools.partial(FakeChild, children.work))
    monkeypatch.setattr(results.os, "fsync", lambda _: None)  # which takes milliseconds on some disks
    monkeypatch.setattr(measure_all.card, "finish", lambda *_: [""])
    monkeypatch.setenv("MACHINE", "m")

    def call(**environ):
        for name, text in environ.items():
            monkeypatch.setenv(name, text)
        children.asked.clear()
        status = measure_all.main()
        return status, children.count_works(), read_rows(read_settings("all").results_dir / "m.csv")

    call.children = children
    return call


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_set_is_valid_in_every_framework(framework, monkeypatch):
    monkeypatch.setenv("FRAMEWORK", framework)
    models = set()
    for device in (CPU, CUDA, NVIDIA, MPS, Device("xpu", None, "2.15", 1)):
        planned = measure_all.plan_benchmarks(read_runs("all")[0], device, "bfloat16")
        assert planned
        models |= {workload_of_command(each.command, each.settings.on(device.type)).model for each in planned.values()}
    assert ("smollm2-135m" in models) == ("llm" not in LACKS[framework].get("command", ()))


def count_in_runs(rows):
    """List how many processes each run of models has, in the order of the file."""
    return list(
        Counter(row["run_id"] for row in rows if row["workload"] != "matmul" and row["status"] == "ok").values()
    )


def plan(device, sixteen="bfloat16", *memory, **environ):
    return [
        each.settings
        for each in measure_all.plan_benchmarks(read_runs("all", environ)[0], device, sixteen, *memory).values()
    ]


def test_a_small_mac_skips_what_would_swap_and_says_so(capsys):
    works = [{(each.model, each.phase, each.batch_size) for each in plan(MPS, "bfloat16", gb)} for gb in (16, 32)]
    skipped = works[1] - works[0]
    assert ("resnet50", "training", 256) in skipped
    assert capsys.readouterr().out.count("ResNet-50 training, batch 256") == 1


@pytest.mark.parametrize(("memory", "count", "batch"), [(8188, 0, 256), (24564, 0, 1024), (81559, 1, 1024)])
def test_a_card_measures_what_it_can_hold(monkeypatch, memory, count, batch):
    monkeypatch.setattr(resources, "find_card", lambda: Card("NVIDIA", memory=memory))
    works = plan(NVIDIA, "bfloat16", resources.read_card_gb(), False)
    assert sum(each.model == "qwen3-30b-a3b" for each in works) == count
    assert next(each.batch_size for each in works if each.phase == "inference") == batch


@pytest.mark.parametrize(
    ("device", "compiled"),
    [(NVIDIA, 5), (CUDA, 0), (replace(CUDA, why_not_compiled="it needs cc"), 0), (MPS, 0)],
)
def test_lines_are_compiled_where_a_compiler_works(capsys, device, compiled):
    works = plan(device)
    assert sum(bool(each.compile) for each in works) == compiled
    assert ("it needs cc" in capsys.readouterr().out) == (device.why_not_compiled == "it needs cc")
    assert any(each.batch_size == 64 for each in works) == (device.why_not_compiled != "it needs cc")


@pytest.mark.parametrize(
    ("device", "rates", "chosen"),
    [
        ("cuda", {"float32": 1, "bfloat16": 8, "float16": 8.5}, "bfloat16"),
        ("cuda", {"float32": 8, "bfloat16": 2, "float16": 60}, "float16"),  # T4
        ("cpu", {"float32": 1, "bfloat16": 2, "float16": 9}, "bfloat16"),
        ("cuda", {"float32": 10, "bfloat16": 2, "float16": 0.2}, ""),  # GTX 10
        ("cuda", {"float32": 10}, ""),
    ],
)
def test_16_bits_are_those_that_are_fast(device, rates, chosen):
    rows = [{"model": "matmul-peak", "status": "ok", "precision": name, "tflops": rate} for name, rate in rates.items()]
    assert measure_all.choose_sixteen(rows, device) == chosen


@pytest.mark.parametrize("ends_after", [0, 1, 4, 1 + 3 * ON_CPU])
def test_an_interruption_loses_nothing(make_all, ends_after):
    make_all.children.ends_after = ends_after
    with pytest.raises(KeyboardInterrupt):
        make_all()
    stored = read_rows(read_settings("all").results_dir / "m.csv")
    assert sum(row["workload"] != "matmul" for row in stored) == max(0, ends_after - 1)  # each one is in results/
    make_all.children.ends_after, before = None, make_all.children.asked.copy()
    status, _, rows = make_all()
    _, *works = before + make_all.children.asked
    assert (status, works) == (0, works[: 2 * ON_CPU] * RUNS)  # in rounds
    assert count_in_runs(rows) == [RUNS] * 2 * ON_CPU
    assert make_all()[1] == 0  # and nothing is left


def test_the_whole_set_and_other_settings_versions_commits_and_devices_are_measured_anew(make_all, monkeypatch):
    _, count, rows = make_all(QUICK="1")
    assert count == 1 + sum(line.is_quick for line in STANDARD_SET if "cpu" in line.devices)
    assert {row["precision"] for row in rows if row["model"] != "matmul-peak"} == {"float32"}
    assert make_all(MALLOC_ARENA_MAX="1")[1] == count
    monkeypatch.delenv("MALLOC_ARENA_MAX")
    make_all.children.device = Device("cpu", None, "2.16", 1)
    assert make_all()[1] == count
    describe = run.environment.read_host
    monkeypatch.setattr(run.environment, "read_host", lambda machine: describe(machine) | {"commit": "other"})
    assert make_all()[1] == count
    make_all.children.device = CUDA
    on_gpu = make_all()[1]
    make_all.children.device = replace(CUDA, device_name="another card")
    assert make_all()[1] == on_gpu == 1 + len(plan(CUDA, QUICK="1"))
    make_all.children.device = CPU
    assert make_all(QUICK="0")[1] == 1 + 2 * ON_CPU  # one process of a quick run is not enough


def test_what_was_refused_is_left_out_of_later_rounds(make_all):
    crash, mistake = ("llm", "smollm2-135m", "decode"), ("mlp", "mlp-5x1024", "training")
    make_all.children.fails = {("image", "resnet50", "training"): "out_of_memory", mistake: "mistake", crash: "crashed"}
    status, count, rows = make_all()
    assert (status, count) == (0, 1 + 2 * ON_CPU)
    assert len(make_all.children.asked) == 1 + 2 * ON_CPU * RUNS - 2 * (2 + 1 + 1)
    assert sorted(row["status"] for row in rows if row["status"] != "ok") == 4 * ["crashed"] + 4 * ["out_of_memory"]
    make_all.children.fails = {}
    assert [make_all()[1] for _ in range(2)] == [2, 0]  # what has no row


def test_what_was_disturbed_is_measured_until_twice_as_many_processes(make_all):
    make_all.children.flags = "drift contended"
    _, count, rows = make_all()
    assert (count, set(count_in_runs(rows))) == (1 + 2 * ON_CPU, {2 * RUNS})
    assert make_all()[1] == 0
