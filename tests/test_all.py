"""`make all`: the set is valid everywhere, is measured in rounds, and an interruption doubles and loses nothing."""

import functools
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import measure_all
from bench import process
from bench.child import COMPARING, STOPPED
from bench.frameworks import Device
from bench.host import environment
from bench.records import results
from bench.records.rows import work_cells
from bench.settings import FRAMEWORKS, LACKS, SettingError, read_runs, read_settings
from bench.workloads.operators import matmul
from bench.workloads.standard_set import RUNS, STANDARD_SET
from tests.fakes import FakeChild, workload_of_command
from tests.rows import rate, read_rows

CPU, CUDA, MPS = (Device(device, "chip", "2.15", 1) for device in ("cpu", "cuda", "mps"))
NVIDIA = replace(CUDA, why_not_compiled="")
SWEEP = "tflops", None, None
QUICK = 1 + sum(each.is_quick for each in STANDARD_SET if "cpu" in each.devices)  # works of a quick run on a CPU


@pytest.fixture
def make_all(monkeypatch):
    """Run a quick `make all` with fake children; returns (exit status, the works that ran, rows in the file).

    The attributes of the function are what the children do: {work: status} of work that `fails` ("mistake": in the
    settings), the number of processes that it `ends_after` by Ctrl-C, the `device`, the `flags` of rows.
    """

    def work(child):
        if child.finds_device:
            child.lines.append(asdict(call.device))
            return
        if len(call.asked) == call.ends_after:
            raise KeyboardInterrupt
        command = Path(child.script).stem.partition("_")[0]
        settings = read_settings(command, child.environ, call.device.type)
        asked = command, settings.model, settings.phase
        call.asked.append(asked)
        workload = matmul(settings.sizes[0]) if asked == SWEEP else workload_of_command(command, settings)
        cells = {name: getattr(call.device, name) for name in ("framework_version", "device_name", "num_threads")}
        cells |= work_cells(settings, workload, "device") | rate(1.0)
        cells |= {"device": call.device.type, "flags": call.flags}
        failure = call.fails.get(asked)
        if asked == SWEEP:
            child.write(**cells | {"model": "matmul-peak", "precision": "float32", "tflops": 0.1})
            if failure:
                child.write(**cells | {"precision": "bfloat16", "status": failure, "note": "9 TiB", "throughput": None})
        elif failure == "nothing":
            pass
        elif failure == "negative":
            child.write(**cells | {"tflops": -1.0})
        elif failure == "mistake":
            child.lines.append({"mistake": "it needs a package"})
        elif failure in (COMPARING, STOPPED):
            child.write(**cells | {"note": failure})
        elif failure:
            child.write(**cells | {"status": failure, "note": "9 TiB", "throughput": None})
        else:
            child.write(**cells)
        if failure == "interrupted":
            raise KeyboardInterrupt
        return
        yield

    def call(**environ):
        for name, text in ({"QUICK": "1"} | environ).items():
            monkeypatch.setenv(name, text)
        call.asked = []
        status = measure_all.main()
        return status, call.asked, read_rows(read_settings("all").results_dir / "m.csv")

    call.fails, call.ends_after, call.device, call.flags = {}, None, CPU, ""
    monkeypatch.setattr(process, "Child", functools.partial(FakeChild, work))
    monkeypatch.setattr(results.os, "fsync", lambda _: None)  # which takes milliseconds on some disks
    monkeypatch.setattr(measure_all.card, "finish", lambda *_: [""])
    monkeypatch.setattr(measure_all.table, "describe_set", lambda *_: "")
    monkeypatch.setenv("MACHINE", "m")
    return call


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_set_is_valid_in_every_framework(framework, monkeypatch):
    monkeypatch.setenv("FRAMEWORK", framework)
    models = set()
    for device in (CPU, CUDA, NVIDIA, MPS, Device("xpu", None, "2.15", 1)):
        planned = measure_all.plan_benchmarks(read_runs("all")[0], device, "bfloat16")
        assert planned
        for run in planned.values():
            settings = read_settings(run.command, run.environ, device.type)
            models.add(workload_of_command(run.command, settings).model)
    assert ("smollm2-135m" in models) == ("llm" not in LACKS[framework].get("command", ()))


def plan(device, memory_gb):
    planned = measure_all.plan_benchmarks(read_runs("all", {})[0], device, "bfloat16", memory_gb)
    return [each.settings for each in planned.values()]


def test_a_small_mac_skips_what_would_swap_and_says_so(capsys):
    works = [{(each.model, each.phase, each.batch_size) for each in plan(MPS, gb)} for gb in (16, 32)]
    assert ("resnet50", "training", 256) in works[1] - works[0]
    assert capsys.readouterr().out.count("ResNet-50, training, batch 256") == 1


@pytest.mark.parametrize(
    ("device", "compiled"), [(NVIDIA, 5), (CUDA, 0), (replace(CUDA, why_not_compiled="it needs cc"), 0), (MPS, 0)]
)
def test_lines_are_compiled_where_a_compiler_works(capsys, device, compiled):
    assert sum(bool(each.compile) for each in plan(device, 100)) == compiled
    assert ("it needs cc" in capsys.readouterr().out) == (device.why_not_compiled == "it needs cc")


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
    assert measure_all.choose_sixteen(rates, device) == chosen


@pytest.mark.parametrize("ends_after", [0, 1, 4, 1 + 2 * (QUICK - 1)])
def test_an_interruption_loses_nothing_and_each_work_has_its_processes_in_rounds(make_all, ends_after):
    make_all.ends_after = ends_after
    with pytest.raises(KeyboardInterrupt):
        make_all(RUNS="3")
    before = make_all.asked
    make_all.ends_after = None
    status, after, rows = make_all()
    assert (status, before + after) == (0, [SWEEP, *(before + after)[1:QUICK] * 3])
    counts = Counter(row["run_id"] for row in rows)
    assert sorted(counts.values()) == [1, *[3] * (QUICK - 1)]
    assert make_all()[1] == []  # nothing is left


