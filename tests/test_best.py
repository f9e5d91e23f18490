"""make best: what it tries, how it runs it, and what it prints. The processes are stand-ins with a table of rates."""

import math
import re
import shlex
from types import SimpleNamespace

import pytest
import torch

import best_settings
from bench.launch import Launcher
from bench.records import results
from bench.records.columns import SCHEMA
from bench.settings import SettingError, list_runs, read_settings
from bench.tune import candidates, recipe

CPU = {"device": "cpu", "num_threads": 2, "batch_size": 16}
CUDA = {"device": "cuda", "num_threads": 8, "batch_size": 64}
MPS = CPU | {"device": "mps"}


@pytest.fixture(autouse=True)
def plain_host(monkeypatch):
    monkeypatch.setattr(candidates.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(candidates, "usable_cores", lambda: 2)
    monkeypatch.setattr(candidates.psutil, "cpu_count", lambda logical=True: 2)


def dimensions(row=CPU, script="image", **environ):
    return candidates.list_dimensions(script, environ, list_runs(script, environ), row)


def values(*arguments, **environ):
    return {dimension.name: dimension.values for dimension in dimensions(*arguments, **environ)}


def test_what_is_tried_on_each_device():
    on_cpu = {"PRECISION": ("float32", "bfloat16", "mixed_bfloat16"), "COMPILE": ("0", "1"), "ALLOCATOR": ("", "keep")}
    on_cpu |= {"MEMORY_FORMAT": ("channels_first", "channels_last"), "BATCH_SIZE": ("16",)}
    assert values() == on_cpu
    assert dimensions()[-1].doubles
    found = values(CUDA)
    assert {"tf32", "float16", "mixed_float16"} < set(found["PRECISION"])
    assert found["COMPILE"] == ("0", "1", "reduce-overhead")
    late = [each.late for each in dimensions(CUDA)]
    assert (late[0], set(late[1])) == ((), {"max-autotune", "max-autotune-no-cudagraphs"})  # for the leaders
    assert not any(each.late for each in dimensions())
    assert "ALLOCATOR" not in found
    assert "MEMORY_FORMAT" not in values(CUDA, "transformer")
    own = {"PRECISION": ("float32", "bfloat16"), "COMPILE": ("0", "1"), "ALLOCATOR": ("", "keep")}
    llm = CPU | {"batch_size": 1}
    assert values(llm, "llm") == own
    assert values(CUDA, "llm") == {"PRECISION": ("bfloat16", "float16"), "COMPILE": found["COMPILE"]}
    trained = own | {"PRECISION": ("float32", "mixed_bfloat16"), "BATCH_SIZE": ("1",)}
    assert values(llm, "llm", PHASE="training") == trained


def test_training_and_other_frameworks_have_fewer_choices():
    assert values(PHASE="training")["PRECISION"] == ("float32", "mixed_bfloat16")  # the weights stay in float32
    assert "float16" not in values(CUDA, PHASE="training")["PRECISION"]
    found = values(CUDA, FRAMEWORK="tensorflow")
    assert found["COMPILE"] == ("0", "1")
    assert "MEMORY_FORMAT" not in found
    assert "COMPILE" not in values(CUDA, FRAMEWORK="jax")  # always compiled
    assert values(MPS, FRAMEWORK="mlx")["PRECISION"] == ("float32", "bfloat16", "float16")
    assert "NUM_THREADS" not in values(CPU | {"num_threads": 1}, FRAMEWORK="mlx")


def test_what_is_given_is_held_and_a_list_restricts():
    found = values(PRECISION="bfloat16", COMPILE="1,max-autotune", BATCH_SIZE="32", MALLOC_ARENA_MAX="1")
    assert found == {"COMPILE": ("1", "max-autotune"), "MEMORY_FORMAT": ("channels_first", "channels_last")}
    given = dimensions(BATCH_SIZE="8,32")[-1]
    assert (given.values, given.doubles) == (("8", "32"), False)


def test_threads_that_differ_are_tried(monkeypatch):
    monkeypatch.setattr(candidates, "usable_cores", lambda: 8)
    monkeypatch.setattr(candidates.psutil, "cpu_count", lambda logical=True: 16 if logical else 8)
    found = dimensions(CPU | {"num_threads": 4})
    assert {d.name: d.values for d in found}["NUM_THREADS"] == ("", "8")
    said = "bfloat16, compiled, channels_last, batch 32, allocator keeps memory, 8 threads"
    assert candidates.describe(found, ("bfloat16", "1", "channels_last", "keep", "8", "32")) == said


@pytest.mark.parametrize(
    "change",
    [{"RUNS": "3"}, {"SCOPE": "input"}, {"MODEL": "resnet18,resnet50"}, {"BATCH_SIZE": "auto"}, {"NUM_DEVICES": "2"}],
)
def test_what_a_search_cannot_hold_is_refused(change):
    with pytest.raises(SettingError, match="{}='{}'".format(*next(iter(change.items())))):
        best_settings.read_search(change)


def test_settings_of_the_workload_are_known_on_makes_command_line():
    environ = {"WORKLOAD": "llm", "MAKEFLAGS": " -- DEPTH=0 WORKLOAD=llm"}
    assert best_settings.read_search(environ)[1].model
    with pytest.raises(SettingError, match="SIZES"):
        best_settings.read_search(environ | {"MAKEFLAGS": " -- SIZES=64"})


RATES = {"bfloat16": 3.0, "mixed_bfloat16": 2.0, "1": 1.5, "channels_last": 1.2, "keep": 1.1}
KEEPS = "bfloat16, compiled, channels_last, allocator keeps memory"
DEFAULTS = {"PRECISION": "float32", "COMPILE": "0", "MEMORY_FORMAT": "channels_first", "BATCH_SIZE": "16"}


@pytest.fixture
def search(monkeypatch, tmp_path, capsys):
    """Run make best on a table of rates, without noise, one second for each run; returns (status, out, rows, changes).

    Args:
        last: the number of processes before Ctrl-C.
        fails, fails_in_full: (precision, compile) of trials and of full runs that fail.
        cells: of every row.
    """

    def call(last=10**6, rates=RATES, fails=(("mixed_bfloat16", "1"),), fails_in_full=(), **cells):
        asked = []

        def run_child(launcher, change, limit=None, compares=True, brief=False, **options):
            if len(asked) == last:
                raise KeyboardInterrupt
            asked.append(change | {"limit": limit, "compares": compares})
            row = {name.lower(): change.get(name, text) for name, text in DEFAULTS.items()}
            keeps = "keep" if "MALLOC_TRIM_THRESHOLD_" in change else ""
            rate = 10.0 * math.prod(rates.get(value, 1) for value in (*row.values(), keeps))
            row |= {"status": "ok", "note": "", "flags": "", "run_id": str(len(asked)), "unit": "images/s"}
            row |= {"workload": "image", "model": "resnet50", "phase": "inference", "scope": "device", **CPU, **row}
            row |= {"framework": "torch", "framework_version": "2.15", "device_name": "a chip"}
            row |= {"machine": "a", "schema": SCHEMA}
            row |= {"output_error": 0.0062 if row["precision"] != "float32" and compares else None}
            row |= {"throughput": rate, "throughput_low": 0.99 * rate, "throughput_high": 1.01 * rate}
            row |= {"first_step_seconds": 12.0 / len(asked)} | cells
            if (row["precision"], row["compile"]) in (fails_in_full if change["MAX_SECONDS"] == "10" else fails):
                return [row | {"status": "wrong_output", "note": "NaN", "throughput": None}]
            return [row]

        monkeypatch.setattr(Launcher, "run_child", run_child)
        monkeypatch.setattr(best_settings, "time", SimpleNamespace(monotonic=lambda: float(len(asked))))
        status = best_settings.main()
        stored = [row for path in (tmp_path / "results").glob("*.csv") for row in results.read(path)]
        return status, capsys.readouterr().out, stored, asked

    return call


def test_the_answer_and_the_rows_of_its_path(search):
    status, out, rows, asked = search()
    assert status == 0
    said = [line.strip() for line in out.splitlines()]
    assert re.match(r"the default +10 images/s \(9.9 to 10.1, 5 processes\)", said[1])
    assert re.match(r"\+ bfloat16 +30 images/s \(29.7 to 30.3, 5 processes\), 3 times \(2.94 to 3.06\)", said[2])
    assert said[5].startswith("+ allocator keeps memory")
    assert re.search(rf"fastest of \d+ tried: {KEEPS}\n", out)
    assert "5.94 times (5.82 to 6.06) the default" in said
    assert any("0.62 %" in line for line in said)
    assert "fastest in float32: compiled, channels_last, allocator keeps memory" in out
    assert any(line.startswith("failed: mixed_bfloat16, compiled") and "wrong_output: NaN" in line for line in said)
    assert {"model.compile()", "export MALLOC_TRIM_THRESHOLD_=1000000000000"} < set(said)
    assert "not tried" not in out
    assert [float(row["throughput"]) for row in rows] == pytest.approx([10, 30, 45, 54, 59.4])
    assert {(len(row["process_rates"].split()), row["search"]) for row in rows} == {(5, "1")}
    assert (rows[0]["allocator"], rows[-1]["allocator"][:7]) == ("", "MALLOC_")
    assert {change["MAX_SECONDS"] for change in asked} == {"3", "10"}
    compared = [{name: text for name, text in each.items() if name != "limit"} for each in asked if each["compares"]]
    assert all(compared.count(each) == 1 for each in compared[1:])  # a repetition needs no comparison
    assert len(compared) < len(asked)


@pytest.mark.parametrize("last", [2, 60])
def test_ctrl_c_prints_the_best_so_far(search, last):
    status, out, *_ = search(last=last)
    assert status == 130
    assert re.search(r"fastest of \d+ tried.*: bfloat16", out)
    assert ("in short trials, without a full run" in out) == (last == 2)
    assert "make image" in out


def test_a_short_search_keeps_to_the_time_and_says_how_little_it_tried(search, monkeypatch):
    monkeypatch.setenv("MAX_MINUTES", "0.05")  # three processes
    status, out, rows, asked = search()
    assert (status, len(rows)) == (0, 2)
    assert re.search(r"not tried: .* and 21 more \(", out)
    assert len(asked) <= 5


def test_the_default_may_be_the_fastest(search):
    status, out, rows, _ = search(rates=dict.fromkeys(RATES, 0.5))
    assert (status, len(rows)) == (0, 1)
    assert re.search(r"fastest of \d+ tried: the default\n", out), out


def test_a_default_that_fails_has_no_path(search):
    status, out, rows, _ = search(fails=[("float32", "0")])
    assert (status, [row["search"] for row in rows]) == (0, [""])
    assert f": {KEEPS}\n" in out


def test_nothing_works(search):
    status, out, rows, _ = search(fails=[(p, c) for p in ("float32", *RATES) for c in "01"])
    assert (status, rows) == (1, [])
    assert "To repeat it" not in out


def test_a_candidate_that_fails_in_a_full_run_is_not_the_answer_and_is_not_run_again(search):
    _, out, rows, asked = search(fails_in_full=[("bfloat16", "1")])
    assert re.search(r"fastest of \d+ tried: bfloat16\n", out)
    assert [row["precision"] for row in rows] == ["float32", "bfloat16"]
    full = [change for change in asked if change["MAX_SECONDS"] == "10"]
    assert sum(change.get("COMPILE") == "1" for change in full) == 3


def test_a_language_model_is_searched_in_one_phase(search, monkeypatch):
    monkeypatch.setenv("WORKLOAD", "llm")
    _, out, _, asked = search(workload="llm", model="smollm2-135m", phase="prefill", unit="tokens/s")
    assert {(change["PHASE"], change.get("BATCH_SIZE")) for change in asked} == {("prefill", None)}
    assert "make llm" in out


def test_what_can_be_pasted_means_the_same(search, monkeypatch):
    monkeypatch.setenv("OPTIMIZER", "sgd")
    monkeypatch.setenv("MACHINE", "a machine; rm *")
    words = shlex.split(next(line for line in search()[1].splitlines() if line.endswith("make image")))
    assert {"PRECISION=bfloat16", "COMPILE=1", "SCOPE=device", "MACHINE=a machine; rm *", "OPTIMIZER=sgd"} < set(words)


@pytest.mark.parametrize(
    "settings",
    [
        {"PRECISION": "bfloat16", "MEMORY_FORMAT": "channels_last", "COMPILE": "1"},
        {"PRECISION": "mixed_bfloat16", "NUM_THREADS": "2", "COMPILE": "0"},
        {"PRECISION": "mixed_float16", "COMPILE": "max-autotune"},
    ],
)
def test_the_lines_for_ones_own_script_run(settings, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: asked.append(options) or model)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 2))
    names = {"torch": torch, "model": model, "inputs": torch.randn(2, 3, 4, 4)}
    exec("\n".join(recipe.lines_of_code("torch", settings | {"DEVICE": "cpu"})), names)
    whole = torch.bfloat16 if settings["PRECISION"] == "bfloat16" else torch.float32
    assert model[2].weight.dtype == whole
    if settings["PRECISION"].startswith("mixed"):
        assert names["outputs"].dtype == getattr(torch, settings["PRECISION"].removeprefix("mixed_"))
    if "MEMORY_FORMAT" in settings:
        assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    options = {"1": [{}], "max-autotune": [{"mode": "max-autotune"}]}.get(settings.get("COMPILE"), [])
    assert asked == [int(settings[n]) for n in ("NUM_THREADS",) if n in settings] + options


@pytest.mark.parametrize("framework", recipe.LINES)
def test_every_setting_that_is_tried_has_a_line(framework):
    for name, guesses in candidates.GUESSES.items():
        for value in guesses:
            try:
                read_settings("mlp" if name != "MEMORY_FORMAT" else "image", {"FRAMEWORK": framework, name: value})
            except SettingError:
                continue
            if (name, framework) == ("MEMORY_FORMAT", "torch") or name != "MEMORY_FORMAT":
                assert recipe.lines_of_code(framework, {name: value, "DEVICE": "cpu"}), (name, value)