def test_the_whole_set_and_other_settings_versions_commits_and_devices_are_measured_anew(make_all, monkeypatch):
    assert len(make_all()[1]) == QUICK
    assert len(make_all(MALLOC_ARENA_MAX="1")[1]) == QUICK
    make_all.device = Device("cpu", None, "2.16", 1)
    assert len(make_all()[1]) == QUICK
    monkeypatch.setattr(measure_all, "find_programs", lambda commit: "other")
    assert len(make_all()[1]) == QUICK
    make_all.device = replace(CUDA, device_name="another card")
    assert len(make_all()[1]) > 1
    make_all.device = replace(CUDA, device_name="a slice of a card", memory_bytes=10**9)
    assert len(make_all()[1]) == 1  # the sweep
    make_all.device = CPU
    assert len(make_all(QUICK="0")[1]) == 1 + RUNS * sum("cpu" in each.devices for each in STANDARD_SET)


def test_what_was_refused_is_left_out_of_later_rounds(make_all):
    make_all.fails = {("image", "resnet50", "training"): "out_of_memory", ("llm", "smollm2-135m", "decode"): "crashed"}
    make_all.fails["mlp", "mlp-5x1024", "training"] = "mistake"
    status, asked, rows = make_all(RUNS="3")
    assert (status, len(asked)) == (0, 1 + 3 * (QUICK - 1) - (1 + 1 + 2))
    assert sorted(row["status"] for row in rows if row["status"] != "ok") == 2 * ["crashed"] + 2 * ["out_of_memory"]
    make_all.fails = {}
    assert [len(make_all()[1]) for _ in range(2)] == [3, 0]  # what has no row


def test_what_was_disturbed_is_measured_at_most_twice_as_often_and_by_the_next_call(make_all, capsys, caplog):
    caplog.set_level("INFO", "bench")
    make_all.flags = "page_faults contended"
    assert [len(make_all()[1]) for _ in range(2)] == [2 * QUICK] * 2
    assert f"{QUICK} of {QUICK} results are disturbed" in capsys.readouterr().out
    assert "process 2, because process 1 was disturbed" in caplog.text
    make_all.flags = ""
    assert [len(make_all()[1]) for _ in range(2)] == [QUICK, 0]
    assert "are disturbed" not in capsys.readouterr().out


def test_what_was_not_compared_is_measured_again(make_all):
    died, stopped = [("image", "resnet50", "training"), ("llm", "smollm2-135m", "decode")]
    make_all.fails = {died: COMPARING, stopped: STOPPED}
    asked = Counter(make_all()[1])
    make_all.fails = {}
    assert (asked[died], asked[stopped], make_all()[1]) == (2, 2, [stopped])


def test_what_is_missing_is_measured_again_once(make_all):
    """A row that was removed, one that was damaged, two processes that were interrupted."""
    _, asked, rows = make_all(RUNS="3")
    first = next(row for row in rows if row["process"] == "1" and row["model"] == "mlp-5x1024")
    path = read_settings("all").results_dir / "m.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not (first["run_id"] in line and ",1," in line[:30])))
    assert [make_all()[1] for _ in range(2)] == [[("mlp", "mlp-5x1024", "training")], []]
    path.write_text(path.read_text().replace(f"{first['run_id']},2,", f"{first['run_id']},x,"))
    assert [make_all()[1] for _ in range(2)] == [[("mlp", "mlp-5x1024", "training")], []]
    path.unlink()
    make_all.fails[SWEEP] = "interrupted"  # after a row that is complete
    with pytest.raises(KeyboardInterrupt):
        make_all()
    make_all.fails = {asked[1]: "interrupted"}
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            make_all()
    make_all.fails = {}
    assert [make_all()[1].count(asked[1]) for _ in range(2)] == [3, 0]
    assert len({row["process"] for row in read_rows(path) if row["model"] == "matmul-peak"}) == 2


@pytest.mark.parametrize(("failure", "why"), [("nothing", "make doctor"), ("negative", "tflops '-1'")])
def test_a_process_without_a_row_that_can_be_read_ends_it(make_all, failure, why):
    make_all.fails["mlp", "mlp-5x1024", "training"] = failure
    with pytest.raises(SettingError, match=f"process 1 of mlp .*{why}"):
        make_all()


@pytest.mark.parametrize(("failure", "times"), [("crashed", 2), ("unsupported", 1)])  # which is an answer
def test_a_sweep_that_died_is_measured_once_more_before_16_bits_are_left_out(make_all, capsys, failure, times):
    make_all.fails[SWEEP] = failure
    assert make_all(QUICK="0", RUNS="1")[1].count(SWEEP) == times
    assert ("crashed: 9 TiB" in capsys.readouterr().out) == (times == 2)
    assert make_all(QUICK="0")[1] == []


def test_a_commit_of_rows_begins_nothing_anew_and_one_of_a_program_does(make_all, monkeypatch, tmp_path):
    def commit():
        who = "-c", "user.name=t", "-c", "user.email=t@example.org"
        for command in (["init"], ["add", "."], ["commit", "-m", "rows"]):
            environment.output_of("git", "-C", str(tmp_path), *who, *command)

    for module in (measure_all, environment):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "program.py").write_text("1")
    commit()
    assert len(make_all()[1]) == QUICK
    commit()
    assert make_all()[1] == []
    (tmp_path / "program.py").write_text("2")
    commit()
    assert len(make_all()[1]) == QUICK
